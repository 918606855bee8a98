//! A store whose results take a while, and which carries out detached refunds slowly.

#![expect(
    clippy::async_yields_async,
    reason = "futures are polled on one runtime and awaited on another"
)]

use std::{fmt, future::poll_fn, pin::pin};

use tokio::{sync::watch, time::timeout};
use tollgate_tests::{
    bare_thread::{block_on, on_bare_thread},
    prelude::*,
};

use crate::outgoing::{
    script::play_slowly,
    support::{TEST_TIMEOUT, *},
};

/// Charges at once, and returns the result when it is open. The charge of a waiter that is dropped before stays until
/// long after these tests; a refund takes 30 ms.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    inner: MemoryStore,
    pub(crate) open: watch::Sender<bool>,
    in_poll: InPoll,
}

type Meanwhile = Box<dyn FnOnce() + Send>;

/// What is done within the next poll of a result.
#[derive(Clone, Default)]
struct InPoll(Arc<Mutex<Option<Meanwhile>>>);

impl InPoll {
    fn set(&self, next: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("a lock") = Some(Box::new(next));
    }

    fn run(&self) {
        let next = self.0.lock().expect("a lock").take();
        next.into_iter().for_each(|next| next());
    }
}

impl fmt::Debug for InPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InPoll")
    }
}

impl Slow {
    pub(crate) fn limiter(quota: &str) -> (Limiter, Self, Time) {
        Self::limiter_of(window("p", quota))
    }

