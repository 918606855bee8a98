//! `Limiter::wait`: requests that wait for their turn in place of being rejected.
//!
//! Requests with the same keys form a queue (`wait_queue`). The first one calls the store, for itself and the requests behind it that
//! can be merged, and sleeps until a retry can succeed. When it leaves, the next one goes on.

use std::{
    fmt,
    future::{Future, IntoFuture},
    net::IpAddr,
    ops::ControlFlow,
    pin::Pin,
    ptr,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use tokio::{task::coop::poll_proceed, time::Instant};

use super::{
    Limiter,
    admission::Admission,
    check::CheckSettings,
    core::LimiterRef,
    decide::{DecisionBuilder, Entries, MaybePending},
    decision::{Decision, DecisionKind},
    entry::{PolicyEntry, PolicyRole},
    fallback::FailureAction,
    keys::Keys,
    mode::Mode,
    overrides::OverridesInForce,
    rejected::Rejected,
    report_decision::WaitReport,
    wait_queue::{Place, QueueKey, WaiterLimits},
};
use crate::{
    error::StoreError,
    quota::Quota,
    runtime::{Timer, runtime_with_timers},
    store::{CounterMode, Op},
    strategy::{ChargeReceipt, RetryAfter},
    sync::ReplaceableValue,
};

/// Default bound of the requests that wait for the same keys.
pub(crate) const DEFAULT_MAX_WAITERS: usize = 1_024;

/// First pause between calls where the time of a retry is unknown: a permit is missing, the store failed, or units were refunded.
/// Each further pause is twice as long.
const MIN_POLL: Duration = Duration::from_millis(5);

/// Upper bound of these pauses.
const MAX_POLL: Duration = Duration::from_millis(250);

/// How long past its timeout a request waits for the first one's call of the store. The timeouts of most stores are shorter.
const MAX_OVERDUE: Duration = Duration::from_secs(1);

/// A request that waits for its turn, from [`Limiter::wait`](crate::Limiter::wait). It joins the queue when it is awaited.
#[must_use = "nothing is waited for until this is awaited"]
#[derive(Clone)]
pub struct Wait {
    limiter: Limiter,
    keys: Keys,
    settings: CheckSettings,
    timeout: Duration,
    max_ahead: usize,
}

impl Wait {
    pub(crate) fn new(limiter: Limiter, keys: Keys, timeout: Duration) -> Self {
        Self {
            keys,
            settings: CheckSettings::default(),
            limiter,
            timeout,
            max_ahead: DEFAULT_MAX_WAITERS,
        }
    }

    /// Sets the length of the queue: the request is rejected at once if `most` requests wait for the same keys already.
    /// Default: 1,024. With 0 no request waits.
    pub fn queue(mut self, most: usize) -> Self {
        self.max_ahead = most;
        self
    }

    /// Sets the cost under every policy to `units`: see [`Check::cost`](crate::limiter::Check::cost).
    pub fn cost(mut self, units: u64) -> Self {
        self.settings.cost = Some(units);
        self
    }

    /// Sets the cost under the policy of that name: see [`Check::cost_for`](crate::limiter::Check::cost_for).
    pub fn cost_for(mut self, policy: impl Into<String>, units: u64) -> Self {
        self.settings.costs.push((policy.into(), units));
        self
    }

    /// Sets the head of the request that the call is for: see [`Check::parts`](crate::limiter::Check::parts). The policies evaluate it
    /// once, before it waits, and again if the limiter is [reconfigured](Limiter::reconfigure) meanwhile.
    pub fn parts(mut self, parts: &Parts) -> Self {
        self.settings.parts = Some(Arc::new(parts.clone()));
        self
    }

    /// Sets the client's address for address lists: see [`Check::address`](crate::limiter::Check::address).
    pub fn address(mut self, address: IpAddr) -> Self {
        self.settings.address = Some(address);
        self
    }

    /// Sets the quota under the policy of that name: see [`Check::quota_for`](crate::limiter::Check::quota_for).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.settings.quotas.push((policy.into(), quota));
        self
    }

    async fn decide(self) -> Decision {
        let report = WaitReport::begin(&self.limiter);
        let (limiter, decision) = self.wait_for_decision().await;
        if let Some(report) = report {
            report.finish(&limiter, &decision);
        }
        decision
    }

    /// Returns the decision, and the policies under which it was made.
    async fn wait_for_decision(self) -> (Arc<LimiterRef>, Decision) {
        let deadline = Instant::now().checked_add(self.timeout);
        // Kept until the request has joined the next queue, so that the requests behind it join later.
        let (mut last_place, mut has_waited) = (None, false);
        loop {
            let limiter = self.limiter.local_ref();
            let (keys, settings) = (self.keys.clone(), self.settings.clone());
            let request = match WaitRequest::resolve(limiter.clone(), keys, settings) {
                ControlFlow::Continue(request) => Arc::new(request),
                ControlFlow::Break(decision) => return (limiter, decision),
            };
            let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
            // A late request does not wait again for each time that policies are replaced.
            if request.cannot_or_need_not_wait() || is_late && has_waited {
                drop(last_place);
                return (limiter, request.check_once().await);
            }
            let limits = WaiterLimits {
                request: request.clone(),
                max_ahead: self.max_ahead,
                deadline,
            };
            let joined = Place::join(limits.clone());
            drop(last_place.take());
            let decided = match joined {
                ControlFlow::Continue((place, is_behind)) => {
                    wait_in_queue(place, is_behind, &limits).await
                }
                ControlFlow::Break(decision) => WaitOutcome::Decided(decision),
            };
            match decided {
                // An admission needs no record.
                WaitOutcome::Decided(decision) if decision.is_admitted() => {
                    return (limiter, decision);
                }
                WaitOutcome::Decided(decision) => {
                    return (limiter, request.finish(decision).await);
                }
                WaitOutcome::Overdue if !request.is_outdated() => {
                    return (limiter, request.check_once().await);
                }
                WaitOutcome::Overdue => {}
                // It is decided, and waits, under the new policies and overrides.
                WaitOutcome::PoliciesReplaced(place) => last_place = Some(place),
            }
            has_waited = true;
        }
    }
}

