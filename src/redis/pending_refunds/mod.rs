//! Refunds, charges and settlements without a waiter that could not be sent, kept until the server responds again: so a permit
//! that is dropped during an outage, or that a request without a response may have taken, does not stay charged for its TTL.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::{
    batch::MAX_BATCH_KEYS,
    error_class,
    request::{
        PendingRequest, Sent, UndeliveredGuard,
        limit::store_of,
        op::{CounterOps, OwnedCounterOp},
    },
};
use crate::{
    error::StoreError,
    log::LogThrottle,
    observe::{Event, SharedObservers},
    store::Op,
    sync::lock,
};

/// Most refunds and charges that are kept; more are dropped, and their units stay charged until they refill. Refunds of permits are
/// kept beyond that: each is of a permit that this process held or requested.
const MAX_PENDING_REFUNDS: usize = 10_000;

/// The queue of refunds and charges that wait for the server to respond again.
#[derive(Debug, Default)]
pub(crate) struct PendingRefunds {
    /// Whether there are any. Read after each batch.
    any: AtomicBool,
    /// Whether a server that responds has rejected some: they are sent periodically alone.
    is_paused: AtomicBool,
    refunds: Mutex<RefundsByTag>,
    /// Refunds and charges in flight.
    sent: Arc<AtomicUsize>,
    observers: Arc<SharedObservers>,
}

/// The queues of each hash tag: one node of a cluster may respond while another does not.
#[derive(Debug, Default)]
struct RefundsByTag {
    by_tag: HashMap<usize, VecDeque<CounterOps>>,
    len: usize,
    /// Refunds dropped so far.
    dropped: u64,
    /// Refunds and charges so far that were sent without a response, and are not sent again.
    unconfirmed: u64,
    /// Whether some were dropped since none was kept.
    is_dropping: bool,
}

impl PendingRequest {
    /// Whether a part of it that was sent may be lost: it can't be sent again.
    pub(crate) fn is_lost_if_sent(&self) -> bool {
        Unsettled::of(self, Sent::Maybe, false).is_unconfirmed
    }
}

impl PendingRefunds {
    pub(crate) fn new(observers: Arc<SharedObservers>) -> Self {
        Self {
            observers,
            ..Self::default()
        }
    }

    /// Fails a request, and keeps what [has to be sent later](Unsettled). Those that were sent, and are not sent again, are
    /// counted as unconfirmed and logged. Returns the request's error.
    pub(crate) fn fail_and_keep(
        &self,
        tag: usize,
        mut request: PendingRequest,
        error: StoreError,
        sent: Sent,
    ) -> StoreError {
        let error = error.sent(sent == Sent::Maybe);
        // First: what a waiter has the error of is not sent again, and the waiter may leave until then.
        let has_error = request.fail_in_place(error.clone());
        let unsettled = Unsettled::of(&request, sent, has_error);
        if unsettled.is_unconfirmed {
            lock(&self.refunds).unconfirmed += 1;
            log_unconfirmed(&request, &error);
        }
        self.push(tag, unsettled);
        error
    }

    /// Fails a request of a call that the server has executed. What would fail again is given up.
    pub(crate) fn fail_in_call(&self, tag: usize, mut request: PendingRequest, error: StoreError) {
        if !fails_again(&error) {
            self.fail_and_keep(tag, request, error, Sent::No);
            return;
        }
        let has_error = request.fail_in_place(error.clone());
        let unsettled = Unsettled::of(&request, Sent::No, has_error);
        if !unsettled.counters.is_empty() {
            log_failed(&request, &error);
            lock(&self.refunds).dropped += 1;
            self.report_dropped();
        }
    }

    /// Keeps what can be sent again of a request that was sent, and may still have a reply.
    pub(crate) fn keep_idempotent(&self, tag: usize, request: &PendingRequest) {
        self.push(tag, Unsettled::of(request, Sent::Maybe, false));
    }

