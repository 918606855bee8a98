//! The leader of a queue, which calls the store.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{runtime::Handle, sync::Notify, time::Instant};

use super::{
    core::LimiterCore,
    decide::{MaybePending, PendingDecision},
    decision::{Decision, DecisionKind},
    wait_queue::QueueKey,
    wait_request::{WaitRequest, await_decision},
};
use crate::{store::DecisionSource, strategy::RetryAfter};

/// Upper bound of the requests in one call of the store.
const MAX_BATCH: usize = 1_024;

/// The message that ends a waiter's time in the queue.
pub(crate) enum Wakeup {
    BecomeLeader(Leader),
    Granted(UnclaimedGrant),
    Rejected(Decision),
}

/// The right to call the store for a queue. Dropping it promotes the next waiter.
pub(crate) struct Leader {
    limiter: Arc<LimiterCore>,
    queue_key: QueueKey,
    notify: Arc<Notify>,
    /// The call in flight.
    check: Option<InFlightCheck>,
    retired: bool,
    /// Whether the queue has no waiter left.
    has_no_waiters: bool,
}

/// A call of the store for `n` merged requests.
pub(crate) struct InFlightCheck {
    pub(crate) request: Arc<WaitRequest>,
    n: u32,
    pending: PendingDecision,
}

impl Leader {
    pub(crate) fn new(limiter: Arc<LimiterCore>, queue_key: QueueKey, notify: Arc<Notify>) -> Self {
        Self {
            limiter,
            queue_key,
            notify,
            check: None,
            retired: false,
            has_no_waiters: false,
        }
    }

    pub(crate) fn has_check_in_flight(&self) -> bool {
        self.check.is_some()
    }

    /// The next leader of the same queue, with the call in flight.
    fn successor(&self, notify: Arc<Notify>, check: Option<InFlightCheck>) -> Self {
        let mut next = Self::new(self.limiter.clone(), self.queue_key.clone(), notify);
        next.check = check;
        next
    }

    /// Ends without promoting a waiter; returns the call in flight.
    pub(crate) fn retire(mut self) -> Option<InFlightCheck> {
        self.retired = true;
        self.check.take()
    }

    /// The previous leader's rejection, if it applies to this request too.
    pub(crate) fn previous_rejection(&self, request: &WaitRequest) -> Option<Arc<LastRejection>> {
        let locked = self.limiter.wait_queues.lock();
        let queue = locked.queues.get(&self.queue_key)?;
        let rejection = queue.rejection.as_ref().filter(|_| self.check.is_none())?;
        let is_pending = !rejection.needs_polling && rejection.retry_at > Instant::now();
        let applies = is_pending && rejection.request.is_mergeable_with(request);
        applies.then(|| rejection.clone())
    }

    /// Calls the store for the leader and the waiters next to it that can be merged, and grants them what is admitted. Returns
    /// the decision that ends the leader's waiting, or a rejection to wait for.
    pub(crate) async fn call_store(
        &mut self,
        request: &Arc<WaitRequest>,
    ) -> Result<Decision, Arc<LastRejection>> {
        let check = match self.check.take() {
            Some(check) => self.check.insert(check),
            None => {
                let n = self.batch_size(request);
                match request.check(n) {
                    MaybePending::Ready(decision) => {
                        return self.handle_decision(decision, request, n);
                    }
                    MaybePending::Pending(pending) => self.check.insert(InFlightCheck {
                        request: request.clone(),
                        n,
                        pending,
                    }),
                }
            }
        };
        // If this future is dropped meanwhile, the next leader takes the call over.
        let (n, decision) = (check.n, await_decision(&mut check.pending).await);
        self.check = None;
        self.handle_decision(decision, request, n)
    }

