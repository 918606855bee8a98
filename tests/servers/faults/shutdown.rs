//! What is queued in a process is sent to the store before the process ends, or the error lists what is not.

use std::sync::mpsc;

use crate::faults::support::*;
use tokio::runtime::Builder;

const MOMENT: Duration = ms(50);

/// A limiter that counts in process while the store fails, and writes it back.
fn writing_back(store: RedisStore) -> Limiter {
    let fallback = LocalFallback::shared_by(2).write_back(true);
    under(policy(100).strategy(FixedWindow), store, fallback)
}

/// More permits than one call takes, and what a meter counted.
#[tokio::test]
async fn what_is_dropped_right_before_a_shutdown_is_sent() {
    let server = Server::start();
    let (limiter, other) = (
        permit_policy(store(&server), 300),
        permit_policy(store(&server), 300),
    );
    drop(take(&limiter, 200).await);
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 0);

    let limiter = rejecting(store(&server), 100);
    let admission = limiter.admit(Key::new("metered")).await.expect("room");
    let mut meter = admission.policy("p").expect("a policy").meter();
    meter.add(20);
    drop(meter);
    flushed(&limiter).await;
    let other = rejecting(store(&server), 100);
    assert_eq!(used_on_the_store(&other, Key::new("metered")).await, 20);
}

#[tokio::test]
async fn refunds_kept_during_an_outage_are_made_by_a_shutdown() {
    let (server, network) = network();
    let (limiter, other) = (
        permit_policy(through(&network), 300),
        permit_policy(store(&server), 300),
    );
    let held = take(&limiter, 200).await;
    network.cut();
    opened(&limiter).await;
    drop(held);
    let error = limiter.shutdown(MOMENT).await.expect_err("an outage");
    assert_eq!((error.operations(), error.write_backs()), (200, 0));
    let text = "not sent to the store in time: 200 refunds and charges, 0 write-backs";
    assert_eq!(error.to_string(), text);
    assert_eq!(format!("{error:?}"), text);
    network.pass();
    // They stay queued, for a second call.
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 0);
    // Nothing has ended.
    let _permit = limiter.admit(KEY).await.expect("a permit");
    assert_eq!(used_on_the_store(&other, KEY).await, 1);
}

#[tokio::test]
async fn charges_in_process_are_written_back_by_a_shutdown() {
    let (server, network) = network();
    let limiter = writing_back(through(&network));
    let other = writing_back(store(&server));
    assert!(admitted_by_store(&limiter.check(KEY).cost(3).await));
    network.cut();
    opened_in_process(&limiter).await;
    assert!(limiter.check(KEY).cost(4).await.is_admitted());
    let error = limiter.shutdown(MOMENT).await.expect_err("an outage");
    assert_eq!((error.operations(), error.write_backs()), (0, 1));
    network.pass();
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 7);
}

/// It has taken them out of the queue, since the store responds.
#[test]
fn a_shutdown_waits_for_what_another_thread_is_about_to_write_back() {
    let is_away = Arc::new(AtomicBool::new(true));
    let (begin, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let (away, ends) = (is_away.clone(), Mutex::new(ends));
    let store = StubStore::responding(move |op| {
        if away.load(Ordering::SeqCst) {
            let error = StoreError::Connection("it is away".into());
            return Some(StoreResponse::Ready(Err(error)));
        }
        if op == Op::ForceAcquire {
            begin.send(()).expect("the test waits");
            // Until the test drops the other end.
            let _ = ends.lock().expect("a lock").recv();
        }
        None
    });
    let fallback = LocalFallback::shared_by(2).write_back(true);
    let limiter = Limiter::builder().store(store).policy(policy(100));
    let limiter = limiter.on_store_error(fallback).built();
    let runtime = current_thread();
    let decision = runtime.block_on(limiter.check(KEY).into_future());
    assert_eq!(decision.source(), DecisionSource::Fallback);
    is_away.store(false, Ordering::SeqCst);
    thread::scope(|scope| {
        let writing = scope.spawn(|| current_thread().block_on(limiter.peek(KEY).into_future()));
        begun.recv().expect("it is written back");
        let error = runtime.block_on(limiter.shutdown(MOMENT));
        drop(end);
        let error = error.expect_err("it is not sent");
        assert_eq!((error.operations(), error.write_backs()), (0, 1));
        let seen = writing.join().expect("no panic");
        assert_eq!(seen.expect("a response").used("p"), 0);
    });
    runtime.block_on(flushed(&limiter));
    assert_eq!(runtime.block_on(used_on_the_store(&limiter, KEY)), 1);
}

#[tokio::test]
async fn with_nothing_queued_a_shutdown_is_done_at_once() {
    let (_server, network) = network();
    let limiter = writing_back(through(&network));
    assert!(limiter.check(KEY).await.is_admitted());
    network.cut();
    assert_eq!(limiter.shutdown(TEST_TIMEOUT).now_or_never(), Some(Ok(())));
}

#[test]
fn a_shutdown_in_process_needs_no_runtime() {
    let limiter = Limiter::builder().policy(policy(9)).built();
    assert_eq!(limiter.shutdown(TEST_TIMEOUT).now_or_never(), Some(Ok(())));
}

#[test]
fn a_shutdown_without_timers_reports_at_once_what_is_queued() {
    let (server, network) = network();
    let runtime = current_thread();
    let limiter = permit_policy(through(&network), 300);
    let held = runtime.block_on(take(&limiter, 3));
    network.cut();
    // Not sent, since the runtime is not driven.
    drop(held);
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    for result in [
        limiter.shutdown(TEST_TIMEOUT).now_or_never(),
        Some(without_timers.block_on(limiter.shutdown(TEST_TIMEOUT))),
    ] {
        let error = result.expect("a result at once").expect_err("queued");
        assert_eq!((error.operations(), error.write_backs()), (3, 0));
    }
    network.pass();
    runtime.block_on(flushed(&limiter));
    let other = permit_policy(store(&server), 300);
    assert_eq!(runtime.block_on(used_on_the_store(&other, KEY)), 0);
}
