//! A request of [`Limiter::wait`](crate::Limiter::wait).

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use crate::{
    decision::{Counted, Decision, Part},
    error::StoreError,
    key::Key,
    limiter::{
        Bound, Desk, Judged, Keys, Pending,
        evaluate::{
            fallback::FailureAction,
            judge::Own,
            pending::{look_up_each, quota_of_request},
        },
    },
    store::{CounterMode, Op},
    strategy::RetryAfter,
};

/// Identifies a queue: the request's key, or none, for each policy.
pub(crate) type QueueKey = Box<[Option<Key>]>;

/// The keys and settings of a call that may wait.
#[derive(Clone)]
pub(crate) struct WaitRequest {
    pub(crate) desk: Arc<Desk>,
    pub(crate) keys: Keys,
    pub(crate) own: Own,
}

impl WaitRequest {
    /// Whether both can be one call of the store, given equal keys.
    pub(crate) fn is_mergeable_with(&self, other: &Self) -> bool {
        let (a, b) = (&self.own, &other.own);
        a.address == b.address
            && a.cost == b.cost
            && a.costs == b.costs
            && a.quotas == b.quotas
            && a.callers == b.callers
            // Lists may tell requests apart by their heads.
            && (self.desk.lists.is_none() || a.parts.is_none() && b.parts.is_none())
            && self.keys.own_caller() == other.keys.own_caller()
    }

    /// The keys by policy, however they were given.
    pub(crate) fn queue_key(&self) -> QueueKey {
        let policies = self.desk.policies.iter();
        policies
            .map(|bound| self.desk.key_of(bound, &self.keys).copied())
            .collect()
    }

    /// Whether several requests can be one call: not with permits, which are distinct, nor where rejections are charged, since the
    /// waiters behind the leader must not be rejected.
    pub(crate) fn can_batch(&self) -> bool {
        let mut policies = self.desk.policies.iter();
        policies.all(|bound| {
            !bound.is_permit() && !matches!(bound.policy.mode(), CounterMode::ChargeRejectedToo)
        })
    }

    /// Calls the store for `n` requests that keep waiting if they are rejected.
    pub(crate) fn ask(&self, n: u32) -> Judged {
        let own = Some(&self.own);
        let desk = self.desk.clone();
        desk.judge_keys(Op::Acquire(n), &self.keys, own)
    }

    /// Calls the store once, without a queue.
    pub(crate) async fn check_once(&self) -> Decision {
        let once = Own {
            retries: false,
            ..self.own.clone()
        };
        match self
            .desk
            .clone()
            .judge_keys(Op::Acquire(1), &self.keys, Some(&once))
        {
            Judged::Now(decision) => decision,
            Judged::Later(mut pending) => answer(&mut pending).await,
        }
    }

    /// Reads what the policies take from the call's request, once for as long as it waits. From here on the policies that apply
    /// are named.
    pub(crate) async fn read_parts(&mut self) {
        let Some(parts) = self.own.parts.clone() else {
            return;
        };
        let mut keys = Vec::new();
        let mut costs = Vec::new();
        let mut lookups = Vec::new();
        for (index, bound) in self.desk.policies.iter().enumerate() {
            let policy = &bound.policy;
            let Some(key) = self.desk.key_of(bound, &self.keys) else {
                continue;
            };
            if policy.skips(&parts) {
                continue;
            }
            let name = || policy.name().to_owned();
            keys.push((name(), *key));
            let caller = policy.caller_of(&parts);
            self.own
                .callers
                .extend(caller.map(|caller| (name(), caller)));
            // A shadow's too, or the live policy's would be taken for it.
            if (policy.has_cost_of_request() || policy.shadowed().is_some())
                && self.desk.cost_in_call(bound, Some(&self.own)).is_none()
            {
                costs.push((name(), bound.cost_of(Some(&parts))));
            }
            if self.own.quota(policy.name()).is_none() {
                let quota = quota_of_request(policy, &parts, index, &mut lookups);
                self.own.quotas.extend(quota.map(|quota| (name(), quota)));
            }
        }
        self.own.costs.extend(costs);
        for (index, quota) in look_up_each(lookups).await {
            let name = self.desk.policies[index].policy.name();
            self.own.quotas.push((name.to_owned(), quota));
        }
        // The others have their policy's own quota.
        for (name, _) in &keys {
            if self.own.quota(name).is_none()
                && let Ok(index) = self.desk.find(name)
            {
                let policy = &self.desk.policies[index].policy;
                self.own.quotas.push((name.clone(), policy.quota()));
            }
        }
        let caller = self.keys.own_caller();
        self.keys = keys.into();
        if let Some(caller) = caller {
            self.keys = self.keys.clone().caller(caller);
        }
    }