    /// Drops what is kept for counters that were reset since: made now, it would charge the fresh quota, or refund charges of it.
    pub(crate) fn forget(&self, counters: &[OwnedCounterOp]) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let is_reset = |own: &OwnedCounterOp| {
            let is_same = |reset: &OwnedCounterOp| {
                reset.key == own.key && reset.limit.policy() == own.limit.policy()
            };
            counters.iter().any(is_same)
        };
        let mut refunds = lock(&self.refunds);
        refunds.by_tag.retain(|_, of_tag| {
            of_tag.retain_mut(|kept| {
                kept.retain(|own| !is_reset(own));
                !kept.is_empty()
            });
            !of_tag.is_empty()
        });
        refunds.len = refunds.by_tag.values().map(VecDeque::len).sum();
        self.any.store(refunds.len > 0, Ordering::Relaxed);
    }

    /// Counts a refund or a charge as undelivered until the guard is dropped.
    pub(crate) fn undelivered(&self) -> UndeliveredGuard {
        UndeliveredGuard::new(&self.sent)
    }

    /// Refunds and charges that are pending or in flight.
    pub(crate) fn queued(&self) -> usize {
        // One that moves between the two states meanwhile is counted by one of these reads.
        let before = self.sent.load(Ordering::Acquire);
        let queued = lock(&self.refunds).len;
        queued + before.max(self.sent.load(Ordering::Acquire))
    }

    /// The tags with kept refunds.
    pub(crate) fn tags(&self) -> Vec<usize> {
        lock(&self.refunds).by_tag.keys().copied().collect()
    }

    /// Keeps what is left, if there is room.
    fn push(&self, tag: usize, unsettled: Unsettled) {
        let counters = unsettled.counters;
        if counters.is_empty() {
            return;
        }
        // A permit that this process held or requested is always released.
        let is_kept_always = counters.iter().any(releases_permit);
        let mut refunds = lock(&self.refunds);
        if is_kept_always || refunds.len < MAX_PENDING_REFUNDS {
            let store = store_of(&counters);
            refunds.len += 1;
            let queue = refunds.by_tag.entry(tag).or_default();
            queue.push_back(counters);
            self.any.store(true, Ordering::Relaxed);
            drop(refunds);
            // Without other requests, no response would send it.
            if let Some(store) = store {
                store.workers.begin_watch();
            }
            return;
        }
        refunds.dropped += 1;
        let begins = !mem::replace(&mut refunds.is_dropping, true);
        drop(refunds);
        self.report_dropped();
        if begins {
            tracing::warn!(
                max_refunds = MAX_PENDING_REFUNDS,
                "charges and refunds dropped: too many were queued while the store failed"
            );
        }
    }

    /// Refunds and charges so far that were sent without a response, and are not sent again.
    pub(crate) fn unconfirmed(&self) -> u64 {
        lock(&self.refunds).unconfirmed
    }

    fn report_dropped(&self) {
        self.observers
            .on_event(&Event::RefundsDropped { refunds: 1 });
    }

    /// How many were dropped, so far.
    pub(crate) fn dropped(&self) -> u64 {
        lock(&self.refunds).dropped
    }

    /// Has responses send none until they are [sent periodically](Self::resume) again: the server would reject them as it did the last
    /// ones.
    pub(crate) fn pause(&self) {
        self.is_paused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Sends one batch of a tag's pending refunds, since its server responds. Each response sends the next batch.
    pub(crate) fn resend(&self, tag: usize) {
        if !self.any.load(Ordering::Relaxed) || self.is_paused.load(Ordering::Relaxed) {
            return;
        }
        let _sending = self.undelivered();
        for counters in self.take(tag) {
            // One that cannot be sent is queued here again.
            if let Some(store) = store_of(&counters) {
                store.workers.execute_detached(Op::Adjust, counters, None);
            }
        }
    }

    /// Removes the oldest refunds of a tag, at most a batch of them.
    fn take(&self, tag: usize) -> Vec<CounterOps> {
        let mut refunds = lock(&self.refunds);
        let Some(of_tag) = refunds.by_tag.get_mut(&tag) else {
            return Vec::new();
        };
        let oldest = of_tag.drain(..of_tag.len().min(MAX_BATCH_KEYS));
        let batch: Vec<_> = oldest.collect();
        if of_tag.is_empty() {
            refunds.by_tag.remove(&tag);
        }
        refunds.len -= batch.len();
        refunds.is_dropping &= refunds.len > 0;
        self.any.store(refunds.len > 0, Ordering::Relaxed);
        batch
    }
}

fn log_unconfirmed(request: &PendingRequest, error: &StoreError) {
    static UNCONFIRMED: LogThrottle = LogThrottle::new();
    UNCONFIRMED.log_with(|suppressed| {
        tracing::warn!(
            policy = policy_of(request),
            %error,
            suppressed,
            "a charge or refund may not have been settled: it was sent, and the store did not respond"
        );
    });
}

fn log_failed(request: &PendingRequest, error: &StoreError) {
    static FAILED: LogThrottle = LogThrottle::new();
    FAILED.log_with(|suppressed| {
        tracing::warn!(
            policy = policy_of(request),
            %error,
            suppressed,
            "a charge was not settled and stays as it was"
        );
    });
}

fn policy_of(request: &PendingRequest) -> &str {
    let first = request.counters.first();
    first.map_or("", |counter| counter.limit.policy())
}

