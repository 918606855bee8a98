//! A request of [`Limiter::wait`](crate::Limiter::wait).

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use super::{
    bound_policy::BoundPolicy,
    check::CheckOverrides,
    core::LimiterRef,
    decide::{MaybePending, PendingDecision},
    decision::{Decision, DecisionKind},
    entry::{PolicyEntry, PolicyRole},
    fallback::FailureAction,
    keys::Keys,
    quota_lookup::{quota_of_request, run_lookups},
    resolve::RequestHead,
    wait_queue::QueueKey,
};
use crate::{
    error::StoreError,
    key::Key,
    store::{CounterMode, Op},
    strategy::RetryAfter,
};

/// The keys and settings of a call that may wait.
#[derive(Clone)]
pub(crate) struct WaitRequest {
    pub(crate) limiter: Arc<LimiterRef>,
    pub(crate) keys: Keys,
    pub(crate) overrides: CheckOverrides,
}

impl WaitRequest {
    /// Whether both can be one call of the store, given equal keys.
    pub(crate) fn is_mergeable_with(&self, other: &Self) -> bool {
        let (a, b) = (&self.overrides, &other.overrides);
        a.address == b.address
            && a.cost == b.cost
            && a.costs == b.costs
            && a.quotas == b.quotas
            && a.callers == b.callers
            // Access lists may decide differently by the request's head.
            && (self.limiter.lists.is_none() || a.parts.is_none() && b.parts.is_none())
            && self.keys.caller_override() == other.keys.caller_override()
    }

    /// The keys by policy, however they were given.
    pub(crate) fn queue_key(&self) -> QueueKey {
        let policies = self.limiter.policies.iter();
        let keys = policies.map(|bound| self.limiter.key_of(bound, &self.keys).copied());
        QueueKey {
            generation: self.limiter.generation,
            keys: keys.collect(),
        }
    }

    /// Whether several requests can be one call: not with permits, which are distinct, nor where rejections are charged, since the
    /// waiters behind the leader must not be rejected.
    pub(crate) fn can_batch(&self) -> bool {
        let mut policies = self.limiter.policies.iter();
        policies.all(|bound| {
            !bound.is_permit()
                && !matches!(bound.policy.counter_mode(), CounterMode::ChargeRejectedToo)
        })
    }

    /// Calls the store for `n` requests that keep waiting if they are rejected.
    pub(crate) fn check(&self, n: u32) -> MaybePending {
        let limiter = self.limiter.clone();
        limiter.decide_unreported(Op::Acquire(n), &self.keys, &self.overrides)
    }

    /// Calls the store once, without a queue.
    pub(crate) async fn check_once(&self) -> Decision {
        let once = CheckOverrides {
            will_retry: false,
            ..self.overrides.clone()
        };
        match self
            .limiter
            .clone()
            .decide_unreported(Op::Acquire(1), &self.keys, &once)
        {
            MaybePending::Ready(decision) => decision,
            MaybePending::Pending(mut pending) => await_decision(&mut pending).await,
        }
    }

    /// Whether [`read_parts`](Self::read_parts) waits for lookups of quotas.
    pub(crate) fn looks_up_quotas(&self) -> bool {
        let mut policies = self.limiter.policies.iter();
        self.overrides.parts.is_some() && policies.any(|bound| bound.policy.looks_up_quota())
    }

    /// Reads quotas, costs, callers and conditions from the request of the call, once for as long as it waits. Afterwards the
    /// keys name the policies that apply.
    pub(crate) async fn read_parts(&mut self) {
        let Some(parts) = self.overrides.parts.clone() else {
            return;
        };
        let mut keys = Vec::new();
        let mut costs = Vec::new();
        let mut lookups = Vec::new();
        let head = RequestHead::new(&parts);
        for (index, bound) in self.limiter.policies.iter().enumerate() {
            let policy = &bound.policy;
            let Some(key) = self.limiter.key_of(bound, &self.keys) else {
                continue;
            };
            if policy.skips(&parts, &head.path) {
                continue;
            }
            let name = || policy.name().to_owned();
            keys.push((name(), *key));
            let caller = bound.extract_caller(&head);
            self.overrides
                .callers
                .extend(caller.map(|caller| (name(), caller)));
            // Also of a shadow: without a cost of its own it would get that of the live policy.
            if (policy.has_cost_of_request() || policy.is_shadow())
                && self
                    .limiter
                    .cost_in_call(bound, Some(&self.overrides))
                    .is_none()
            {
                costs.push((name(), bound.cost_of(Some(&head))));
            }
            if self.overrides.quota(policy.name()).is_none() {
                let quota = quota_of_request(policy, &parts, index, &mut lookups);
                self.overrides
                    .quotas
                    .extend(quota.map(|quota| (name(), quota)));
            }
        }
        self.overrides.costs.extend(costs);
        for (index, quota) in run_lookups(lookups).await {
            let name = self.limiter.policies[index].policy.name();
            self.overrides.quotas.push((name.to_owned(), quota));
        }
        // The others have their policy's own quota.
        for (name, _) in &keys {
            if self.overrides.quota(name).is_none()
                && let Ok(index) = self.limiter.find(name)
            {
                let policy = &self.limiter.policies[index].policy;
                self.overrides.quotas.push((name.clone(), policy.quota()));
            }
        }
        let caller = self.keys.caller_override();
        self.keys = keys.into();
        if let Some(caller) = caller {
            self.keys = self.keys.clone().caller(caller);
        }
    }