/// How a request's time in a queue ended.
enum WaitOutcome {
    /// It was admitted, or finally rejected.
    Decided(Decision),
    /// The first one's task is not polled, such as on a runtime that stands still: the requests ahead were not decided long after its
    /// timeout, or the last rejection at its timeout is one under the old policies or overrides.
    Overdue,
    /// The limiter has other policies, or the keys have other overrides, so other queues.
    PoliciesReplaced(Place),
}

/// Waits until no request is ahead, and then calls the store and sleeps, until the request is admitted or finally rejected, or the
/// policies were replaced.
async fn wait_in_queue(place: Place, is_behind: bool, limits: &WaiterLimits) -> WaitOutcome {
    use WaitOutcome::Decided;

    let (limiter, deadline) = (&limits.request.limiter, limits.deadline);
    let is_outdated = || limits.request.is_outdated();
    let mut known = None;
    if is_behind {
        if runtime_with_timers().is_none() {
            return Decided(limiter.clone().reject_without_runtime());
        }
        let overdue = deadline.and_then(|deadline| deadline.checked_add(MAX_OVERDUE));
        let turn = tokio::select! {
            biased;
            turn = place.until_first() => turn,
            () = Timer::at(deadline) => match place.last_rejection() {
                // Under the old policies or overrides.
                Some(_) if is_outdated() => return WaitOutcome::Overdue,
                Some(decision) => return Decided(decision),
                // Calls of the store have a timeout, so there soon is a result.
                None => tokio::select! {
                    biased;
                    turn = place.until_first() => turn,
                    () = Timer::at(overdue) => return WaitOutcome::Overdue,
                },
            },
        };
        if let ControlFlow::Break(decision) = turn {
            return Decided(decision);
        }
        known = place.applicable_rejection();
    }
    let (mut backoff, mut failing) = (PollBackoff(MAX_POLL), false);
    loop {
        if is_outdated() && !place.has_call() {
            return WaitOutcome::PoliciesReplaced(place);
        }
        let rejection = match known.take() {
            Some(rejection) => rejection,
            None => match place.call_store().await {
                Ok(Some(decision)) => return Decided(decision),
                Ok(None) => continue,
                // It says how long to wait under the old policies or overrides.
                Err(_) if is_outdated() => continue,
                Err(rejection) => rejection,
            },
        };
        let now = Instant::now();
        if limits.max_ahead == 0 || rejection.is_past_deadline(deadline, now) {
            return Decided(rejection.at(now));
        }
        if runtime_with_timers().is_none() {
            return Decided(limiter.clone().reject_without_runtime());
        }
        if rejection.failed && !failing {
            backoff = PollBackoff(MIN_POLL);
        }
        failing = rejection.failed;
        let next = if rejection.needs_polling {
            rejection.retry_at.max(now + backoff.next())
        } else if backoff.is_at_max() {
            rejection.retry_at
        } else {
            rejection.retry_at.min(now + backoff.next())
        };
        let next = deadline.map_or(next, |deadline| next.min(deadline));
        place.reject_hopeless(&rejection);
        tokio::select! {
            biased;
            // A refund may still be in flight to the store.
            () = place.notified() => backoff = PollBackoff(MIN_POLL),
            () = Timer::at(next) => {}
        }
    }
}

/// Growing pauses between calls where the time of a retry is unknown.
struct PollBackoff(Duration);

