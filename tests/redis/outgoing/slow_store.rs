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

/// A limiter whose store charges at once, and returns the result when it is open. The charge of a waiter that is dropped before stays
/// until long after these tests; a refund takes 30 ms.
fn slow(policy: Policy) -> (Limiter, watch::Sender<bool>, Time) {
    let (store, time) = Time::start();
    let open = watch::Sender::new(false);
    let opens = open.clone();
    let store = store.passing(move |_, result| {
        let mut open = opens.subscribe();
        StoreResponse::pending(async move {
            let opened = open.wait_for(|open| *open).await;
            opened.map(drop).expect("it outlives the test");
            result
        })
    });
    let limiter = limiter_on(store.detached_delay(ms(30)), [policy]);
    (limiter, open, time)
}

#[tokio::test(start_paused = true)]
async fn the_result_of_a_call_belongs_to_the_request_that_is_first_when_it_arrives() {
    // The result for a dropped waiter goes to the next one, without another call.
    let (limiter, open, time) = slow(window("p", "1/hour"));
    let [dropped, mut next] = [(); 2].map(|()| queued(wait(&limiter)));
    drop(dropped);
    still_waits(&mut next);
    open.send_replace(true);
    let _ = admitted(next);
    assert_eq!(time.calls(), 1);
    // A result without a waiter goes to a later request, and rejects none for its charge: only the last one calls.
    let (limiter, open, time) = slow(window("p", "1/hour"));
    drop(queued(wait(&limiter)));
    let next = queued(wait(&limiter));
    let without_time = queued(limiter.wait(KEY, ms(0)));
    open.send_replace(true);
    let _ = next.await.expect("a turn");
    without_time.await.expect_err("none is left");
    assert_eq!(time.calls(), 2);
    // A charge without a waiter is refunded.
    let (limiter, open, _) = slow(window("p", "1/hour"));
    drop(queued(wait(&limiter)));
    open.send_replace(true);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(left(&limiter, "p").await, 1);
    // Two were admitted together, and one was dropped, whose refund is found when it has reached the store.
    let (limiter, open, time) = slow(window("p", "2/min"));
    open.send_replace(true);
    let _ = wait(&limiter).cost(2).await.expect("all");
    let [first, dropped, mut third] = [(); 3].map(|()| queued(wait(&limiter)));
    advance(60_000).await;
    let _ = admitted(first);
    still_waits(&mut third);
    drop(dropped);
    let _ = third.await.expect("a turn");
    assert!((ms(60_030)..=ms(60_100)).contains(&time.passed()));
}

fn build() -> Runtime {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime")
}

#[test]
fn a_request_behind_one_on_a_runtime_that_stands_still_is_decided_soon_after_its_timeout() {
    let still = build();
    let (limiter, open, _) = still.block_on(async { slow(window("p", "1/hour")) });
    let first = still.block_on(async { queued(wait(&limiter)) });
    build().block_on(async {
        let next = queued(limiter.wait(KEY, ms(50)));
        open.send_replace(true);
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
async fn a_permit_for_a_request_that_has_left_is_released_without_an_error() {
    let (limiter, open, _) = slow(permits(1));
    let (log, _guard) = Log::of_errors();
    drop(queued(wait(&limiter)));
    open.send_replace(true);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(left(&limiter, "permits").await, 1);
    assert_eq!(log.text(), "");
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
                    Err(StoreError::connection("lost"))
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
        let (limiter, open, _) = runtime.block_on(async {
            let slow = slow(window("p", "2/hour"));
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
        open.send_replace(true);
        let turn = build().block_on(async { wait(&limiter).await });
        let _ = turn.expect("one is left");
    }
}
