//! Waiting for a turn while the store fails, and calls without await.

use crate::faults::support::*;
use testkit::Clock;
use tollgate_tests::{bare_thread::on_bare_thread, world::START};

fn limiter(store: tollgate::RedisStore, response: impl Into<OnStoreError>) -> Limiter {
    let quota = Quota::requests(20).per_second().burst(2);
    under(Policy::new("p", quota), store, response)
}

#[tokio::test]
async fn waiters_are_admitted_or_rejected_as_configured_when_the_store_dies() {
    for (response, admits) in [
        (OnStoreError::Admit, true),
        (OnStoreError::Reject, false),
        (LocalFallback::shared_by(1).into(), true),
    ] {
        // On the server no time passes, so that it admits none of them.
        let server = Server::builder().clock(&Clock::at(START)).start();
        let limiter = limiter(store(&server), response);
        let charged = limiter.charge(KEY, 3).await.expect("a response");
        assert_eq!(charged.source(), DecisionSource::Store);
        let wait = || tokio::spawn(limiter.wait(KEY, TEST_TIMEOUT).into_future());
        let waiting = [wait(), wait(), wait(), wait()];
        tokio::task::yield_now().await;
        server.kill();
        for waiting in waiting {
            let admitted = waiting.await.expect("a response");
            assert_eq!(admitted.is_ok(), admits, "{response:?}: {admitted:?}");
        }
    }
}

/// A limiter with the default action on failures.
fn by_default(store: tollgate::RedisStore) -> Limiter {
    let policy = Policy::new("p", Quota::requests(1_000_000).per_second());
    let limiter = Limiter::builder().store(store).policy(policy);
    limiter.built()
}

#[tokio::test]
async fn calls_with_a_failed_store_wait_until_their_timeout_and_are_then_rejected() {
    let limiter = by_default(nowhere());
    let (timeout, start) = (ms(300), Instant::now());
    let waiting: Vec<_> = (0..1_000)
        .map(|key| {
            // Some queue behind each other, and some alone.
            let key = Key::new((key % 100).to_string());
            tokio::spawn(limiter.wait(key, timeout).into_future())
        })
        .collect();
    let mut passed = 0;
    for waiting in waiting {
        match waiting.await.expect("a response") {
            Ok(_) => passed += 1,
            Err(rejected) => drop(store_error(rejected.decision())),
        }
    }
    assert_eq!(passed, 0, "of 1,000 calls, in {:?}", start.elapsed());
    assert!(start.elapsed() >= timeout);
}

#[tokio::test]
async fn a_call_goes_on_when_the_store_comes_back_before_its_timeout() {
    let server = Server::start();
    let limiter = by_default(store(&server));
    server.kill();
    let waiting = ["0", "1", "0", "1"];
    let waiting = waiting.map(|key| tokio::spawn(limiter.wait(key, TEST_TIMEOUT).into_future()));
    let is_met = async || limiter.check(KEY).await.source() == DecisionSource::Fallback;
    until("the outage is met", is_met).await;
    let none_passes = waiting.iter().all(|call| !call.is_finished());
    assert!(none_passes);
    server.restart();
    for waiting in waiting {
        let admission = waiting.await.expect("a response").expect("its turn");
        assert_eq!(admission.decisions()[0].source(), DecisionSource::Store);
    }
}

#[tokio::test]
async fn a_blocking_call_ends_by_its_timeout_and_while_the_breaker_is_open_at_once() {
    let server = Server::start();
    let limiter = sharing(hasty(server.url()), 20, 2);
    resumed(&limiter).await;
    server.pause();
    let on_thread = limiter.clone();
    let call = move || on_bare_thread(move || on_thread.check(Key::new("other")).blocking());
    // By mistake also on the only thread of a runtime, which has used the store before.
    for decision in [call(), limiter.check(Key::new("other")).blocking()] {
        assert_eq!(decision.source(), DecisionSource::Fallback);
    }
    opened_in_process(&limiter).await;
    let mut admitted = 0;
    for _ in 0..30 {
        let decision = limiter.check(KEY).now().expect("the breaker is open");
        assert_eq!(decision.source(), DecisionSource::Fallback);
        admitted += u64::from(decision.is_admitted());
    }
    assert_eq!(admitted, 10);
}