    /// Whether it is decided without the store: the call is an error, or access lists or conditions decide.
    pub(crate) fn is_decided_without_store(&self) -> bool {
        let (keys, overrides, op) = (&self.keys, Some(&self.overrides), Op::Acquire(1));
        let head = self.overrides.parts.as_deref().map(RequestHead::new);
        let is_misuse = self.limiter.find_misuse(op, keys, overrides).is_some();
        is_misuse
            || self
                .limiter
                .access_check_call(op, keys, overrides, head.as_ref())
                .is_some()
    }

    /// Whether it costs more than a policy's capacity, or nothing.
    pub(crate) fn cannot_or_need_not_wait(&self) -> bool {
        let mut costs = false;
        // A ban costs nothing by itself, and a shadow rejects nothing.
        let live = |bound: &&BoundPolicy| bound.role == PolicyRole::Live;
        for bound in self.limiter.policies.iter().filter(live) {
            let policy = &bound.policy;
            if self.limiter.key_of(bound, &self.keys).is_none() {
                continue;
            }
            let cost_in_call = self.limiter.cost_in_call(bound, Some(&self.overrides));
            let cost = cost_in_call.unwrap_or_else(|| policy.default_cost());
            let quota = self.overrides.quota(policy.name());
            let quota_override = quota.and_then(|quota| self.limiter.quota_override(bound, quota));
            let limit = quota_override
                .as_ref()
                .map_or(&bound.limit, |quota| &quota.limit);
            if cost > limit.info().capacity {
                return true;
            }
            costs |= cost > 0;
        }
        !costs
    }

    /// Whether it retries after an error of the store, and is not rejected for it.
    pub(crate) fn retries_after(&self, error: &StoreError) -> bool {
        let policies = self.limiter.policies.iter();
        let named = policies.filter(|bound| self.limiter.key_of(bound, &self.keys).is_some());
        self.limiter.failure_action(named, error, true) == FailureAction::Wait
    }

    /// Whether an in-flight limit is among the policies that rejected it.
    pub(crate) fn waits_for_permit(&self, rejected: &Decision) -> bool {
        waits(rejected).any(|entry| self.limiter.bound(entry.policy).is_permit())
    }

    /// The longest wait of the other policies.
    pub(crate) fn retry_delay(&self, rejected: &Decision) -> Duration {
        let timed = waits(rejected).filter(|entry| !self.limiter.bound(entry.policy).is_permit());
        let timed = timed.filter_map(|entry| match entry.status(&rejected.limiter).retry_after {
            RetryAfter::In(wait) => Some(wait),
            RetryAfter::Now | RetryAfter::Unknown | RetryAfter::Never => None,
        });
        timed.max().unwrap_or_default()
    }

    /// Whether the remaining units after a call for several requests include their charges.
    pub(crate) fn is_charged_on_arrival(&self, policy: u32) -> bool {
        self.limiter.bound(policy).policy.counter_mode() != CounterMode::Check
    }
}

/// The policies that a rejected request waits for.
fn waits(rejected: &Decision) -> impl Iterator<Item = &PolicyEntry> {
    let enforced = rejected.entries.iter().filter(|entry| !entry.is_shadow());
    enforced.filter(|entry| entry.rejects(&rejected.limiter))
}

/// Awaits a decision. Dropping the future leaves it pending, to be awaited again.
pub(crate) async fn await_decision(pending: &mut PendingDecision) -> Decision {
    poll_fn(|cx| Pin::new(&mut *pending).poll(cx)).await
}

impl WaitRequest {
    /// Records a final rejection. An admission needs no record.
    pub(super) async fn finish(&self, mut decision: Decision) -> Decision {
        if matches!(decision.kind, DecisionKind::Rejected) {
            self.limiter.record_shadows_after_wait(&mut decision).await;
            self.count_rejection_for_bans(&mut decision).await;
        }
        if !decision.is_admitted() {
            self.limiter
                .log_rejection(&decision.kind, &decision.entries);
        }
        decision
    }

    /// Counts the rejection towards bans, unless a ban rejected. A ban that begins with it is part of the decision.
    async fn count_rejection_for_bans(&self, rejected: &mut Decision) {
        let is_banned = rejected
            .entries
            .iter()
            .any(|entry| entry.role == PolicyRole::Ban);
        let bans: Vec<(String, Key)> = if is_banned { Vec::new() } else { self.bans() };
        if bans.is_empty() {
            return;
        }
        let mut keys: Keys = bans.into();
        if let Some(caller) = self.keys.caller_override() {
            keys = keys.caller(caller);
        }
        let once = CheckOverrides {
            cost: Some(1),
            in_check: true,
            quotas: self.overrides.quotas.clone(),
            ..CheckOverrides::default()
        };
        let counted = match self
            .limiter
            .clone()
            .decide_unreported(Op::ForceAcquire, &keys, &once)
        {
            MaybePending::Ready(decision) => decision,
            MaybePending::Pending(mut pending) => await_decision(&mut pending).await,
        };
        let banned = counted.entries.into_iter();
        let banned =
            banned.filter(|entry| entry.status(&counted.limiter).retry_after != RetryAfter::Now);
        let shadows = rejected.entries.partition_point(|entry| !entry.is_shadow());
        rejected.entries.insert_many(shadows, banned);
    }

    /// The bans, and the request's key under each.
    fn bans(&self) -> Vec<(String, Key)> {
        let bans = self.limiter.policies.iter();
        let bans = bans.filter(|bound| bound.is_ban() && !bound.policy.is_block_list());
        let named = bans.filter_map(|bound| {
            let key = self.limiter.key_of(bound, &self.keys)?;
            Some((bound.policy.name().to_owned(), *key))
        });
        named.collect()
    }
}