    fn limiter_of(policy: Policy) -> (Limiter, Self, Time) {
        let time = Time::start();
        let store = Self {
            inner: MemoryStore::builder().clock(time.clone()).build(),
            open: watch::Sender::new(false),
            in_poll: InPoll::default(),
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
                let (mut open, in_poll) = (self.open.subscribe(), self.in_poll.clone());
                StoreResponse::pending(async move {
                    let mut opened = pin!(open.wait_for(|open| *open));
                    let opened = poll_fn(|cx| {
                        in_poll.run();
                        opened.as_mut().poll(cx)
                    });
                    opened.await.map(drop).expect("it outlives the test");
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
async fn the_result_of_a_call_belongs_to_the_request_that_is_first_when_it_arrives() {
    for script in [
        // The result for a dropped waiter goes to the next one, without another call.
        "send a: waits, send b: waits, calls, drop a, poll b: waits, open, poll b: admitted, calls: 0",
        // A result without a waiter goes to a later request, and rejects none for its charge: only the last one calls.
        "send gone: waits, drop gone, calls, send b: waits, send c for 0ms: waits, open, \
         await b: admitted, await c: rejected, calls: 1",
        // No request is rejected for a full queue before the store has rejected one.
        "send a queue 1: waits, send b queue 1: waits, send c queue 1: waits, open, await a: admitted, \
         poll b: waits, poll c: rejected 3600000ms, passed: 0ms, drop b, send d queue 1: waits",
        // A request that left the queue at its deadline takes no room in it; all of them join before the store has returned.
        "open, send first: admitted, close, send a: waits, send b for 1ms: waits, send c queue 2: waits, \
         open, poll a: waits, poll b: rejected, poll c: waits",
        // A charge without a waiter is refunded.
        "send gone: waits, drop gone, open, sleep 50ms, left p: 1, send a: admitted, passed: 50ms",
    ] {
        play_slowly(Slow::limiter("1/hour"), script).await;
    }
    // Two were admitted together, and one was dropped, whose refund is found when it has reached the store.
    let script = "open, send all cost 2: admitted, send a: waits, send gone: waits, send b: waits, +60s, \
                  poll a: admitted, poll b: waits, drop gone, poll b: waits, await b: admitted, \
                  passed: 60030ms to 60100ms";
    play_slowly(Slow::limiter("2/min"), script).await;
}

fn build() -> Runtime {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime")
}

/// A call whose request has left, on a runtime that goes no further.
fn left_call(runtime: &Runtime, quota: &str) -> (Limiter, Slow, Time) {
    runtime.block_on(async {
        let slow = Slow::limiter(quota);
        drop(queued(wait(&slow.0)));
        slow
    })
}

#[test]
fn a_call_that_is_left_to_a_runtime_which_stands_still_goes_on_elsewhere() {
    let still = build();
    let (limiter, store, _) = left_call(&still, "1/hour");
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
    let waited = waited.await.expect("a result");
    waited.expect_err("the store fails");
}

#[test]
fn a_call_that_was_taken_over_from_such_a_runtime_and_left_again_is_refunded() {
    let still = build();
    let (limiter, store, _) = left_call(&still, "1/hour");
    build().block_on(async {
        drop(queued(wait(&limiter)));
        store.open.send_replace(true);
        tokio::time::sleep(ms(50)).await;
        assert_eq!(left(&limiter, "p").await, 1);
    });
}

/// The task that polls such a call goes on with it.
#[test]
fn a_call_is_polled_on_if_a_request_joins_and_leaves_while_it_is_polled() {
    let (one, elsewhere) = (build(), build());
    let (limiter, store, _) = left_call(&one, "1/hour");
    let joins = limiter.clone();
    let joins_and_leaves = move || {
        elsewhere.block_on(async {
            drop(queued(wait(&joins)));
            tokio::task::yield_now().await;
        });
    };
    store.in_poll.set(|| on_bare_thread(joins_and_leaves));
    one.block_on(async {
        tokio::task::yield_now().await;
        store.open.send_replace(true);
        tokio::time::sleep(ms(50)).await;
        assert_eq!(left(&limiter, "p").await, 1);
    });
}

/// It joins while a task polls the call which then ends with its runtime.
#[test]
fn a_permit_that_a_task_elsewhere_has_acquired_is_renewed_where_its_request_waits() {
    let (one, other) = (build(), Arc::new(build()));
    let (limiter, store, _) = one.block_on(async { Slow::limiter_of(permits(1)) });
    let (joined, joins) = (Arc::<Mutex<Option<Waiter>>>::default(), limiter.clone());
    let (elsewhere, joining) = (other.clone(), joined.clone());
    one.block_on(async {
        drop(queued(wait(&limiter)));
        store.open.send_replace(true);
        store.in_poll.set(move || {
            let join = move || elsewhere.block_on(async { queued(wait(&joins)) });
            *joining.lock().expect("a lock") = Some(on_bare_thread(join));
        });
        tokio::time::sleep(ms(50)).await;
    });
    drop(one);
    let joined = joined.lock().expect("a lock").take();
    other.block_on(async {
        let admission = joined.expect("it was polled").await.expect("admitted");
        tokio::time::sleep(secs(3_600)).await;
        assert_eq!(left(&limiter, "permits").await, 0);
        drop(admission);
        tokio::time::sleep(ms(50)).await;
        assert_eq!(left(&limiter, "permits").await, 1);
    });
}

#[tokio::test(start_paused = true)]
async fn a_permit_for_a_request_that_has_left_is_released_without_an_error() {
    let (limiter, store, _) = Slow::limiter_of(permits(1));
    let (log, _guard) = Log::of_errors();
    drop(queued(wait(&limiter)));
    store.open.send_replace(true);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(left(&limiter, "permits").await, 1);
    assert_eq!(log.text(), "");
}

#[tokio::test(start_paused = true)]
async fn the_next_request_calls_the_store_if_the_first_ones_call_panics() {
    let (limiter, store, _) = Slow::limiter("2/hour");
    let first = tokio::spawn(queued(wait(&limiter)));
    store.in_poll.set(|| panic!("as intended"));
    let next = queued(wait(&limiter));
    store.open.send_replace(true);
    assert!(first.await.expect_err("a panic").is_panic());
    let turn = timeout(TEST_TIMEOUT, next).await;
    let _ = turn.expect("a result").expect("admitted");
}

/// Such as one of a runtime that has ended.
#[tokio::test(start_paused = true)]
async fn the_failed_call_of_a_request_that_has_left_decides_no_other() {
    for action in [OnStoreError::Reject, OnStoreError::Admit] {
        let (fail, fails) = watch::channel(false);
        let is_first = AtomicBool::new(true);
        let store = StubStore::responding(move |_| {
            let mut fails = fails.clone();
            is_first.swap(false, Ordering::SeqCst).then(|| {
                StoreResponse::pending(async move {
                    let failed = fails.wait_for(|fails| *fails).await;
                    failed.map(drop).expect("it outlives the call");
                    Err(StoreError::Connection("lost".into()))
                })
            })
        });
        let builder = Limiter::builder().store(store).on_store_error(action);
        let limiter = stores::limiter(builder, [policy("p", "2/hour")]);
        let first = queued(wait(&limiter));
        let next = queued(wait(&limiter));
        drop(first);
        fail.send_replace(true);
        let admission = next.await.expect("the store has room");
        assert_eq!(admission.decisions()[0].source(), DecisionSource::Store);
        assert_eq!(left(&limiter, "p").await, 1);
    }
}

#[test]
fn a_call_without_a_waiter_does_not_keep_its_runtime_from_ending() {
    for somebody_behind in [false, true] {
        let runtime = build();
        let (limiter, store, _) = left_call(&runtime, "2/hour");
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
