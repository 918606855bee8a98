//! The metrics of the store, and of its failures.

use std::time::Duration;

use tollgate::{
    OnStoreError, Policy, Quota, RedisStore, StoreError,
    observe::{Observer, StoreCallEvent},
};

use crate::support::Observed;

fn policy() -> Policy {
    Policy::new("api", Quota::requests(3).per_day())
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
