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
    by_tag: HashMap<usize, VecDeque<(Op, CounterOps)>>,
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
        let unsettled = Unsettled::of(self, &StoreError::Timeout, Sent::Maybe);
        matches!(
            unsettled,
            Unsettled::Kept {
                is_unconfirmed: true,
                ..
            }
        )
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
        request: PendingRequest,
        error: StoreError,
        sent: Sent,
    ) -> StoreError {
        let (mut error, is_by_hand) = (error, request.is_by_hand());
        match Unsettled::of(&request, &error, sent) {
            Unsettled::Nothing => {}
            Unsettled::Unsendable => {
                log_failed(&request, &error);
                lock(&self.refunds).dropped += 1;
                self.report_dropped();
            }
            Unsettled::Kept {
                retry,
                is_unconfirmed,
            } => {
                let is_kept = retry.is_some_and(|retry| self.push(tag, retry));
                if is_kept && is_by_hand {
                    error = StoreError::deferred(error);
                }
                if is_unconfirmed {
                    lock(&self.refunds).unconfirmed += 1;
                    log_unconfirmed(&request, &error);
                }
            }
        }
        // Last, since the request counts as undelivered until it is dropped.
        request.fail(error.clone());
        error
    }

    /// Keeps what can be sent again of a request that was sent, and may still have a reply.
    pub(crate) fn keep_idempotent(&self, tag: usize, request: &PendingRequest) {
        let unsettled = Unsettled::of(request, &StoreError::Timeout, Sent::Maybe);
        if let Unsettled::Kept {
            retry: Some(retry), ..
        } = unsettled
        {
            self.push(tag, retry);
        }
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
            of_tag.retain_mut(|(_, kept)| {
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

    /// Keeps it, if there is room.
    fn push(&self, tag: usize, retry: Retry) -> bool {
        let Retry {
            op,
            counters,
            always,
        } = retry;
        let mut refunds = lock(&self.refunds);
        if always || refunds.len < MAX_PENDING_REFUNDS {
            let store = store_of(&counters);
            refunds.len += 1;
            let queue = refunds.by_tag.entry(tag).or_default();
            queue.push_back((op, counters));
            self.any.store(true, Ordering::Relaxed);
            drop(refunds);
            // Without other requests, no response would send it.
            if let Some(store) = store {
                store.workers.begin_watch();
            }
            return true;
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
        false
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
        for (op, counters) in self.take(tag) {
            // A refund that cannot be sent is queued here again.
            if let Some(store) = store_of(&counters) {
                store.workers.execute_detached(op, counters);
            }
        }
    }

    /// Removes the oldest refunds of a tag, at most a batch of them.
    fn take(&self, tag: usize) -> Vec<(Op, CounterOps)> {
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
/// Kept are refunds and charges without a waiter, or whose retry was requested, if it is safe to send them again: if they did
/// not run, or refund permits, each of which is refunded once only. One by hand is kept if the server did not respond, and its
/// caller gets [`StoreError::Deferred`]. A request for a permit that was sent, and may have taken one, leaves a refund of it.
#[derive(Debug)]
enum Unsettled {
    Nothing,
    /// It would fail each time that it is sent.
    Unsendable,
    Kept {
        retry: Option<Retry>,
        /// Whether some of it was sent, may have run, and is not sent again.
        is_unconfirmed: bool,
    },
}

/// What is sent later.
#[derive(Debug)]
struct Retry {
    op: Op,
    counters: CounterOps,
    /// Whether it is kept however much is kept already.
    always: bool,
}

impl Unsettled {
    fn of(request: &PendingRequest, error: &StoreError, sent: Sent) -> Self {
        let (op, sent) = (request.op, sent == Sent::Maybe);
        let is_kept = match op {
            Op::Refund | Op::ForceAcquire | Op::Settle => {
                let is_deferred = !sent && request.is_by_hand() && is_unreached(error);
                request.retries_refunds() || is_deferred
            }
            Op::Acquire(_) => sent && request.counters.iter().any(is_permit),
            _ => false,
        };
        if !is_kept {
            return Self::Nothing;
        }
        // Only this request fails, and would each time that it is sent.
        let fails_again = matches!(
            error,
            StoreError::CorruptKey { .. } | StoreError::Unsupported(_)
        );
        if op != Op::Refund && !sent && fails_again {
            return Self::Unsendable;
        }
        let mut counters = request.counters.clone();
        if sent {
            let is_refund =
                |counter: &OwnedCounterOp| op != Op::Settle || counter.receipt().remaining > 0;
            counters.retain(|counter| {
                is_permit(counter) && is_refund(counter) && op != Op::ForceAcquire
            });
        }
        let is_unconfirmed =
            !matches!(op, Op::Acquire(_)) && counters.len() < request.counters.len();
        match op {
            Op::Acquire(times) => counters
                .iter_mut()
                .for_each(|counter| counter.set_permit_refund(times)),
            // The rest of a permit's receipt names the permits that are refunded.
            _ => {
                let by_time = counters.iter_mut().filter(|counter| !is_permit(counter));
                by_time.for_each(OwnedCounterOp::limit_receipt_to_units);
            }
        }
        let retry = (!counters.is_empty()).then(|| Retry {
            op: match op {
                Op::ForceAcquire | Op::Settle if !sent => op,
                _ => Op::Refund,
            },
            always: matches!(op, Op::Refund | Op::Settle) && counters.iter().any(is_permit),
            counters,
        });
        Self::Kept {
            retry,
            is_unconfirmed,
        }
    }
}

/// Whether the server was not reached. An error reply is a result, after which a call by hand may be repeated.
fn is_unreached(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Timeout | StoreError::Connection(_) | StoreError::CircuitOpen { .. }
    )
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
        store::{
            CounterMode, CounterOp, LimitHandle, OpResult, Store, Units,
            redis::request::{RequestState, op::OwnedCounterOp},
        },
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
            receipt: ChargeReceipt::NONE,
            caller: Key::global(),
            mode: CounterMode::Charge,
        };
        let counters = [OwnedCounterOp::of(&counter)].into();
        PendingRequest::detached(RequestState::new(Op::Refund, counters, Instant::now(), 0))
    }

    fn fail(refunds: &PendingRefunds, tag: usize, request: PendingRequest, sent: Sent) {
        refunds.fail_and_keep(tag, request, StoreError::Timeout, sent);
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
        let left: Vec<_> = refunds.take(0).iter().map(|(_, own)| own[0].key).collect();
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
            receipt: ChargeReceipt {
                remaining: 5,
                ..ChargeReceipt::NONE
            },
            caller: Key::global(),
            mode: CounterMode::Charge,
        };
        let counters = [OwnedCounterOp::of(&counter)].into();
        let state = RequestState::new(Op::Refund, counters, Instant::now(), 0);
        let request = PendingRequest::detached(state);
        let unsettled = Unsettled::of(&request, &StoreError::Timeout, sent);
        request.fail(StoreError::Timeout);
        match unsettled {
            Unsettled::Kept {
                retry: Some(retry), ..
            } => retry.counters[0].clone(),
            unsettled => panic!("{unsettled:?}"),
        }
    }

    #[test]
    fn a_kept_part_of_a_refund_takes_no_unit_of_another_part() {
        assert_eq!(retry_of(Gcra, "9/min", Sent::No).receipt().remaining, 1);
    }

    #[test]
    fn a_kept_refund_of_one_of_several_permits_is_of_the_same_permit() {
        // The fifth of five.
        let refund = retry_of(Concurrency::new(), "9 concurrent", Sent::Maybe);
        assert_eq!((refund.receipt().remaining, refund.units.get()), (5, 1));
    }
}