    /// Whether it is decided without the store: the call is an error, or access lists or conditions decide.
    pub(crate) fn is_decided_without_store(&self) -> bool {
        let (keys, own) = (&self.keys, Some(&self.own));
        self.desk.find_misuse(Op::Acquire(1), keys, own).is_some()
            || self.desk.rule_keys(Op::Acquire(1), keys, own).is_some()
    }

    /// Whether it costs more than a policy's capacity, or nothing.
    pub(crate) fn cannot_or_need_not_wait(&self) -> bool {
        let mut costs = false;
        // A ban costs nothing by itself, and a shadow rejects nothing.
        let live = |bound: &&Bound| bound.part() == Part::Live;
        for bound in self.desk.policies.iter().filter(live) {
            let policy = &bound.policy;
            if self.desk.key_of(bound, &self.keys).is_none() {
                continue;
            }
            let own = self.desk.cost_in_call(bound, Some(&self.own));
            let cost = own.unwrap_or_else(|| policy.plain_cost());
            let quota = self.own.quota(policy.name());
            let tier = quota.and_then(|quota| self.desk.tier(bound, quota));
            let limit = tier.as_ref().map_or(&bound.limit, |tier| &tier.limit);
            if cost > limit.rule().capacity() {
                return true;
            }
            costs |= cost > 0;
        }
        !costs
    }

    /// Whether it retries after an error of the store, and is not rejected for it.
    pub(crate) fn retries_after(&self, error: &StoreError) -> bool {
        let policies = self.desk.policies.iter();
        let named = policies.filter(|bound| self.desk.key_of(bound, &self.keys).is_some());
        self.desk.failure_action(named, error, true) == FailureAction::Wait
    }

    /// Whether an in-flight limit is among the policies that rejected it.
    pub(crate) fn waits_for_permit(&self, rejected: &Decision) -> bool {
        waits(rejected).any(|counted| self.desk.bound(counted.policy).is_permit())
    }

    /// The longest wait of the other policies.
    pub(crate) fn retry_delay(&self, rejected: &Decision) -> Duration {
        let timed = waits(rejected).filter(|c| !self.desk.bound(c.policy).is_permit());
        let timed =
            timed.filter_map(
                |counted| match counted.status(&*rejected.books).retry_after {
                    RetryAfter::In(wait) => Some(wait),
                    RetryAfter::Now | RetryAfter::Unknown | RetryAfter::Never => None,
                },
            );
        timed.max().unwrap_or_default()
    }

    /// Whether the remaining units after a call for several requests include their charges.
    pub(crate) fn is_charged_on_arrival(&self, policy: u32) -> bool {
        self.desk.bound(policy).policy.mode() != CounterMode::Check
    }
}

/// The policies that a rejected request waits for.
fn waits(rejected: &Decision) -> impl Iterator<Item = &Counted> {
    let enforced = rejected.counted.iter().filter(|item| !item.is_shadow());
    enforced.filter(|counted| {
        counted.cost > 0 && counted.status(&*rejected.books).retry_after != RetryAfter::Now
    })
}

/// Awaits a decision. Dropping the future leaves it pending, to be awaited again.
pub(crate) async fn answer(pending: &mut Pending) -> Decision {
    poll_fn(|cx| Pin::new(&mut *pending).poll(cx)).await
}
