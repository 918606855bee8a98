//! How a limiter judges: from a request to the store's lines.

use std::{net::IpAddr, sync::Arc};

use http::request::Parts;
use smallvec::SmallVec;

use super::{
    draft::Draft,
    pending::{self, Waits},
};
use crate::{
    decision::{Brief, Counted, Decision, DecisionKind, Part, quota_override::Tier},
    key::Key,
    limiter::{Bound, Desk, Judged, Keys, Pending},
    policy::Policy,
    quota::Quota,
    store::{CounterOp, DecisionSource, Op, Store, StoreResponse, Units},
};

/// What a question says in place of what the policies say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    pub(crate) cost: Option<u64>,
    pub(crate) costs: Vec<(String, u64)>,
    pub(crate) quotas: Vec<(String, Quota)>,
    /// The callers that policies found in the request.
    pub(crate) callers: Vec<(String, Key)>,
    /// For the lists.
    pub(crate) address: Option<IpAddr>,
    /// The request that the call is about.
    pub(crate) parts: Option<Arc<Parts>>,
    /// Whether it's asked again if it is refused, so that a refusal is none to be counted yet.
    pub(crate) retries: bool,
    /// Whether it may wait for a store that failed.
    pub(crate) waits: bool,
    /// Whether it is a part of a request's check, whatever is asked: a failed store is answered as the policies say.
    pub(crate) in_check: bool,
    /// What the request lacks that the call's keys were taken from.
    pub(crate) missing: Option<DecisionKind>,
    /// Whether the call is about all policies, whatever conditions say of its request.
    pub(crate) any_request: bool,
    /// Whether it is about a key alone: lists, conditions and what requests cost are not asked for.
    pub(crate) unconditional: bool,
}

impl Own {
    /// What the call says that a request costs under a policy, by its name or by that of the one whose place it would take.
    pub(crate) fn cost(&self, policy: &str, live: Option<&str>) -> Option<u64> {
        let named = of(&self.costs, policy);
        let named = named.or_else(|| of(&self.costs, live?));
        named.or(self.cost)
    }

    /// The quota that the call sets for a policy.
    pub(crate) fn quota(&self, policy: &str) -> Option<Quota> {
        of(&self.quotas, policy)
    }

    /// The caller that a policy finds in the call's request.
    fn caller(&self, policy: &Policy) -> Option<Key> {
        let found = of(&self.callers, policy.name());
        found.or_else(|| policy.caller_of(self.parts.as_deref()?))
    }
}

/// What a limiter makes of a request.
pub(crate) enum Judgement {
    /// A decision that admits, in few words.
    Brief(Brief),
    /// A decision.
    Made(Decision),
    /// There is something to wait for.
    Pending(Pending),
}

impl Desk {
    /// Judges a request by what its head says.
    #[inline]
    pub(crate) fn judge_request(self: Arc<Self>, parts: &Parts) -> Judgement {
        match self.plain_request(parts) {
            Some((key, cost)) => self.judge_plain(key, cost),
            None => self.judge_at_length(parts),
        }
    }

    fn judge_at_length(self: Arc<Self>, parts: &Parts) -> Judgement {
        let mut draft = Draft::new(Op::Acquire(1), false);
        match self.draft_request(&mut draft, parts) {
            None => Judgement::Made(draft.finish(self)),
            Some(waits) => Judgement::Pending(Pending::new(self, draft, waits)),
        }
    }

    /// Judges a request by keys that were found elsewhere.
    #[inline]
    pub(crate) fn judge_keys(self: Arc<Self>, ask: Op, keys: &Keys, own: Option<&Own>) -> Judged {
        if let (Op::Acquire(1), None, Some(bound), Some(&key)) = (ask, own, self.only(), keys.all())
            && !self.reads_parts
        {
            let key = bound.fixed_key.unwrap_or(key);
            let cost = bound.policy.plain_cost();
            return match self.judge_plain(key, cost) {
                Judgement::Brief(brief) => Judged::Now(brief.decision()),
                Judgement::Made(decision) => Judged::Now(decision),
                Judgement::Pending(pending) => Judged::Later(pending),
            };
        }
        let mut draft = Draft::new(ask, own.is_some_and(|own| own.retries));
        draft.waits = own.is_some_and(|own| own.waits);
        draft.in_check |= own.is_some_and(|own| own.in_check);
        let waits = self.draft_keys(&mut draft, keys, own);
        match waits {
            None => Judged::Now(draft.finish(self)),
            Some(waits) => Judged::Later(Pending::new(self, draft, waits)),
        }
    }

