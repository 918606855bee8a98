//! A store whose results take a while, and which carries out detached refunds slowly.

#![expect(
    clippy::async_yields_async,
    reason = "futures are polled on one runtime and awaited on another"
)]

use tokio::{sync::watch, time::timeout};
use tollgate_tests::{
    bare_thread::{block_on, on_bare_thread},
    prelude::*,
};

use crate::outgoing::support::{TEST_TIMEOUT, *};

/// Charges at once, and returns the result when it is open. The charge of a waiter that is dropped before stays until
/// long after these tests; a refund takes 30 ms.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    inner: MemoryStore,
    pub(crate) open: watch::Sender<bool>,
    /// Whether the next result is a panic.
    panics: Arc<AtomicBool>,
}

impl Slow {
    pub(crate) fn limiter(quota: &str) -> (Limiter, Self, Time) {
        Self::limiter_of(policy("p", quota).strategy(FixedWindow))
    }

    fn limiter_of(policy: Policy) -> (Limiter, Self, Time) {
        let time = Time::start();
        let store = Self {
            inner: MemoryStore::builder().clock(time.clone()).build(),
            open: watch::Sender::new(false),
            panics: Arc::default(),
        };
        (limiter_on(store.clone(), [policy]), store, time)
    }
}

impl Store for Slow {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.inner.register(policy, rule)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        match self.inner.execute(op, counters) {
            StoreResponse::Ready(response) => {
                let (mut open, panics) = (self.open.subscribe(), self.panics.clone());
                StoreResponse::pending(async move {
                    let opened = open.wait_for(|open| *open).await;
                    opened.map(drop).expect("it outlives the test");
                    assert!(!panics.swap(false, Ordering::SeqCst), "as intended");
                    response
                })
            }
            later => later,
        }
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        self.inner.callers(limit, key)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        for line in counters {
            let (store, limit) = (self.inner.clone(), line.limit.clone());
            let (key, receipt, caller) = (line.key, line.receipt, line.caller);
            let (units, mode) = (line.units, line.mode);
            tokio::spawn(async move {
                tokio::time::sleep(ms(30)).await;
                let line = CounterOp::new(&limit, key).with_units(units);
                let line = line
                    .with_receipt(receipt)
                    .with_caller(caller)
                    .with_mode(mode);
                store.execute_detached(op, &[line]);
            });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_result_for_a_dropped_waiter_goes_to_the_next_one() {
    let (limiter, store, time) = Slow::limiter("1/hour");
    let first = queued(wait(&limiter));
    let mut second = queued(wait(&limiter));
    let sent = time.calls();
    drop(first);
    assert!(poll_once(&mut second).is_none());
    store.open.send_replace(true);
    let _ = poll_once(&mut second)
        .expect("a response")
        .expect("admitted");
    assert_eq!(time.calls(), sent, "nothing was asked again");
}

#[tokio::test(start_paused = true)]
async fn a_result_without_a_waiter_goes_to_a_later_request() {
    let (limiter, store, time) = Slow::limiter("1/hour");
    drop(queued(wait(&limiter)));
    let sent = time.calls();
    let second = queued(wait(&limiter));
    // It isn't rejected for a charge without a waiter.
    let mut hurried = queued(limiter.wait(KEY, ms(0)));
    store.open.send_replace(true);
    let hurried = async { (&mut hurried).await.expect_err("none is left") };
    let (second, _) = tokio::join!(second, hurried);
    let _ = second.expect("admitted");
    assert_eq!(time.calls(), sent + 1, "only the last one asked");
}

#[tokio::test(start_paused = true)]
async fn no_request_is_rejected_for_a_full_queue_before_the_store_has_rejected_one() {
    let (limiter, store, time) = Slow::limiter("1/hour");
    let [first, mut second, mut third] = [(); 3].map(|()| queued(wait(&limiter).queue(1)));
    store.open.send_replace(true);
    let _ = first.await.expect("admitted");
    // Now the second waits, and the third is one too many.
    assert!(poll_once(&mut second).is_none());
    let rejected = poll_once(&mut third)
        .expect("a response")
        .expect_err("rejected");
    assert!(rejected.retry_after().duration() > Some(Duration::from_secs(3_590)));
    assert_eq!(time.passed(), ms(0));
    drop(second);
    drop(queued(wait(&limiter).queue(1)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_left_the_queue_at_its_deadline_takes_no_room_in_it() {
    let (limiter, store, _) = Slow::limiter("1/hour");
    store.open.send_replace(true);
    let _ = wait(&limiter).await.expect("the first");
    store.open.send_replace(false);
    // All of them join before the store has returned.
    let mut first = queued(wait(&limiter));
    let mut hurried = queued(limiter.wait(KEY, ms(1)));
    let mut last = queued(wait(&limiter).queue(2));
    store.open.send_replace(true);
    assert!(poll_once(&mut first).is_none());
    poll_once(&mut hurried)
        .expect("a response")
        .expect_err("rejected");
    assert!(poll_once(&mut last).is_none(), "one request is ahead of it");
}

#[tokio::test(start_paused = true)]
async fn a_charge_without_a_waiter_is_refunded() {
    let (limiter, store, time) = Slow::limiter("1/hour");
    drop(queued(wait(&limiter)));
    store.open.send_replace(true);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(left(&limiter, "p").await, 1);
    let _ = wait(&limiter).await.expect("admitted");
    assert!(time.passed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_refund_is_found_when_it_has_reached_the_store() {
    let (limiter, store, time) = Slow::limiter("2/min");
    store.open.send_replace(true);
    let _ = wait(&limiter).cost(2).await.expect("all");
    let [mut first, gone, mut last] = [(); 3].map(|()| queued(wait(&limiter)));
    let minute = Duration::from_secs(60);
    tokio::time::advance(minute).await;
    let _ = poll_once(&mut first).expect("its turn").expect("admitted");
    // Two were admitted together, and one was dropped. Its refund is on the way to the store.
    assert!(poll_once(&mut last).is_none());
    drop(gone);
    assert!(poll_once(&mut last).is_none());
    let _ = last.await.expect("admitted");
    assert!(time.passed() >= minute + ms(30));
    assert!(time.passed() <= minute + ms(100));
}

fn build() -> Runtime {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime")
}

#[test]
fn a_call_that_is_left_to_a_runtime_which_stands_still_goes_on_elsewhere() {
    let still = build();
    let (limiter, store, _) = still.block_on(async {
        let slow = Slow::limiter("1/hour");
        drop(queued(wait(&slow.0)));
        slow
    });
    for leaves in [true, false] {
        build().block_on(async {
            let next = queued(wait(&limiter));
            if leaves {
                drop(next);
            } else {
                store.open.send_replace(true);
                let turn = timeout(TEST_TIMEOUT, next).await;
                let _ = turn.expect("a result").expect("admitted");
            }
        });
    }
}

#[test]
fn a_request_behind_one_on_a_runtime_that_stands_still_is_decided_soon_after_its_timeout() {
    let still = build();
    let (limiter, store, _) = still.block_on(async { Slow::limiter("1/hour") });
    let first = still.block_on(async { queued(wait(&limiter)) });
    build().block_on(async {
        let next = queued(limiter.wait(KEY, ms(50)));
        store.open.send_replace(true);
        let next = timeout(TEST_TIMEOUT, next).await.expect("a result");
        let rejected = next.expect_err("the first one has the only unit");
        let kind = rejected.decision().kind();
        assert!(matches!(kind, DecisionKind::Rejected), "{kind:?}");
    });
    // Also one that is polled on a thread without a runtime by then.
    let timers = multi_thread(1);
    let next = timers.block_on(async { queued(limiter.wait(KEY, ms(50))) });
    let rejected = on_bare_thread(move || block_on(next)).expect_err("as before");
    assert!(matches!(rejected.decision().kind(), DecisionKind::Rejected));
    let first = still.block_on(async { timeout(TEST_TIMEOUT, first).await });
    let _ = first.expect("a result").expect("admitted");
}

#[tokio::test(start_paused = true)]
async fn a_request_past_its_timeout_does_not_wait_again_for_each_replacement_of_policies() {
    let store = StubStore::responding(|_| {
        Some(StoreResponse::pending(async {
            tokio::time::sleep(ms(100)).await;
            Err(StoreError::Timeout)
        }))
    });
    let builder = || Limiter::builder().policy(policy("p", "1/hour"));
    let limiter = builder().store(store).build().expect("a limiter");
    let waited = limiter.wait(KEY, ms(50)).into_future();
    let replaced = async {
        loop {
            limiter.reconfigure(builder()).expect("policies");
            tokio::time::sleep(ms(10)).await;
        }
    };
    let waited = timeout(TEST_TIMEOUT, async {
        tokio::select! {
            waited = waited => waited,
            () = replaced => unreachable!("it does not end"),
        }
    });
    drop(
        waited
            .await
            .expect("a result")
            .expect_err("the store fails"),
    );
}

#[test]
fn a_call_that_was_taken_over_from_such_a_runtime_and_left_again_is_refunded() {
    let still = build();
    let (limiter, store, _) = still.block_on(async {
        let slow = Slow::limiter("1/hour");
        drop(queued(wait(&slow.0)));
        slow
    });
    build().block_on(async {
        drop(queued(wait(&limiter)));
        store.open.send_replace(true);
        tokio::time::sleep(ms(50)).await;
        assert_eq!(left(&limiter, "p").await, 1);
    });
}

#[tokio::test(start_paused = true)]
async fn a_permit_for_a_request_that_has_left_is_released_without_an_error() {
    let permits = Policy::new("p", Quota::concurrent(1)).key(extract::global());
    let (limiter, store, _) = Slow::limiter_of(permits);
    let (log, _guard) = Log::of_errors();
    drop(queued(wait(&limiter)));
    store.open.send_replace(true);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(left(&limiter, "p").await, 1);
    assert_eq!(log.text(), "");
}

#[tokio::test(start_paused = true)]
async fn the_next_request_calls_the_store_if_the_first_ones_call_panics() {
    let (limiter, store, _) = Slow::limiter("2/hour");
    store.panics.store(true, Ordering::SeqCst);
    let first = tokio::spawn(queued(wait(&limiter)));
    let next = queued(wait(&limiter));
    store.open.send_replace(true);
    assert!(first.await.expect_err("a panic").is_panic());
    let turn = timeout(TEST_TIMEOUT, next).await;
    let _ = turn.expect("a result").expect("admitted");
}

#[test]
fn a_call_without_a_waiter_does_not_keep_its_runtime_from_ending() {
    for somebody_behind in [false, true] {
        let runtime = build();
        let (limiter, store, _) = runtime.block_on(async {
            let slow = Slow::limiter("2/hour");
            drop(queued(wait(&slow.0)));
            slow
        });
        let behind = somebody_behind.then(|| {
            let _entered = runtime.enter();
            queued(wait(&limiter))
        });
        drop(runtime);
        drop(behind);
        // The next one opens a new queue; the other's charge is refunded by the store later.
        store.open.send_replace(true);
        let turn = build().block_on(async { wait(&limiter).await });
        let _ = turn.expect("one is left");
    }
}
