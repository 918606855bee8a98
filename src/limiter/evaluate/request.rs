//! From a request, or the keys of a call, to operations of the store.

use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;

use super::{
    decision_builder::DecisionBuilder,
    pending::{self, MaybePending, PendingDecision, PendingStage},
};
use crate::{
    decision::{
        CompactDecision, Decision, DecisionKind, PolicyEntry, PolicyRole,
        quota_override::QuotaOverride,
    },
    key::Key,
    limiter::{
        core::{BoundPolicy, LimiterRef},
        keys::Keys,
        overrides::CheckOverrides,
    },
    quota::Quota,
    store::{CounterOp, DecisionSource, Op, Store, StoreResponse, Units},
};

/// The result of a request's evaluation.
pub(crate) enum Evaluation {
    /// A decision that admits, in compact form.
    Compact(CompactDecision),
    Made(Decision),
    Pending(PendingDecision),
}

impl LimiterRef {
    /// Evaluates an HTTP request.
    #[inline]
    pub(crate) fn evaluate_request(self: Arc<Self>, parts: &Parts) -> Evaluation {
        match self.plain_request(parts) {
            Some((key, cost)) => self.evaluate_plain(key, cost),
            None => self.evaluate_in_full(parts),
        }
    }

    fn evaluate_in_full(self: Arc<Self>, parts: &Parts) -> Evaluation {
        let mut builder = DecisionBuilder::new(Op::Acquire(1), false);
        match self.prepare_request(&mut builder, parts) {
            None => Evaluation::Made(builder.finish(self)),
            Some(stage) => Evaluation::Pending(PendingDecision::new(self, builder, stage)),
        }
    }

    /// Evaluates a call with its own keys.
    #[inline]
    pub(crate) fn evaluate_keys(
        self: Arc<Self>,
        op: Op,
        keys: &Keys,
        overrides: Option<&CheckOverrides>,
    ) -> MaybePending {
        if let (Op::Acquire(1), None, Some(bound), Some(&key)) =
            (op, overrides, self.only(), keys.all())
            && !self.reads_parts
        {
            let key = bound.fixed_key.unwrap_or(key);
            let cost = bound.policy.default_cost();
            return match self.evaluate_plain(key, cost) {
                Evaluation::Compact(brief) => MaybePending::Ready(brief.decision()),
                Evaluation::Made(decision) => MaybePending::Ready(decision),
                Evaluation::Pending(pending) => MaybePending::Pending(pending),
            };
        }
        let mut builder =
            DecisionBuilder::new(op, overrides.is_some_and(|overrides| overrides.will_retry));
        builder.may_wait = overrides.is_some_and(|overrides| overrides.may_wait);
        builder.in_check |= overrides.is_some_and(|overrides| overrides.in_check);
        match self.prepare_keys(&mut builder, keys, overrides) {
            None => MaybePending::Ready(builder.finish(self)),
            Some(stage) => MaybePending::Pending(PendingDecision::new(self, builder, stage)),
        }
    }

    fn prepare_request(
        &self,
        builder: &mut DecisionBuilder,
        parts: &Parts,
    ) -> Option<PendingStage> {
        if let Some(kind) = self.access_check_request(parts) {
            builder.decide_without_store(kind, DecisionSource::NotChecked);
            return None;
        }
        let mut lookups = Vec::new();
        for (index, bound) in self.policies.iter().enumerate() {
            let policy = &bound.policy;
            if policy.is_by_hand() || policy.skips(parts) {
                continue;
            }
            let found = bound.find_key(parts);
            let Some(key) = found.or_else(|| bound.missing_key()) else {
                if bound.rejects_missing_key() {
                    self.reject_missing_key(builder, index, parts);
                    return None;
                }
                continue;
            };
            let quota =
                pending::quota_of_request(policy, parts, builder.entries.len(), &mut lookups);
            let cost = if bound.is_ban() {
                1
            } else {
                policy.cost_of(parts)
            };
            let caller = bound.caller_key(|| policy.caller_of(parts));
            self.add_entry(builder, index, key, cost, caller, quota);
        }
        if lookups.is_empty() {
            return self.call_store(builder);
        }
        Some(pending::start_lookups(lookups))
    }