    fn draft_request(&self, draft: &mut Draft, parts: &Parts) -> Option<Waits> {
        if let Some(kind) = self.rule_request(parts) {
            draft.rule(kind, DecisionSource::NotChecked);
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
                if bound.refuses_missing() {
                    self.rule_no_key(draft, index, parts);
                    return None;
                }
                continue;
            };
            let quota = pending::quota_of_request(policy, parts, draft.items.len(), &mut lookups);
            let cost = if bound.is_ban() {
                1
            } else {
                policy.cost_of(parts)
            };
            let by = bound.by(|| policy.caller_of(parts));
            self.push(draft, index, key, cost, by, quota);
        }
        if lookups.is_empty() {
            return self.judge(draft);
        }
        Some(pending::look_up(lookups))
    }

    fn draft_keys(&self, draft: &mut Draft, keys: &Keys, own: Option<&Own>) -> Option<Waits> {
        let ask = draft.ask;
        let asks = asks(ask, own);
        let ruled = self.find_misuse(ask, keys, own);
        let ruled = ruled.or_else(|| self.rule_keys(ask, keys, own));
        let ruled = ruled.or_else(|| own?.missing.clone());
        if let Some(kind) = ruled {
            draft.rule(kind, DecisionSource::NotChecked);
            return None;
        }
        let parts = own.and_then(|own| own.parts.as_deref());
        // A reset of one caller leaves counts of all callers alone, where there are others.
        let resets_caller =
            ask == Op::Reset && self.policies.iter().any(|bound| bound.fixed_key.is_none());
        let mut lookups = Vec::new();
        for (index, bound) in self.policies.iter().enumerate() {
            let policy = &bound.policy;
            // A policy that is not named does not apply.
            let Some(key) = self.key_of(bound, keys) else {
                continue;
            };
            if resets_caller && keys.all().is_some_and(|own| own != key) {
                continue;
            }
            if bound.is_ban() && ask == Op::ForceAcquire && !keys.name(policy.name()) {
                continue;
            }
            let conditions = asks && !own.is_some_and(|own| own.any_request);
            if conditions && parts.is_some_and(|parts| policy.skips(parts)) {
                continue;
            }
            let own_quota = own.and_then(|own| own.quota(policy.name()));
            let quota = own_quota.or_else(|| {
                pending::quota_of_request(policy, parts?, draft.items.len(), &mut lookups)
            });
            let own_cost = self.cost_in_call(bound, own);
            let cost = match own_cost {
                Some(cost) if !bound.is_ban() || ask == Op::ForceAcquire => cost,
                _ => bound.cost_of(parts),
            };
            let caller = || own.and_then(|own| own.caller(policy));
            let by = bound.by(|| keys.own_caller().or_else(caller));
            self.push(draft, index, *key, cost, by, quota);
        }
        if lookups.is_empty() {
            return self.judge(draft);
        }
        Some(pending::look_up(lookups))
    }

    /// Adds that a policy applies. Like what follows it is a part of one function, in which nothing large is passed about.
    #[inline(always)]
    fn push(
        &self,
        draft: &mut Draft,
        index: usize,
        key: Key,
        cost: u64,
        caller: Option<Box<Key>>,
        quota: Option<Quota>,
    ) {
        let bound = &self.policies[index];
        let tier = quota.and_then(|quota| self.tier(bound, quota));
        let place = (index as u32, bound.part());
        draft
            .items
            .push(Counted::unasked(place, key, cost, caller, tier));
    }

    /// A request's own quota under a policy, and its limit.
    #[cold]
    pub(crate) fn tier(&self, bound: &Bound, quota: Quota) -> Option<Tier> {
        let own = quota != bound.policy.quota();
        own.then(|| bound.tier(&*self.store, quota)).flatten()
    }

    /// Asks the store. What it answers at once is the decision.
    #[inline(always)]
    pub(crate) fn judge(&self, draft: &mut Draft) -> Option<Waits> {
        if draft.items.is_empty() {
            return None;
        }
        match self.ask(draft) {
            StoreResponse::Ready(answer) => {
                self.decide(draft, answer);
                None
            }
            StoreResponse::Pending(answer) => Some(Waits::Store(answer)),
        }
    }

    #[inline(always)]
    pub(crate) fn ask(&self, draft: &Draft) -> StoreResponse {
        self.ask_in(&*self.store, draft)
    }

    #[inline(always)]
    pub(crate) fn ask_in(&self, store: &dyn Store, draft: &Draft) -> StoreResponse {
        let Draft {
            ask,
            retries,
            items,
            ..
        } = draft;
        let line = |item| {
            let mut line = self.line(item);
            line.units = item.units();
            line.mode = self.mode(item, items, *retries);
            if item.part == Part::Ban
                && (*retries || self.bound(item.policy).policy.is_block_list())
            {
                line.units = Units::ZERO;
            }
            line
        };
        match &items[..] {
            [item] => store.execute(*ask, &[line(item)]),
            items => {
                let lines: SmallVec<[CounterOp<'_>; 4]> = items.iter().map(line).collect();
                store.execute(*ask, &lines)
            }
        }
    }

    #[cold]
    fn rule_no_key(&self, draft: &mut Draft, policy: usize, parts: &Parts) {
        let policy = &self.policies[policy].policy;
        let kind = DecisionKind::MissingKey {
            policy: policy.shared_name(),
            missing: policy.extractor().missing_key_name(Some(parts)).into(),
        };
        draft.rule(kind, DecisionSource::NotChecked);
    }
}

/// Whether a call is about a request: lists, conditions and what requests cost count.
pub(crate) fn asks(op: Op, own: Option<&Own>) -> bool {
    matches!(op, Op::Acquire(_) | Op::Peek) && !own.is_some_and(|own| own.unconditional)
}

fn of<T: Copy>(own: &[(String, T)], policy: &str) -> Option<T> {
    let (_, value) = own.iter().find(|(name, _)| name == policy)?;
    Some(*value)
}
