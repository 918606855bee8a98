//! A request of [`Limiter::wait`](crate::Limiter::wait).

use std::{ops::ControlFlow, ptr, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    check::CheckOverrides,
    core::LimiterRef,
    decide::{DecisionBuilder, Entries, MaybePending},
    decision::{Decision, DecisionKind},
    entry::{PolicyEntry, PolicyRole},
    fallback::FailureAction,
    keys::Keys,
    mode::Mode,
    overrides::OverridesInForce,
    quota_lookup::QuotaLookup,
    wait_queues::QueueKey,
};
use crate::{
    error::StoreError,
    quota::Quota,
    store::{CounterMode, Op},
    strategy::{ChargeReceipt, RetryAfter},
};

/// A call that may wait, under the policies that were in force when it was resolved.
pub(crate) struct WaitRequest {
    pub(crate) limiter: Arc<LimiterRef>,
    keys: Keys,
    overrides: CheckOverrides,
    /// What operators had set for its keys.
    in_force: OverridesInForce,
    /// When it was resolved.
    resolved_at: Instant,
    /// One for each policy that applies. Each attempt has copies of them.
    entries: Entries,
}

impl WaitRequest {
    /// Evaluates a call, once for as long as it waits under these policies. Returns the quotas to look up as well; the decision if
    /// it needs no store.
    pub(crate) fn resolve(
        limiter: Arc<LimiterRef>,
        keys: Keys,
        overrides: CheckOverrides,
    ) -> ControlFlow<Decision, (Self, Vec<QuotaLookup>)> {
        let (mut builder, resolved_at) = (DecisionBuilder::check(), Instant::now());
        // Before they are applied: a change in between is found later.
        let in_force = limiter.overrides_of_call(&keys);
        let selected = limiter.select_policies_of_call(&mut builder, &keys, Some(&overrides));
        let Some(lookups) = selected else {
            return ControlFlow::Break(builder.finish(limiter));
        };
        let request = Self {
            limiter,
            keys,
            overrides,
            in_force,
            resolved_at,
            entries: builder.entries,
        };
        ControlFlow::Continue((request, lookups))
    }

    /// Sets the quotas that were looked up.
    pub(crate) fn set_quotas(&mut self, quotas: Vec<(usize, Quota)>) {
        self.limiter.set_quotas(&mut self.entries, quotas);
    }

    /// Whether other overrides are in force for its keys now, so that it has to be resolved again.
    pub(crate) fn is_outdated(&self) -> bool {
        self.limiter.overrides_of_call(&self.keys).ids != self.in_force.ids
    }

    /// When the first of the overrides for its keys ends.
    pub(crate) fn override_end(&self) -> Option<Instant> {
        // A moment later, when it has ended.
        let ends_in = self.in_force.ends_in? + Duration::from_millis(1);
        self.resolved_at.checked_add(ends_in)
    }

    /// Whether both can be one call of the store, given equal keys; so can a request and itself.
    pub(crate) fn is_mergeable_with(&self, other: &Self) -> bool {
        if ptr::eq(self, other) {
            return true;
        }
        let (a, b) = (&self.overrides, &other.overrides);
        // Access lists may decide differently by the address or the request's head.
        let is_listed_alike = self.limiter.lists.is_none()
            || a.address == b.address && a.parts.is_none() && b.parts.is_none();
        let quota_of = |entry: &PolicyEntry| entry.quota_override.as_ref().map(|own| own.quota);
        let mut both = self.entries.iter().zip(&other.entries);
        is_listed_alike
            && self.entries.len() == other.entries.len()
            && both.all(|(own, other)| {
                let is_permit = self.limiter.bound(own.policy).is_permit();
                own.policy == other.policy
                    && own.key == other.key
                    && own.cost == other.cost
                    && quota_of(own) == quota_of(other)
                    && (is_permit || own.caller == other.caller)
            })
    }

    /// The keys by policy.
    pub(crate) fn queue_key(&self) -> QueueKey {
        let keys = self.entries.iter().map(|entry| (entry.policy, entry.key));
        QueueKey {
            generation: self.limiter.generation,
            keys: keys.collect(),
            overrides: self.in_force.ids.clone(),
        }
    }

    /// Whether several requests can be one call: not with permits, which are distinct, nor where rejections are charged, since the
    /// waiters behind the first must not be rejected.
    pub(crate) fn can_batch(&self) -> bool {
        let mut policies = self.limiter.policies.iter();
        policies.all(|bound| {
            !bound.is_permit()
                && !matches!(bound.policy.counter_mode(), CounterMode::ChargeRejectedToo)
        })
    }