impl PollBackoff {
    fn is_at_max(&self) -> bool {
        self.0 >= MAX_POLL
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(MAX_POLL);
        pause
    }
}

impl IntoFuture for Wait {
    type Output = Result<Admission, Rejected>;
    type IntoFuture = WaitFuture;

    fn into_future(self) -> WaitFuture {
        WaitFuture(Some(Box::pin(self.decide())))
    }
}

/// The future of a [`Wait`].
///
/// It takes part in tokio's [cooperative scheduling](tokio::task::coop), also if the request is admitted at once. Dropping it
/// leaves the queue, and a charge that was made for it is refunded.
#[must_use = "futures do nothing unless polled"]
pub struct WaitFuture(Option<Pin<Box<dyn Future<Output = Decision> + Send>>>);

impl Future for WaitFuture {
    type Output = Result<Admission, Rejected>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The future was polled after it was ready.
        let Some(decision) = &mut self.0 else {
            return Poll::Pending;
        };
        let budget = ready!(poll_proceed(cx));
        let decision = ready!(decision.as_mut().poll(cx));
        budget.made_progress();
        self.0 = None;
        Poll::Ready(decision.into_result())
    }
}

impl fmt::Debug for WaitFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitFuture").finish_non_exhaustive()
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("keys", &self.keys)
            .field("settings", &self.settings)
            .field("timeout", &self.timeout)
            .field("queue", &self.max_ahead)
            .finish()
    }
}

/// A call that may wait, under the policies that were in force when it was resolved.
pub(crate) struct WaitRequest {
    pub(crate) limiter: Arc<LimiterRef>,
    keys: Keys,
    settings: CheckSettings,
    /// What operators had set for its keys.
    in_force: OverridesInForce,
    /// When it was resolved.
    resolved_at: Instant,
    /// One for each policy that applies. Each attempt has copies of them.
    entries: Entries,
}

impl WaitRequest {
    /// Evaluates a call, once for as long as it waits under these policies. Returns the decision if it needs no store.
    pub(crate) fn resolve(
        limiter: Arc<LimiterRef>,
        keys: Keys,
        settings: CheckSettings,
    ) -> ControlFlow<Decision, Self> {
        let (mut builder, resolved_at) = (DecisionBuilder::check(), Instant::now());
        // Before they are applied: a change in between is found later.
        let in_force = limiter.overrides_of_call(&keys);
        if !limiter.select_policies_of_call(&mut builder, &keys, Some(&settings)) {
            return ControlFlow::Break(builder.finish(limiter));
        }
        ControlFlow::Continue(Self {
            limiter,
            keys,
            settings,
            in_force,
            resolved_at,
            entries: builder.entries,
        })
    }

    /// Whether there are other policies now, or other overrides for its keys, so that it has to be resolved again.
    fn is_outdated(&self) -> bool {
        self.limiter.replaced_flag().is_set()
            || self.limiter.overrides_of_call(&self.keys).ids != self.in_force.ids
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
        let (a, b) = (&self.settings, &other.settings);
        // Access lists may decide differently by the address or the request's head.
        let is_listed_alike = self.limiter.lists.is_none()
            || a.address == b.address && a.parts.is_none() && b.parts.is_none();
        let quota_of = |entry: &PolicyEntry| entry.other_quota.as_ref().map(|own| own.quota);
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
    async fn check_once(&self) -> Decision {
        let builder = DecisionBuilder::new(Op::Acquire(1), Mode::WAIT_ONCE);
        let decision = self.attempt(builder).await;
        decision.permit.wake_on_release(&self.queue_key());
        decision
    }

    /// An attempt, unless the request is on an access list by now.
    fn attempt(&self, mut builder: DecisionBuilder) -> MaybePending {
        let limiter = self.limiter.clone();
        if let Some(early) = limiter.list_check_call(builder.op, &self.keys, Some(&self.settings)) {
            limiter.apply_early(&mut builder, early);
            return MaybePending::Ready(Some(builder.finish(limiter)));
        }
        builder.entries = self.entries.iter().map(|entry| self.fresh(entry)).collect();
        limiter.decide_unreported(builder)
    }

    /// A copy of an entry that has charged nothing. A permit has another caller in each attempt, since the refund of one that has
    /// timed out names its caller.
    fn fresh(&self, entry: &PolicyEntry) -> PolicyEntry {
        let mut fresh = entry.with_receipts(ChargeReceipt::EMPTY.into());
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
    /// Records a final rejection.
    async fn finish(&self, mut decision: Decision) -> Decision {
        if matches!(decision.kind, DecisionKind::Rejected) {
            self.count_rejection_for_bans(&mut decision).await;
        }
        self.limiter
            .log_rejection(&decision.kind, &decision.entries);
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
        let mut builder = DecisionBuilder::new(Op::Adjust, Mode::BAN_COUNT);
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