/// What is left to send of a failed request.
///
/// An adjustment that did not run is sent again if it has no waiter. Releases of permits are sent again in any case: each names its
/// permit, and is done once. A request for a permit that was sent, and may have taken one, leaves a release of it.
#[derive(Debug)]
struct Unsettled {
    counters: CounterOps,
    /// Whether some of it was sent, may have run, and is not sent again, without a waiter.
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

/// Whether a request of a call fails alone, and would each time that it is sent.
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
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::{
        RedisStore,
        clock::Timestamp,
        key::Key,
        observe::Observer,
        redis::request::{RequestState, op::OwnedCounterOp},
        store::{CounterMode, CounterOp, LimitHandle, OpResult, Store, Units},
        strategy::{ChargeReceipt, Concurrency, Gcra, Strategy, Terms},
    };

    /// Counts the refunds that are reported as dropped.
    #[derive(Debug, Default)]
    struct Dropped(AtomicUsize);

    impl Observer for Dropped {
        fn on_event(&self, event: &Event<'_>) {
            if let Event::RefundsDropped { refunds, .. } = event {
                self.0.fetch_add(*refunds as usize, Ordering::Relaxed);
            }
        }
    }

    fn refund_unread(limit: &LimitHandle) -> PendingRequest {
        refund_of(limit, Key::global())
    }

    fn refund_of(limit: &LimitHandle, key: Key) -> PendingRequest {
        let counter = CounterOp {
            limit,
            key,
            units: Units::ONE,
            receipt: Some(ChargeReceipt::EMPTY),
            caller: Key::global(),
            mode: CounterMode::Charge,
        };
        let counters = [OwnedCounterOp::of(&counter)].into();
        PendingRequest::detached(RequestState::new(Op::Adjust, counters, Instant::now(), 0))
    }

    fn fail(refunds: &PendingRefunds, tag: usize, request: PendingRequest, sent: Sent) {
        refunds.fail_and_keep(tag, request, StoreError::timeout(), sent);
    }

    #[test]
    fn a_bounded_number_is_kept_and_each_is_sent_when_its_own_server_replies() {
        let limit = LimitHandle::unregistered(Gcra, "9/min");
        let (observers, counted) = (
            Arc::<SharedObservers>::default(),
            Arc::new(Dropped::default()),
        );
        let observer: Arc<dyn Observer> = counted.clone();
        observers.add(&observer);
        let refunds = PendingRefunds::new(observers);
        for index in 0..MAX_PENDING_REFUNDS + 9 {
            fail(&refunds, index % 2, refund_unread(&limit), Sent::No);
        }
        assert_eq!(lock(&refunds.refunds).len, MAX_PENDING_REFUNDS);
        assert_eq!(refunds.dropped(), 9);
        assert_eq!(counted.0.load(Ordering::Relaxed), 9);
        assert!(refunds.take(2).is_empty());
        let mut sent = 0;
        loop {
            let batch = refunds.take(1).len();
            assert!(batch <= MAX_BATCH_KEYS && refunds.any.load(Ordering::Relaxed));
            sent += batch;
            if batch == 0 {
                break;
            }
        }
        assert_eq!(
            (sent, lock(&refunds.refunds).len),
            (MAX_PENDING_REFUNDS / 2, MAX_PENDING_REFUNDS / 2)
        );
        while !refunds.take(0).is_empty() {}
        assert!(!refunds.any.load(Ordering::Relaxed) && lock(&refunds.refunds).by_tag.is_empty());
    }

    #[test]
    fn what_is_kept_of_a_key_is_dropped_when_the_key_is_reset() {
        let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
        let refunds = &store.inner.shared.pending_refunds;
        // Without a store, so that nothing is sent.
        let limit = LimitHandle::unregistered(Gcra, "9/min");
        for key in ["reset", "another", "reset"] {
            fail(refunds, 0, refund_of(&limit, Key::new(key)), Sent::No);
        }
        let quota = "9/min".parse().expect("a quota");
        let rule = Gcra.bind(&quota, &Terms::default()).expect("a rule");
        let limit = store.register(limit.policy(), rule).expect("a limit");
        let counter = CounterOp::new(&limit, Key::new("reset"));
        let counters = [OwnedCounterOp::of(&counter)].into();
        let reset = RequestState::new(Op::Reset, counters, Instant::now(), 0);
        PendingRequest::detached(reset).succeed(OpResult::new(Timestamp::default(), 0, []));
        let left: Vec<_> = refunds.take(0).iter().map(|own| own[0].key).collect();
        assert_eq!(left, [Key::new("another")]);
        assert!(!refunds.any.load(Ordering::Relaxed));
    }

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
        let request = PendingRequest::detached(state);
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