    fn prepare_keys(
        &self,
        builder: &mut DecisionBuilder,
        keys: &Keys,
        overrides: Option<&CheckOverrides>,
    ) -> Option<PendingStage> {
        let op = builder.op;
        let kind = self.find_misuse(op, keys, overrides);
        let kind = kind.or_else(|| self.access_check_call(op, keys, overrides));
        let kind = kind.or_else(|| overrides?.missing.clone());
        if let Some(kind) = kind {
            builder.decide_without_store(kind, DecisionSource::NotChecked);
            return None;
        }
        let parts = overrides.and_then(|overrides| overrides.parts.as_deref());
        // A reset of one caller leaves counts of all callers alone, unless all policies have such counts.
        let resets_caller =
            op == Op::Reset && self.policies.iter().any(|bound| bound.fixed_key.is_none());
        let mut lookups = Vec::new();
        for (index, bound) in self.policies.iter().enumerate() {
            let policy = &bound.policy;
            // A policy that is not named does not apply.
            let Some(key) = self.key_of(bound, keys) else {
                continue;
            };
            if resets_caller && keys.all().is_some_and(|all| all != key) {
                continue;
            }
            if bound.is_ban() && op == Op::ForceAcquire && !keys.names_policy(policy.name()) {
                continue;
            }
            let conditions = concerns_request(op, overrides)
                && !overrides.is_some_and(|overrides| overrides.any_request);
            if conditions && parts.is_some_and(|parts| policy.skips(parts)) {
                continue;
            }
            let own_quota = overrides.and_then(|overrides| overrides.quota(policy.name()));
            let quota = own_quota.or_else(|| {
                pending::quota_of_request(policy, parts?, builder.entries.len(), &mut lookups)
            });
            let own_cost = self.cost_in_call(bound, overrides);
            let cost = match own_cost {
                Some(cost) if !bound.is_ban() || op == Op::ForceAcquire => cost,
                _ => bound.cost_of(parts),
            };
            let caller = || overrides.and_then(|overrides| overrides.caller(policy));
            let caller = bound.caller_key(|| keys.caller_override().or_else(caller));
            self.add_entry(builder, index, *key, cost, caller, quota);
        }
        if lookups.is_empty() {
            return self.call_store(builder);
        }
        Some(pending::start_lookups(lookups))
    }

    /// Adds a policy that applies. Inlined like the next functions, so that no large value is moved between them.
    #[inline(always)]
    fn add_entry(
        &self,
        builder: &mut DecisionBuilder,
        index: usize,
        key: Key,
        cost: u64,
        caller: Option<Box<Key>>,
        quota: Option<Quota>,
    ) {
        let bound = &self.policies[index];
        let quota_override = quota.and_then(|quota| self.quota_override(bound, quota));
        let policy = (index as u32, bound.role());
        builder
            .entries
            .push(PolicyEntry::new(policy, key, cost, caller, quota_override));
    }

    /// The override of a policy's quota by a request's own, if they differ.
    #[cold]
    pub(crate) fn quota_override(
        &self,
        bound: &BoundPolicy,
        quota: Quota,
    ) -> Option<QuotaOverride> {
        if quota == bound.policy.quota() {
            return None;
        }
        bound.quota_override(&*self.store, quota)
    }

    /// Calls the store, and applies a response that is ready. Returns what is pending.
    #[inline(always)]
    pub(crate) fn call_store(&self, builder: &mut DecisionBuilder) -> Option<PendingStage> {
        if builder.entries.is_empty() {
            return None;
        }
        match self.execute(builder) {
            StoreResponse::Ready(response) => {
                self.apply_response(builder, response);
                None
            }
            StoreResponse::Pending(response) => Some(PendingStage::Store(response)),
        }
    }

    #[inline(always)]
    pub(crate) fn execute(&self, builder: &DecisionBuilder) -> StoreResponse {
        self.execute_on(&*self.store, builder)
    }

    #[inline(always)]
    pub(crate) fn execute_on(&self, store: &dyn Store, builder: &DecisionBuilder) -> StoreResponse {
        let DecisionBuilder {
            op,
            will_retry,
            entries,
            ..
        } = builder;
        let counter_op = |entry| {
            let mut counter_op = self.counter_op(entry);
            counter_op.units = entry.units();
            counter_op.mode = self.counter_mode(entry, entries, *will_retry);
            if entry.role == PolicyRole::Ban
                && (*will_retry || self.bound(entry.policy).policy.is_block_list())
            {
                counter_op.units = Units::ZERO;
            }
            counter_op
        };
        match &entries[..] {
            [entry] => store.execute(*op, &[counter_op(entry)]),
            entries => {
                let ops: SmallVec<[CounterOp<'_>; 4]> = entries.iter().map(counter_op).collect();
                store.execute(*op, &ops)
            }
        }
    }

    #[cold]
    fn reject_missing_key(&self, builder: &mut DecisionBuilder, policy: usize, parts: &Parts) {
        let policy = &self.policies[policy].policy;
        let kind = DecisionKind::MissingKey {
            policy: policy.shared_name(),
            missing: policy.extractor().missing_key_name(Some(parts)).into(),
        };
        builder.decide_without_store(kind, DecisionSource::NotChecked);
    }
}

/// Whether a call is about a request, so that access lists, conditions and costs of requests apply.
pub(crate) fn concerns_request(op: Op, overrides: Option<&CheckOverrides>) -> bool {
    matches!(op, Op::Acquire(_) | Op::Peek)
        && !overrides.is_some_and(|overrides| overrides.unconditional)
}
