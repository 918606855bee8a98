//! Adjustments that are kept, to be sent again: those without a waiter that did not run, and releases of permits, which may run twice. So a
//! permit that is dropped during an outage, or that a request without a reply may have taken, does not stay charged for its TTL.
//!
//! A batch of them is sent with each reply of the server, and every [`RESEND_INTERVAL`].

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{actor::Actor, wire::Wire};
use crate::{
    error::StoreError,
    log::LogThrottle,
    observe::Event,
    redis::{
        batch::MAX_BATCH_KEYS,
        error_class,
        request::{
            PendingRequest, Sent,
            op::{CounterOps, OwnedCounterOp},
        },
    },
    store::Op,
};

/// Most adjustments that a store keeps; more are dropped, and their units stay charged until they refill. Releases of permits are
/// kept beyond that: each is of a permit that this process held or requested.
const MAX_KEPT: usize = 10_000;

/// How often kept adjustments are sent while no reply sends them.
const RESEND_INTERVAL: Duration = Duration::from_millis(250);

impl<W: Wire> Actor<W> {
    /// Fails a request, and keeps what is [to be sent again](Unsettled). An adjustment that was sent, has no waiter and is not sent again
    /// is counted as unconfirmed and logged.
    pub(super) fn fail(
        &mut self,
        lane: usize,
        mut request: PendingRequest,
        error: StoreError,
        sent: Sent,
    ) {
        let error = error.sent(sent == Sent::Maybe);
        let has_error = request.fail_in_place(error.clone());
        let unsettled = Unsettled::of(&request, sent, has_error);
        if unsettled.is_unconfirmed {
            let unconfirmed = &self.io.adjustments.unconfirmed;
            unconfirmed.fetch_add(1, Ordering::Relaxed);
            self.log_unconfirmed(&request, &error);
        }
        self.keep(lane, unsettled.counters);
    }

    /// Fails a request whose own result in a reply is an error: it did not run. An adjustment that would fail again is dropped.
    pub(super) fn fail_in_call(
        &mut self,
        lane: usize,
        mut request: PendingRequest,
        error: StoreError,
    ) {
        if !fails_again(&error) {
            return self.fail(lane, request, error, Sent::No);
        }
        let has_error = request.fail_in_place(error.clone());
        let unsettled = Unsettled::of(&request, Sent::No, has_error);
        if !unsettled.counters.is_empty() {
            self.log_failed(&request, &error);
            self.report_dropped();
        }
    }

    /// Keeps an adjustment, if there is room.
    fn keep(&mut self, lane: usize, counters: CounterOps) {
        if counters.is_empty() {
            return;
        }
        // A permit that this process held or requested is always released.
        let is_kept_always = counters.iter().any(releases_permit);
        let kept = &self.io.adjustments.kept;
        if is_kept_always || kept.load(Ordering::Relaxed) < MAX_KEPT {
            kept.fetch_add(1, Ordering::AcqRel);
            let at = self.now() + RESEND_INTERVAL;
            let lane = &mut self.lanes[lane];
            lane.kept.push_back(counters);
            lane.send_kept_at.get_or_insert(at);
            return;
        }
        self.report_dropped();
        static DROPPED: LogThrottle = LogThrottle::new();
        DROPPED.log_with(|suppressed| {
            self.io.defer(move || {
                tracing::warn!(
                    max_refunds = MAX_KEPT,
                    suppressed,
                    "charges and refunds dropped: too many were queued while the store failed"
                );
            });
        });
    }

    fn log_unconfirmed(&self, request: &PendingRequest, error: &StoreError) {
        static UNCONFIRMED: LogThrottle = LogThrottle::new();
        UNCONFIRMED.log_with(|suppressed| {
            let (policy, error) = (policy_of(request), error.clone());
            self.io.defer(move || {
                tracing::warn!(
                    policy = &*policy,
                    %error,
                    suppressed,
                    "a charge or refund may not have been settled: it was sent, and the store did not respond"
                );
            });
        });
    }

    fn log_failed(&self, request: &PendingRequest, error: &StoreError) {
        static FAILED: LogThrottle = LogThrottle::new();
        FAILED.log_with(|suppressed| {
            let (policy, error) = (policy_of(request), error.clone());
            self.io.defer(move || {
                tracing::warn!(
                    policy = &*policy,
                    %error,
                    suppressed,
                    "a charge was not settled and stays as it was"
                );
            });
        });
    }

    fn report_dropped(&self) {
        let dropped = &self.io.adjustments.dropped;
        dropped.fetch_add(1, Ordering::Relaxed);
        self.io
            .report(|observer| observer.on_event(&Event::RefundsDropped { refunds: 1 }));
    }

    /// Sends one batch of a lane's kept adjustments, unless the circuit breaker is open.
    pub(super) fn send_kept(&mut self, lane: usize) {
        if self.lanes[lane].kept.is_empty() {
            return;
        }
        let at = self.now() + RESEND_INTERVAL;
        let lane = &mut self.lanes[lane];
        let oldest = lane.kept.drain(..lane.kept.len().min(MAX_BATCH_KEYS));
        let batch: Vec<_> = oldest.collect();
        lane.send_kept_at = (!lane.kept.is_empty()).then_some(at);
        for counters in &batch {
            self.io.execute_detached(Op::Adjust, counters.clone(), None);
        }
        // Afterwards, so that `AdjustmentTotals::queued` misses none.
        let kept = &self.io.adjustments.kept;
        kept.fetch_sub(batch.len(), Ordering::AcqRel);
    }

