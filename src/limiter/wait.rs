//! `Limiter::wait`: a call that waits for units in place of being rejected.

use std::{
    fmt,
    future::{Future, IntoFuture},
    net::IpAddr,
    ops::ControlFlow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use tokio::{task::coop::poll_proceed, time::Instant};

use super::{
    adjust_call::charge_entries,
    admission::Admission,
    check::CheckOutput,
    current::Limiter,
    decide::{FailureAction, apply, decide, failure_action, log_failure, log_rejection},
    decision::{Decision, DecisionKind},
    entry::Entry,
    evaluate::find_entries,
    keys::Keys,
    policy_set::{PolicyRole, PolicySet},
    rejected::Rejected,
    report::{report, report_cancelled},
    request::{CallSettings, KeySource, LimitRequest, Purpose, RequestHead},
    wait_queues::{
        Attempt, CallCost, Counters, Next, Rejection, WaitCall, WaitError, WaitErrorKind,
    },
};
use crate::{
    error::StoreError, observe::DecisionSource, quota::Quota, strategy::RetryAfter,
    sync::ReplaceableValue,
};

/// Default bound of the calls that wait for the same keys.
pub(crate) const DEFAULT_MAX_WAITERS: usize = 1_024;

/// The shortest wait that a rejection reports, of an attempt that was made a while ago.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);

/// A request that waits for its turn, from [`Limiter::wait`](crate::Limiter::wait). It joins the queue when it is awaited.
#[must_use = "nothing is waited for until this is awaited"]
#[derive(Clone)]
pub struct Wait {
    limiter: Limiter,
    keys: Keys,
    settings: CallSettings,
    timeout: Duration,
    max_waiting: usize,
}

impl Wait {
    pub(super) fn new(limiter: Limiter, keys: Keys, timeout: Duration) -> Self {
        Self {
            keys,
            settings: CallSettings::default(),
            limiter,
            timeout,
            max_waiting: DEFAULT_MAX_WAITERS,
        }
    }

    /// Sets the length of the queue: the request is rejected at once if `most` requests wait for the same keys already.
    /// Default: 1,024. With 0 no request waits.
    pub fn queue(mut self, most: usize) -> Self {
        self.max_waiting = most;
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
    /// for each attempt.
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

    /// Waits until the call is decided, and reports the decision.
    async fn decide(self) -> Decision {
        let mut unreported = Unreported {
            set: Some(self.limiter.policy_set()),
            since: Instant::now(),
        };
        let decision = self.wait().await;
        unreported.set = None;
        report(
            &decision,
            Purpose::LastAttempt,
            Some(unreported.since.elapsed()),
        );
        decision
    }

    async fn wait(&self) -> Decision {
        let resolved = match self.resolve().await {
            ControlFlow::Continue(resolved) => resolved,
            ControlFlow::Break(decided) => return decided,
        };
        let call = WaitCall {
            key: self.keys.queue_key(),
            cost: cost_of(&resolved),
            deadline: Instant::now().checked_add(self.timeout),
            max_waiting: self.max_waiting,
        };
        let queues = &self.limiter.shared.queues;
        let first = async {
            match self.attempt(resolved).await {
                Ok(decided) => Attempt::Done(decided, Next::Admits(0)),
                Err(rejection) => Attempt::Rejected(rejection),
            }
        };
        let attempt = || async {
            let resolved = match self.resolve().await {
                ControlFlow::Continue(resolved) => resolved,
                ControlFlow::Break(decided) => return Attempt::Done(decided, Next::Admits(0)),
            };
            match self.attempt(resolved).await {
                Ok(decided) => {
                    let next = next_of(&decided);
                    Attempt::Done(decided, next)
                }
                Err(rejection) => Attempt::Rejected(rejection),
            }
        };
        match queues.wait(call, first, attempt).await {
            Ok(decision) => decision,
            Err(error) => self.reject(error).await,
        }
    }

    /// Finds the policies that apply now. Breaks if the call is decided without waiting.
    async fn resolve(&self) -> ControlFlow<Decision, Decision> {
        let mut decision = Decision::begin(self.limiter.policy_set());
        if !self.find_entries(&mut decision) {
            return ControlFlow::Break(decision);
        }
        if cannot_or_need_not_wait(&decision) {
            decide_once(&mut decision, Purpose::LastAttempt).await;
            return ControlFlow::Break(decision);
        }
        ControlFlow::Continue(decision)
    }

    /// Attempts once.
    async fn attempt(&self, mut decision: Decision) -> Result<Decision, Rejection<Arc<Decision>>> {
        decide_once(&mut decision, Purpose::Attempt).await;
        match &decision.kind {
            DecisionKind::Admitted => return Ok(decision),
            DecisionKind::Rejected if decision.retry_after() != RetryAfter::Never => {
                let counters = counters(&decision);
                return Err(rejection(decision, counters));
            }
            DecisionKind::StoreFailed(error) => {
                // A failed decision has no entries.
                let mut resolved = Decision::begin(decision.set.clone());
                self.find_entries(&mut resolved);
                if waits_for_store(&resolved.set, &resolved.entries, error) {
                    return Err(rejection(decision, counters(&resolved)));
                }
            }
            _ => {}
        }
        self.count_rejection(&mut decision).await;
        log_rejection(&decision, Purpose::LastAttempt);
        Ok(decision)
    }

    /// The rejection of a call that waits no longer: that of the last attempt, made a while ago.
    async fn reject(&self, error: WaitError<Arc<Decision>>) -> Decision {
        let mut decision = (*error.reason).clone();
        if error.kind == WaitErrorKind::NoTimers {
            let failed = StoreError::NoRuntime("waiting needs the timers of a runtime");
            log_failure(&decision.set, &failed, FailureAction::Reject);
            let kind = DecisionKind::StoreFailed(failed);
            decision.set_without_policies(kind, DecisionSource::NotChecked);
        } else {
            age(&mut decision, error.rejected_at.elapsed());
            self.count_rejection(&mut decision).await;
        }
        log_rejection(&decision, Purpose::LastAttempt);
        decision
    }

    /// Has the bans count a call that is finally rejected. Its attempts were not counted.
    async fn count_rejection(&self, rejected: &mut Decision) {
        let is_banned = rejected
            .entries
            .iter()
            .any(|entry| entry.role == PolicyRole::Ban);
        if is_banned || !matches!(rejected.kind, DecisionKind::Rejected) {
            return;
        }
        let mut bans = Decision::begin(self.limiter.policy_set());
        self.find_entries(&mut bans);
        let set = bans.set.clone();
        bans.entries.retain(|entry| {
            entry.role == PolicyRole::Ban && !set.bound(entry.policy).policy.is_block_list()
        });
        if bans.entries.is_empty() {
            return;
        }
        if let Err(error) = charge_entries(&set, &mut bans.entries, None).await {
            return log_failure(&set, &error, FailureAction::Admit);
        }
        // Under other policies the entries are none of this decision's.
        if Arc::ptr_eq(&set, &rejected.set) {
            let blocking = bans.entries.into_iter();
            let blocking =
                blocking.filter(|entry| entry.status(&set).retry_after != RetryAfter::Now);
            let shadows = rejected.entries.partition_point(|entry| !entry.is_shadow());
            rejected.entries.insert_many(shadows, blocking);
        }
    }

    fn find_entries(&self, decision: &mut Decision) -> bool {
        let head = self.settings.parts.as_deref().map(RequestHead::new);
        let request = LimitRequest {
            purpose: Purpose::LastAttempt,
            keys: KeySource::Call(&self.keys),
            head: head.as_ref(),
            settings: Some(&self.settings),
        };
        find_entries(decision, &request)
    }
}

/// Makes a decision of the store's answer.
async fn decide_once(decision: &mut Decision, purpose: Purpose) {
    if let Some(response) = decide(decision, purpose) {
        let result = response.await;
        apply(decision, purpose, result);
    }
}

/// Whether the request costs more than a quota ever admits, or nothing. A ban costs nothing by itself, and a shadow rejects nothing.
fn cannot_or_need_not_wait(decision: &Decision) -> bool {
    let set = &*decision.set;
    let mut live = decision
        .entries
        .iter()
        .filter(|entry| entry.role == PolicyRole::Live);
    let is_too_large = |entry: &Entry| entry.cost > entry.limit(set).info().capacity;
    // Under a block list alone, calls wait for the end of a block.
    let costs_nothing = live.clone().count() > 0 && live.clone().all(|entry| entry.cost == 0);
    costs_nothing || live.any(is_too_large)
}

/// Whether a call waits for the store, which has failed.
fn waits_for_store(set: &PolicySet, entries: &[Entry], error: &StoreError) -> bool {
    let policies = entries.iter().map(|entry| set.bound(entry.policy));
    failure_action(set, policies, error, true) == FailureAction::Wait
}

/// What a call costs under the policies that apply to it.
fn cost_of(resolved: &Decision) -> CallCost {
    let cost = |entry: &Entry| {
        let quota = entry.quota.as_ref().map(|quota| quota.quota);
        (entry.policy, entry.cost, quota)
    };
    resolved.entries.iter().map(cost).collect()
}

/// A rejection of a call with these entries.
fn rejection(decision: Decision, counters: Counters) -> Rejection<Arc<Decision>> {
    Rejection {
        retry_at: retry_at(&decision),
        counters,
        reason: Arc::new(decision),
    }
}

/// The policies and keys whose units a call needs.
fn counters(decision: &Decision) -> Counters {
    let counters = decision.entries.iter().map(|entry| {
        let policy = decision.set.bound(entry.policy).policy.shared_name();
        (policy, entry.key)
    });
    counters.collect()
}

/// What another call of the same cost would get after an admitted one.
fn next_of(admitted: &Decision) -> Next<Arc<Decision>> {
    if !admitted.is_admitted() {
        return Next::Admits(0);
    }
    let set = &*admitted.set;
    let live = admitted
        .entries
        .iter()
        .filter(|entry| entry.role == PolicyRole::Live);
    let more = live.filter_map(|entry| entry.status(set).remaining.checked_div(entry.cost));
    let more = more.min().unwrap_or(0);
    let waits = matches!(admitted.retry_after(), RetryAfter::In(_));
    if more > 0 || !waits || admitted.source != DecisionSource::Store {
        return Next::Admits(usize::try_from(more).unwrap_or(usize::MAX));
    }
    let mut rejected = admitted.clone();
    rejected.kind = DecisionKind::Rejected;
    rejected.admitted = 0;
    rejected.entries.retain(|entry| !entry.is_shadow());
    for entry in &mut rejected.entries {
        entry.receipt.remaining = 0;
    }
    let counters = counters(admitted);
    Next::Rejects(rejection(rejected, counters))
}

/// When an attempt can succeed; `None` if that is unknown: it waits for permits alone or for the store, or the policies were replaced.
fn retry_at(rejected: &Decision) -> Option<Instant> {
    let set = &*rejected.set;
    if set.replaced_flag().is_set() {
        return None;
    }
    let timed = rejected.entries.iter().filter(|entry| {
        !entry.is_shadow() && entry.rejects(set) && !set.bound(entry.policy).is_permit()
    });
    let waits = timed.filter_map(|entry| entry.status(set).retry_after.duration());
    Instant::now().checked_add(waits.max()?.min(override_end(rejected)))
}

/// The time until the first override of its keys ends, when it is decided anew.
fn override_end(rejected: &Decision) -> Duration {
    let mut first = Duration::MAX;
    for entry in &rejected.entries {
        let overrides = rejected.set.bound(entry.policy).overrides.as_ref();
        let known = entry
            .quota
            .as_ref()
            .and_then(|quota| quota.by_operator.as_ref());
        if let (Some(overrides), Some(known)) = (overrides, known)
            && let Some(ends_in) = overrides.ends_in(known)
        {
            // A moment later, when it has ended.
            first = first.min(ends_in + MIN_RETRY_DELAY);
        }
    }
    first
}

/// Makes the waits of a rejection those of `since` later.
fn age(rejected: &mut Decision, since: Duration) {
    if since.is_zero() || !matches!(rejected.kind, DecisionKind::Rejected) {
        return;
    }
    rejected.source = DecisionSource::RejectionCache;
    let set = &*rejected.set;
    for entry in &mut rejected.entries {
        entry.update_status(set, |status| {
            if let RetryAfter::In(wait) = status.retry_after {
                let left = wait.saturating_sub(since).max(MIN_RETRY_DELAY);
                status.retry_after = RetryAfter::In(left);
            }
            status.reset_after = status.reset_after.saturating_sub(since);
        });
        entry.receipt.charged_at = entry.receipt.charged_at + since;
    }
}

/// A call whose decision is not reported yet. If it is dropped before, it is reported as cancelled.
struct Unreported {
    set: Option<Arc<PolicySet>>,
    since: Instant,
}

impl Drop for Unreported {
    fn drop(&mut self) {
        if let Some(set) = &self.set {
            report_cancelled(set, 1, true, Some(self.since.elapsed()));
        }
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
        Poll::Ready(CheckOutput::from_decision(decision))
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
            .field("queue", &self.max_waiting)
            .finish()
    }
}