    /// Completes the call in flight of a queue without waiters. What it charges is granted to requests that join meanwhile, or
    /// else refunded: cancelling it would leave the units charged for a moment, and the next request would be rejected for them.
    pub(crate) fn finish_without_waiters(mut self) -> impl Future<Output = ()> + Send {
        // Also if the runtime drops the future without polling it.
        self.has_no_waiters = true;
        async move {
            let Some(check) = &mut self.check else {
                return;
            };
            let (request, n) = (check.request.clone(), check.n);
            let decision = await_decision(&mut check.pending).await;
            self.check = None;
            match self.handle_decision(decision, &request, n) {
                Ok(first) => self.grant_waiters(&request, vec![first]),
                Err(rejection) => self.publish_rejection(rejection),
            }
        }
    }

    /// The number of requests of the next call, the leader's included. From here on the last rejection is out of date.
    fn batch_size(&self, request: &WaitRequest) -> u32 {
        let mut locked = self.limiter.wait_queues.lock();
        let Some(queue) = locked.queues.get_mut(&self.queue_key) else {
            return 1;
        };
        queue.check_in_flight = true;
        if !request.can_batch() {
            return 1;
        }
        let behind = queue.waiters.values().take(MAX_BATCH - 1);
        let same = behind.take_while(|waiter| waiter.limits.request.is_mergeable_with(request));
        1 + same.count() as u32
    }

    /// Applies the decision on `n` requests. If it admits some, grants the waiters theirs, and publishes the rejection of the
    /// rest. Returns the leader's decision, or a rejection to wait for.
    fn handle_decision(
        &self,
        decision: Decision,
        request: &Arc<WaitRequest>,
        n: u32,
    ) -> Result<Decision, Arc<LastRejection>> {
        let exhausted = matches!(decision.kind, DecisionKind::Rejected);
        let failed = match &decision.kind {
            DecisionKind::StoreFailed(error) => request.retries_after(error),
            _ => false,
        };
        if failed || exhausted && decision.retry_after() != RetryAfter::Never {
            return Err(LastRejection::new(decision, request.clone()));
        }
        // Where the store was not called, or failed, all requests get the same decision.
        let n = u64::from(n);
        let k = match decision.admitted {
            0 => n,
            admitted => admitted,
        };
        if k < n {
            self.publish_rejection(LastRejection::after(&decision, request.clone()));
        }
        let first = self.split_share(&decision, request, 0, k);
        let others = (1..k).map(|i| self.split_share(&decision, request, i, k));
        self.grant_waiters(request, others.collect());
        Ok(first)
    }

    /// The decision of request `i` of `k` that were admitted together.
    fn split_share(&self, whole: &Decision, request: &WaitRequest, i: u64, k: u64) -> Decision {
        let entry = whole.entries.iter().map(|entry| {
            let units = entry.receipts.first().remaining;
            let share = if entry.is_shadow() { units } else { units / k };
            entry.with_receipts(entry.receipts.split(share))
        });
        let mut part = whole.with_entries(entry);
        part.admitted = whole.admitted.min(1);
        for entry in &mut part.entries {
            if entry.is_shadow() {
                entry.split_shadow_share(&part.limiter, i);
                continue;
            }
            if i + 1 < k {
                // When this one was admitted, the units of those after it were still available.
                let later = if request.is_charged_on_arrival(entry.policy) {
                    entry.units().of(k - 1 - i)
                } else {
                    0
                };
                entry.update_status(&part.limiter, |status| {
                    status.retry_after = RetryAfter::Now;
                    status.remaining = status.remaining.saturating_add(later);
                });
            }
        }
        part.permit.wake_on_release(&self.queue_key);
        part
    }

    /// Sends the decisions to the waiters next to the leader. The charges of waiters that have left are refunded.
    fn grant_waiters(&self, request: &WaitRequest, decisions: Vec<Decision>) {
        let mut next = Vec::with_capacity(decisions.len());
        let mut locked = self.limiter.wait_queues.lock();
        if let Some(queue) = locked.queues.get_mut(&self.queue_key) {
            while next.len() < decisions.len() {
                match queue.waiters.first_entry() {
                    Some(waiter) if waiter.get().limits.request.is_mergeable_with(request) => {
                        next.push(waiter.remove());
                    }
                    _ => break,
                }
            }
        }
        drop(locked);
        let mut next = next.into_iter();
        for decision in decisions {
            let wakeup = if decision.is_admitted() {
                let (limiter, queue_key) = (self.limiter.clone(), self.queue_key.clone());
                Wakeup::Granted(UnclaimedGrant::new(limiter, queue_key, decision))
            } else {
                Wakeup::Rejected(decision)
            };
            if let Some(waiter) = next.next() {
                // Returned and dropped if the waiter is leaving at this moment.
                let _ = waiter.wakeup.send(wakeup);
            }
        }
    }