    /// Calls the store for `n` requests that keep waiting if they are rejected.
    pub(crate) fn check(&self, n: u32) -> MaybePending {
        self.attempt(DecisionBuilder::new(Op::Acquire(n), Mode::WAIT))
    }

    /// Calls the store once, without a queue.
    pub(crate) async fn check_once(&self) -> Decision {
        let builder = DecisionBuilder::new(Op::Acquire(1), Mode::WAIT_ONCE);
        self.attempt(builder).await
    }

    /// An attempt, unless the request is on an access list by now.
    fn attempt(&self, mut builder: DecisionBuilder) -> MaybePending {
        let limiter = self.limiter.clone();
        if let Some(early) = limiter.list_check_call(builder.op, &self.keys, Some(&self.overrides))
        {
            limiter.apply_early(&mut builder, early);
            return MaybePending::Ready(Some(builder.finish(limiter)));
        }
        builder.entries = self.entries.iter().map(|entry| self.fresh(entry)).collect();
        limiter.decide_unreported(builder)
    }

    /// A copy of an entry that has charged nothing. A permit has another caller in each attempt, since the refund of one that has
    /// timed out names its caller.
    fn fresh(&self, entry: &PolicyEntry) -> PolicyEntry {
        let mut fresh = entry.with_receipts(ChargeReceipt::NONE.into());
        let bound = self.limiter.bound(entry.policy);
        if bound.is_permit() {
            fresh.caller = bound.caller_key(|| None);
        }
        fresh
    }

    /// Whether it costs more than a policy's capacity, or nothing.
    pub(crate) fn cannot_or_need_not_wait(&self) -> bool {
        // A ban costs nothing by itself, and a shadow rejects nothing.
        let mut live = self
            .entries
            .iter()
            .filter(|entry| entry.role == PolicyRole::Live);
        let is_too_large =
            |entry: &PolicyEntry| entry.cost > self.limiter.limit(entry).info().capacity;
        live.clone().any(is_too_large) || live.all(|entry| entry.cost == 0)
    }

    /// Whether it retries after an error of the store, and is not rejected for it.
    pub(crate) fn retries_after(&self, error: &StoreError) -> bool {
        let policies = self
            .entries
            .iter()
            .map(|entry| self.limiter.bound(entry.policy));
        self.limiter.failure_action(policies, error, true) == FailureAction::Wait
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

    /// The decision of request `i` of `k` that were admitted together.
    pub(crate) fn share_of(&self, whole: &Decision, i: u64, k: u64) -> Decision {
        let entries = whole.entries.iter().map(|entry| {
            let units = entry.receipts.first().remaining;
            let share = if entry.is_shadow() { units } else { units / k };
            entry.with_receipts(entry.receipts.split(share))
        });
        let mut part = whole.with_entries(entries);
        part.admitted = whole.admitted.min(1);
        for entry in &mut part.entries {
            if entry.is_shadow() {
                entry.split_shadow_share(&part.limiter, i);
                continue;
            }
            if i + 1 < k {
                // When this one was admitted, the units of those after it were still available.
                let policy = &self.limiter.bound(entry.policy).policy;
                let later = match policy.counter_mode() {
                    CounterMode::Check => 0,
                    _ => entry.units().of(k - 1 - i),
                };
                entry.update_status(&part.limiter, |status| {
                    status.retry_after = RetryAfter::Now;
                    status.remaining = status.remaining.saturating_add(later);
                });
            }
        }
        part
    }
}

/// The policies that a rejected request waits for.
fn waits(rejected: &Decision) -> impl Iterator<Item = &PolicyEntry> {
    let enforced = rejected.entries.iter().filter(|entry| !entry.is_shadow());
    enforced.filter(|entry| entry.rejects(&rejected.limiter))
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
        let is_counting = |entry: &&PolicyEntry| {
            entry.role == PolicyRole::Ban
                && !self.limiter.bound(entry.policy).policy.is_block_list()
        };
        let mut builder = DecisionBuilder::new(Op::ForceAcquire, Mode::BAN_COUNT);
        let bans = self.entries.iter().filter(is_counting);
        builder.entries.extend(bans.map(|ban| self.fresh(ban)));
        if is_banned || builder.entries.is_empty() {
            return;
        }
        let counted = self.limiter.clone().decide_unreported(builder).await;
        let banned = counted.entries.into_iter();
        let banned =
            banned.filter(|entry| entry.status(&counted.limiter).retry_after != RetryAfter::Now);
        let shadows = rejected.entries.partition_point(|entry| !entry.is_shadow());
        rejected.entries.insert_many(shadows, banned);
    }
}
