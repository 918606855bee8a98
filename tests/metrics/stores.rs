//! The metrics of the store, and of its failures.

use std::time::Duration;

use testkit::Server;
use tollgate::{
    OnStoreError, Policy, Quota, RedisStore, StoreError,
    observe::{Observer, StoreCallEvent},
};

use crate::{
    support::Observed,
    until::{TEST_TIMEOUT, until},
};

fn policy() -> Policy {
    Policy::new("api", Quota::requests(3).per_day())
}

#[tokio::test]
async fn cached_rejections_are_counted_and_have_a_source_of_their_own() {
    let server = Server::start();
    let observed = Observed::new();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let builder = observed.limiter().store(store.build().expect("a store"));
    let limiter = builder.policy(policy()).build().expect("a limiter");
    for _ in 0..10 {
        drop(limiter.check("alice").await);
    }
    let rejected = |source| {
        let labels = [("outcome", "rejected"), ("source", source)];
        observed.value("tollgate_requests_total", &labels)
    };
    assert_eq!(rejected("store") + rejected("rejection_cache"), 7.0);
    assert!(rejected("rejection_cache") >= 1.0);
    assert_eq!(observed.value("tollgate_rejection_cache_entries", &[]), 1.0);
}

#[tokio::test]
async fn a_failing_store_shows_by_errors_its_circuit_breaker_and_uncounted_requests() {
    let server = Server::start();
    let observed = Observed::new();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(Duration::from_millis(500));
    let builder = observed.limiter().store(store.build().expect("a store"));
    let limiter = builder.policy(policy()).build().expect("a limiter");
    assert!(limiter.check("alice").await.is_admitted());
    let node = server.addr().to_string();
    let state = || observed.value("tollgate_circuit_breaker_state", &[("node", &node)]);
    assert_eq!(state(), 0.0);
    server.kill();
    let mut asked = 0;
    until("the circuit breaker opens", async || {
        asked += 1;
        assert!(limiter.check("alice").await.is_admitted());
        state() > 0.0
    })
    .await;
    let exposition = observed.exposition();
    let uncounted = exposition.value("tollgate_admitted_uncounted_total", &[]);
    assert_eq!(uncounted, f64::from(asked));
    let fallback = [("outcome", "admitted"), ("source", "fallback")];
    assert_eq!(
        exposition.value("tollgate_requests_total", &fallback),
        f64::from(asked)
    );
    let failed = [("node", &*node), ("result", "error")];
    let failed = exposition.value("tollgate_store_calls_total", &failed);
    let by_code = exposition.value("tollgate_store_errors_total", &[]);
    assert!(
        failed >= 1.0 && by_code == failed,
        "{failed} calls, {by_code} by code"
    );
    server.restart();
    until("the circuit breaker closes", async || {
        drop(limiter.check("alice").await);
        state() == 0.0
    })
    .await;
}

#[tokio::test]
async fn requests_that_are_rejected_for_a_failed_store_have_an_outcome_of_their_own() {
    let observed = Observed::new();
    let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let builder = observed
        .limiter()
        .store(store)
        .on_store_error(OnStoreError::Reject);
    let limiter = builder.policy(policy()).build().expect("a limiter");
    assert!(limiter.admit("alice").await.is_err());
    let failed = [("outcome", "store_failed")];
    assert_eq!(observed.value("tollgate_requests_total", &failed), 1.0);
    assert_eq!(
        observed.value("tollgate_admitted_uncounted_total", &[]),
        0.0
    );
}

#[tokio::test]
async fn servers_beyond_the_64th_share_a_label() {
    let observed = Observed::new();
    let error = StoreError::server("OOM", "");
    for number in 0..200 {
        let node = format!("10.0.0.{number}:6379");
        let call = StoreCallEvent::new(&node, Duration::from_millis(1)).with_ops(2, 2);
        observed.metrics.on_store_call(&call);
        observed.metrics.on_store_call(&call.with_error(&error));
    }
    let exposition = observed.exposition();
    let calls = |labels: &[(&str, &str)]| exposition.value("tollgate_store_calls_total", labels);
    assert_eq!(
        exposition.find("tollgate_store_connections", &[]).count(),
        65
    );
    assert_eq!(calls(&[("node", "10.0.0.63:6379")]), 2.0);
    assert_eq!(calls(&[("node", "other"), ("result", "ok")]), 136.0);
    assert_eq!(calls(&[]), 400.0);
    assert_eq!(
        exposition.value("tollgate_store_errors_total", &[("code", "oom")]),
        200.0
    );
}