    /// Publishes a rejection to requests that join, and to the next leader.
    pub(crate) fn publish_rejection(&self, rejection: Arc<LastRejection>) {
        let mut locked = self.limiter.wait_queues.lock();
        let before = locked.queues.get_mut(&self.queue_key).and_then(|queue| {
            queue.check_in_flight = false;
            queue.rejection.replace(rejection)
        });
        drop(locked);
        drop(before);
    }

    /// Keeps leading after a rejection, and rejects the waiters that cannot succeed.
    pub(crate) fn keep_leading(&self, rejection: Arc<LastRejection>) {
        self.publish_rejection(rejection.clone());
        let now = Instant::now();
        let mut rejected = Vec::new();
        let mut locked = self.limiter.wait_queues.lock();
        if let Some(queue) = locked.queues.get_mut(&self.queue_key) {
            let mut ahead = 1;
            let hopeless = queue.waiters.iter().filter(|(_, waiter)| {
                let hopeless = waiter.limits.cannot_succeed(ahead, &rejection, now);
                ahead += usize::from(!hopeless);
                hopeless
            });
            let hopeless: Vec<u64> = hopeless.map(|(number, _)| *number).collect();
            rejected.extend(
                hopeless
                    .iter()
                    .filter_map(|number| queue.waiters.remove(number)),
            );
        }
        drop(locked);
        for waiter in rejected {
            // Fails if the waiter is leaving at this moment.
            let _ = waiter.wakeup.send(Wakeup::Rejected(rejection.at(now)));
        }
    }

    /// Waits until units or permits were refunded.
    pub(crate) async fn notified(&mut self) {
        self.notify.notified().await;
    }
}

impl Leader {
    /// Promotes the next waiter to leader, and hands it the call in flight if their requests can be merged. Without a waiter the
    /// queue is closed, once that call has completed.
    fn promote_next(&self, mut check: Option<InFlightCheck>) {
        let queue_key = &self.queue_key;
        loop {
            let mut locked = self.limiter.wait_queues.lock();
            let Some(queue) = locked.queues.get_mut(queue_key) else {
                return;
            };
            let notify = queue.notify.clone();
            let Some((_, next)) = queue.waiters.pop_first() else {
                if check.is_some()
                    && let Ok(runtime) = Handle::try_current()
                {
                    queue.is_abandoned = true;
                    drop(locked);
                    let leader = self.successor(notify, check);
                    drop(runtime.spawn(leader.finish_without_waiters()));
                    return;
                }
                let closed = locked.queues.remove(queue_key);
                drop(locked);
                drop(closed);
                return;
            };
            let request = &next.limits.request;
            let same = |check: &InFlightCheck| check.request.is_mergeable_with(request);
            queue.check_in_flight = check.as_ref().is_some_and(same);
            queue.is_abandoned = false;
            let hands_over = queue.check_in_flight;
            drop(locked);
            if !hands_over {
                check = None;
            }
            let leader = self.successor(notify, check.take());
            let Err(Wakeup::BecomeLeader(leader)) = next.wakeup.send(Wakeup::BecomeLeader(leader))
            else {
                return;
            };
            // The waiter is leaving at this moment.
            check = leader.retire();
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.retired {
            // The call of a queue without waiters ends with its runtime.
            let check = self.check.take().filter(|_| !self.has_no_waiters);
            self.promote_next(check);
        }
    }
}

/// An admission that the leader charged for a waiter. Refunded if the waiter has left.
pub(crate) struct UnclaimedGrant {
    limiter: Arc<LimiterCore>,
    queue_key: QueueKey,
    decision: Option<Decision>,
    /// The runtime on which it was charged.
    runtime: Option<Handle>,
}

impl UnclaimedGrant {
    pub(crate) fn new(limiter: Arc<LimiterCore>, queue_key: QueueKey, decision: Decision) -> Self {
        Self {
            limiter,
            queue_key,
            decision: Some(decision),
            runtime: Handle::try_current().ok(),
        }
    }

