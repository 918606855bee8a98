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
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use tokio::{
    task::coop::poll_proceed,
    time::{Instant, sleep_until},
};

use super::{
    Limiter,
    admission::Admission,
    check::CheckOverrides,
    core::LimiterRef,
    decision::Decision,
    keys::Keys,
    quota_lookup::run_lookups,
    rejected::Rejected,
    report_decision::WaitReport,
    wait_queue::{Place, WaiterLimits},
    wait_request::WaitRequest,
};
use crate::{quota::Quota, runtime::runtime_with_timers, sync::ReplaceableValue};

/// Default bound of the requests that wait for the same keys.
pub(crate) const DEFAULT_MAX_WAITERS: usize = 1_024;

/// First pause between calls where the time of a retry is unknown: a permit is missing, the store failed, or units were refunded.
/// Each further pause is twice as long.
const MIN_POLL: Duration = Duration::from_millis(5);

/// Upper bound of these pauses.
const MAX_POLL: Duration = Duration::from_millis(250);

/// A request that waits for its turn, from [`Limiter::wait`](crate::Limiter::wait). It joins the queue when it is awaited.
#[must_use = "nothing is waited for until this is awaited"]
#[derive(Clone)]
pub struct Wait {
    limiter: Limiter,
    keys: Keys,
    overrides: CheckOverrides,
    timeout: Duration,
    max_ahead: usize,
}

impl Wait {
    pub(crate) fn new(limiter: Limiter, keys: Keys, timeout: Duration) -> Self {
        Self {
            keys,
            overrides: CheckOverrides::default(),
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
        self.overrides.cost = Some(units);
        self
    }

    /// Sets the cost under the policy of that name: see [`Check::cost_for`](crate::limiter::Check::cost_for).
    pub fn cost_for(mut self, policy: impl Into<String>, units: u64) -> Self {
        self.overrides.costs.push((policy.into(), units));
        self
    }

    /// Sets the head of the request that the call is for: see [`Check::parts`](crate::limiter::Check::parts). The policies evaluate it
    /// once, before it waits, and again if the limiter is [reconfigured](Limiter::reconfigure) meanwhile.
    pub fn parts(mut self, parts: &Parts) -> Self {
        self.overrides.parts = Some(Arc::new(parts.clone()));
        self
    }

    /// Sets the client's address for address lists: see [`Check::address`](crate::limiter::Check::address).
    pub fn address(mut self, address: IpAddr) -> Self {
        self.overrides.address = Some(address);
        self
    }

    /// Sets the quota under the policy of that name: see [`Check::quota_for`](crate::limiter::Check::quota_for).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.overrides.quotas.push((policy.into(), quota));
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
        let mut last_place = None;
        loop {
            let limiter = self.limiter.local_ref();
            let (keys, overrides) = (self.keys.clone(), self.overrides.clone());
            let (mut request, lookups) =
                match WaitRequest::resolve(limiter.clone(), keys, overrides) {
                    ControlFlow::Continue(resolved) => resolved,
                    ControlFlow::Break(decision) => return (limiter, decision),
                };
            if !lookups.is_empty() {
                // Nothing waits for a lookup of another request.
                last_place = None;
                request.set_quotas(run_lookups(lookups).await);
            }
            let request = Arc::new(request);
            if request.cannot_or_need_not_wait() {
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
                WaitOutcome::Decided(decision) => {
                    return (limiter, request.finish(decision).await);
                }
                // It is decided, and waits, under the new policies and overrides.
                WaitOutcome::PoliciesReplaced(place) => last_place = Some(place),
            }
        }
    }
}

/// How a request's time in a queue ended.
enum WaitOutcome {
    /// It was admitted, or finally rejected.
    Decided(Decision),
    /// The limiter has other policies, or the keys have other overrides, so other queues.
    PoliciesReplaced(Place),
}

/// Waits until no request is ahead, and then calls the store and sleeps, until the request is admitted or finally rejected, or the
/// policies were replaced.
async fn wait_in_queue(place: Place, is_behind: bool, limits: &WaiterLimits) -> WaitOutcome {
    use WaitOutcome::Decided;

    let (limiter, deadline) = (&limits.request.limiter, limits.deadline);
    let is_outdated = || limiter.replaced_flag().is_set() || limits.request.is_outdated();
    let mut known = None;
    if is_behind {
        if runtime_with_timers().is_none() {
            return Decided(limiter.clone().reject_without_runtime());
        }
        let turn = tokio::select! {
            biased;
            turn = place.until_first() => turn,
            () = until(deadline) => match place.last_rejection() {
                Some(decision) => return Decided(decision),
                // There is no result yet, but soon will be: calls of the store have a timeout.
                None => place.until_first().await,
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
            () = sleep_until(next) => {}
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
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
            .field("overrides", &self.overrides)
            .field("timeout", &self.timeout)
            .field("queue", &self.max_ahead)
            .finish()
    }
}