    /// Drops what is kept for counters that were reset since: made now, it would charge the fresh quota, or refund charges of it.
    pub(super) fn forget_kept(&mut self, lane: usize, reset: &[OwnedCounterOp]) {
        let queue = &mut self.lanes[lane].kept;
        let before = queue.len();
        let is_reset = |own: &OwnedCounterOp| {
            reset
                .iter()
                .any(|reset| reset.key == own.key && reset.limit.policy() == own.limit.policy())
        };
        queue.retain_mut(|kept| {
            kept.retain(|own| !is_reset(own));
            !kept.is_empty()
        });
        let kept = &self.io.adjustments.kept;
        kept.fetch_sub(before - queue.len(), Ordering::AcqRel);
    }
}

fn policy_of(request: &PendingRequest) -> Arc<str> {
    let first = request.counters.first();
    first.map_or("", |counter| counter.limit.policy()).into()
}

/// What is left to send of a failed request.
///
/// An adjustment that did not run is sent again if it has no waiter. Releases of permits are sent again in any case: each names its
/// permit, and is done once. A request for a permit that was sent, and may have taken one, leaves a release of it.
#[derive(Debug)]
struct Unsettled {
    counters: CounterOps,
    /// Whether a part without a waiter may have run and is not sent again.
    is_unconfirmed: bool,
}

impl Unsettled {
    fn of(request: &PendingRequest, sent: Sent, has_error: bool) -> Self {
        let is_sent = sent == Sent::Maybe;
        let is_retried = request.is_retried(has_error);
        let mut counters = match request.op {
            Op::Adjust => request.counters.clone(),
            Op::Acquire(_) if is_sent => request.counters.clone(),
            _ => CounterOps::new(),
        };
        if let Op::Acquire(times) = request.op {
            counters.retain(|counter| is_permit(counter));
            let permits = counters.iter_mut();
            permits.for_each(|counter| counter.set_permit_refund(times));
        } else if is_sent || !is_retried {
            counters.retain(|counter| releases_permit(counter));
        }
        // The rest of a permit's receipt names the permits that are refunded.
        let by_time = counters.iter_mut().filter(|counter| !is_permit(counter));
        by_time.for_each(OwnedCounterOp::limit_receipt_to_units);
        let is_unread = is_sent && request.op == Op::Adjust && is_retried;
        Self {
            is_unconfirmed: is_unread && counters.len() < request.counters.len(),
            counters,
        }
    }
}

/// Whether a request would fail by this error each time that it is sent.
fn fails_again(error: &StoreError) -> bool {
    match error {
        StoreError::CorruptKey { .. } => true,
        StoreError::Server { code, .. } => {
            let action = error_class::classify_code(code);
            !action.counts_as_failure && !action.is_unwritable
        }
        _ => false,
    }
}

fn releases_permit(counter: &OwnedCounterOp) -> bool {
    is_permit(counter) && counter.receipt().is_some()
}

fn is_permit(counter: &OwnedCounterOp) -> bool {
    counter.limit.info().permit_ttl.is_some()
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{
        clock::Timestamp,
        key::Key,
        redis::request::{RequestState, Retry},
        store::{CounterMode, CounterOp, LimitHandle, Units},
        strategy::{ChargeReceipt, Concurrency, Gcra, Strategy},
    };

    /// What is sent later of a refund by a receipt with five units left.
    fn retry_of(strategy: impl Strategy, quota: &str, sent: Sent) -> OwnedCounterOp {
        let limit = LimitHandle::unregistered(strategy, quota);
        let counter = CounterOp {
            limit: &limit,
            key: Key::global(),
            units: Units::ONE,
            receipt: Some(ChargeReceipt::new(Timestamp::default(), 5)),
            caller: Key::global(),
            mode: CounterMode::Charge,
        };
        let counters = [OwnedCounterOp::of(&counter)].into();
        let state = RequestState::new(Op::Adjust, counters, Instant::now(), 0);
        let request = PendingRequest::new(state, false, Retry::IfUnread);
        let unsettled = Unsettled::of(&request, sent, false);
        request.fail(StoreError::timeout());
        unsettled.counters[0].clone()
    }

    #[test]
    fn a_kept_part_of_a_refund_takes_no_unit_of_another_part() {
        let refund = retry_of(Gcra, "9/min", Sent::No);
        assert_eq!(refund.receipt().map(|receipt| receipt.remaining), Some(1));
    }

    #[test]
    fn a_kept_refund_of_one_of_several_permits_is_of_the_same_permit() {
        // The fifth of five.
        let refund = retry_of(Concurrency::new(), "9 concurrent", Sent::Maybe);
        let remaining = refund.receipt().map(|receipt| receipt.remaining);
        assert_eq!((remaining, refund.units.get()), (Some(5), 1));
    }
}