    pub(crate) fn into_decision(mut self) -> Option<Decision> {
        self.decision.take()
    }
}

impl Drop for UnclaimedGrant {
    fn drop(&mut self) {
        if let Some(mut decision) = self.decision.take() {
            // Not dropped by the application: nothing to log.
            let _permit = decision.permit.take();
            // On a thread without a runtime nothing could be sent.
            let outside = Handle::try_current().is_err_and(|error| error.is_missing_context());
            let runtime = self.runtime.as_ref().filter(|_| outside);
            let _entered = runtime.map(Handle::enter);
            self.limiter.refund_unreported(&mut decision.entries);
            self.limiter.wait_queues.notify_leader(&self.queue_key);
        }
    }
}

/// Lower bound of the wait that an aged rejection reports.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);

/// The leader's last rejection, from which the waits of the requests behind it are known.
pub(crate) struct LastRejection {
    decision: Decision,
    pub(crate) request: Arc<WaitRequest>,
    decided_at: Instant,
    /// When a retry can succeed.
    pub(crate) retry_at: Instant,
    /// Whether the time of a retry is unknown, since it waits for a permit or for a store that failed.
    pub(crate) needs_polling: bool,
    /// Whether the store failed.
    pub(crate) failed: bool,
}

impl LastRejection {
    pub(crate) fn new(decision: Decision, request: Arc<WaitRequest>) -> Arc<Self> {
        let decided_at = Instant::now();
        let wait = request.retry_delay(&decision);
        let failed = matches!(decision.kind, DecisionKind::StoreFailed(_));
        Arc::new(Self {
            decided_at,
            retry_at: decided_at.checked_add(wait).unwrap_or(decided_at),
            needs_polling: failed || request.waits_for_permit(&decision),
            failed,
            decision,
            request,
        })
    }

    /// The rejection of the requests that were left over when a call admitted only some.
    pub(crate) fn after(admitted: &Decision, request: Arc<WaitRequest>) -> Arc<Self> {
        let entry = admitted.entries.iter();
        let entry = entry.map(|entry| entry.with_receipts(entry.receipts.split(0)));
        let mut decision = admitted.with_entries(entry);
        decision.kind = DecisionKind::Rejected;
        decision.admitted = 0;
        drop(decision.permit.take());
        for entry in &mut decision.entries {
            entry.refresh_shadow(&decision.limiter);
        }
        Self::new(decision, request)
    }

    /// Whether no retry before the deadline can succeed.
    pub(crate) fn is_past_deadline(&self, deadline: Option<Instant>, now: Instant) -> bool {
        deadline.is_some_and(|deadline| deadline <= now || deadline < self.retry_at)
    }

    /// The rejection as of `now`.
    pub(crate) fn at(&self, now: Instant) -> Decision {
        let mut decision = self.decision.clone();
        let since = now.saturating_duration_since(self.decided_at);
        if since > Duration::ZERO && !self.failed {
            decision.source = DecisionSource::RejectionCache;
            for entry in &mut decision.entries {
                entry.update_status(&decision.limiter, |status| {
                    if let RetryAfter::In(wait) = status.retry_after {
                        status.retry_after =
                            RetryAfter::In(wait.saturating_sub(since).max(MIN_RETRY_DELAY));
                    }
                    status.reset_after = status.reset_after.saturating_sub(since);
                });
                entry.receipts.age_by(since);
            }
        }
        decision
    }
}
