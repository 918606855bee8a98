//! A cached rejection rejects without a call of the server, and for no longer than the server would.

use testkit::Clock as ServerClock;
use tollgate::observe::DecisionSource::{RejectionCache, Store};
use tollgate_tests::prelude::*;

use crate::{shared::SameTime, store::support::*};

/// Long beside what a slow machine is late by.
pub(crate) const BOUND: Duration = secs(10);

pub(crate) fn store(server: &Server, clock: &ServerClock) -> RedisStore {
    let store = RedisStore::builder().url(server.url());
    let store = store.rejection_cache_clock(SameTime(clock.clone()));
    store
        .rejection_cache_staleness(BOUND)
        .timeout(TEST_TIMEOUT)
        .built()
}

pub(crate) fn three_a_minute(store: RedisStore) -> Limiter {
    limiter(store, [Policy::new("p", Quota::requests(3).per_minute())])
}

pub(crate) fn key() -> Key {
    Key::new("k")
}

/// Whether a request is admitted, where that is decided, and how long it would have to wait under `p`.
pub(crate) type Outcome = (bool, DecisionSource, Option<Duration>);

pub(crate) async fn result(limiter: &Limiter, cost: u64) -> Outcome {
    let decision = limiter.check(key()).cost(cost).await;
    let wait = match decision.policy("p").map(|policy| policy.retry_after()) {
        Some(RetryAfter::In(wait)) => Some(wait),
        _ => None,
    };
    (decision.is_admitted(), decision.source(), wait)
}

pub(crate) async fn use_up(limiter: &Limiter) -> Option<Duration> {
    for _ in 0..3 {
        assert!(limiter.check(key()).await.is_admitted());
    }
    let (is_admitted, source, wait) = result(limiter, 1).await;
    assert_eq!((is_admitted, source), (false, Store));
    wait
}

/// Where a request is decided.
pub(crate) async fn source(limiter: &Limiter) -> DecisionSource {
    limiter.check(key()).await.source()
}

#[tokio::test]
async fn a_rejected_key_costs_one_call_in_each_bound() {
    let (clock, server) = on_a_clock();
    let limiter = three_a_minute(store(&server, &clock));
    assert_eq!(use_up(&limiter).await, Some(ms(20_000)));
    server.reset_stats();
    for (passed, decided_by) in [
        (0, RejectionCache),
        (5, RejectionCache),
        (10, Store),
        (15, RejectionCache),
    ] {
        clock.set(START + passed * 1_000_000);
        let rejected = (false, decided_by, Some(secs(20 - passed)));
        assert_eq!(result(&limiter, 1).await, rejected);
        for _ in 0..100 {
            assert_eq!(source(&limiter).await, RejectionCache);
        }
        assert_eq!(limiter.check(key()).await.left("p"), 0);
    }
    assert_eq!(server.calls("evalsha"), 1);
    clock.set(START + 20_000_000);
    let (is_admitted, source, _) = result(&limiter, 1).await;
    assert_eq!((is_admitted, source), (true, Store));
}

#[tokio::test]
async fn by_default_a_rejection_is_cached_for_a_second() {
    let (clock, server) = on_a_clock();
    let store = RedisStore::builder().url(server.url());
    let store = store.rejection_cache_clock(SameTime(clock.clone()));
    let limiter = three_a_minute(store.timeout(TEST_TIMEOUT).built());
    let _ = use_up(&limiter).await;
    for _ in 0..5 {
        clock.advance(secs(1));
        assert_eq!(source(&limiter).await, Store);
        // The machine may be busy for as long as the rejection is cached.
        until("it is cached", async || {
            source(&limiter).await == RejectionCache
        })
        .await;
    }
}

#[tokio::test]
async fn a_cached_rejection_reports_each_policy_as_the_store_did() {
    let (clock, server) = on_a_clock();
    let policies = [
        Policy::new("few", Quota::requests(1).per_minute()),
        Policy::new("many", Quota::requests(9).per_minute()),
    ];
    let limiter = limiter(store(&server, &clock), policies);
    assert!(limiter.check(key()).await.is_admitted());
    for source in [Store, RejectionCache] {
        let rejected = limiter.check(key()).await;
        assert_eq!(rejected.source(), source);
        assert_eq!(["few", "many"].map(|name| rejected.left(name)), [0, 8]);
        assert_eq!(rejected.policies().len(), 2);
        let error = rejected.into_result().expect_err("a rejection");
        assert_eq!(error.retry_after(), RetryAfter::In(ms(60_000)));
    }
}

/// A policy whose rejections count has the last word on those of all.
#[tokio::test]
async fn charged_rejections_and_in_flight_limits_always_call_the_store() {
    let (clock, server) = on_a_clock();
    let a_minute = |name: &str, requests| Policy::new(name, Quota::requests(requests).per_minute());
    let counts = |requests| a_minute("counts", requests).charge_rejected(true);
    for policies in [
        vec![counts(1)],
        vec![Policy::new("permits", Quota::concurrent(1))],
        vec![a_minute("few", 1), counts(9)],
    ] {
        server.flush();
        let limiter = limiter(store(&server, &clock), policies);
        let admitted = limiter.check(key()).await;
        assert!(admitted.is_admitted());
        for _ in 0..3 {
            let rejected = limiter.check(key()).await;
            assert_eq!((rejected.is_admitted(), rejected.source()), (false, Store));
        }
        drop(admitted);
    }
}
