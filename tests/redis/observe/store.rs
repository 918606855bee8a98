//! What a store reports: round trips, the circuit breaker, and its state.

use tokio::runtime::Handle;
use tollgate::observe::BreakerState;
use tollgate_tests::prelude::*;

use crate::{
    metrics::support::{value, value_now},
    observe::support::*,
};

/// A store on the test's runtime, which calls observers before the request has its result.
fn redis(server: &Server) -> RedisStore {
    let store = RedisStore::builder().url(server.url());
    let store = store.timeout(TEST_TIMEOUT);
    store.runtime(Handle::current()).built()
}

fn on(server: &Server) -> Watched {
    let builder = Limiter::builder().store(redis(server));
    let builder = builder.on_store_error(OnStoreError::Admit);
    watched(builder, [Policy::new("p", quota("1000/month"))])
}

#[tokio::test]
async fn each_round_trip_is_told_once_with_all_its_requests_its_server_and_its_result() {
    let server = Server::start();
    let watched = on(&server);
    let check = |key| {
        watched
            .limiter
            .check(format!("key-{}", key % 25))
            .into_future()
    };
    let checks = join_all((0..50).map(check)).await;
    assert!(checks.iter().all(Decision::is_admitted));
    let (record, exposition) = watched.figures().await;
    let node = server.addr().to_string();
    let (done, repeated): (Vec<_>, Vec<_>) =
        record.calls.iter().partition(|call| call.result == "ok");
    assert!(record.calls.iter().all(|call| call.node == node));
    assert!(record.calls.len() < 50, "{} calls", record.calls.len());
    assert_eq!(done.iter().map(|call| call.requests).sum::<usize>(), 50);
    assert_eq!(done.len() as u64, server.calls("evalsha"));
    // The server did not know the script at first: no failure.
    assert!(repeated.iter().all(|call| call.result == "repeated"));
    assert_eq!(repeated.len() as u64, server.calls("eval"));
    for (series, expected) in [
        ("store_calls_total result=ok", done.len()),
        ("store_calls_total result=repeated", repeated.len()),
        ("store_calls_total result=error", 0),
        ("store_call_seconds_count", record.calls.len()),
        ("batch_requests_count", done.len()),
        ("batch_requests_sum", 50),
        ("circuit_breaker_state", 0),
        ("store_connections", 1),
    ] {
        let series = format!("{series} node={node}");
        assert_eq!(value(&exposition, &series) as usize, expected, "{series}");
    }
    assert_eq!(value(&exposition, "store_errors_total"), 0.0);
    let timed = value(&exposition, "decision_seconds_count source=store");
    assert_eq!(timed, 50.0);
    let nodes = watched.limiter.stats().store.nodes;
    assert_eq!(
        (nodes.len(), &*nodes[0].node, nodes[0].connections),
        (1, &*node, 1)
    );
    assert_eq!(nodes[0].breaker, BreakerState::Closed);
}

#[tokio::test]
async fn a_failed_server_is_told_by_its_errors_its_breaker_and_uncounted_requests() {
    let server = Server::start();
    let watched = on(&server);
    assert!(watched.limiter.check(KEY).await.is_admitted());
    let node = server.addr().to_string();
    let breaker = || watched.limiter.stats().store.nodes[0].breaker;
    server.kill();
    until("the breaker is open", async || {
        assert!(watched.limiter.check(KEY).await.is_admitted());
        breaker() != BreakerState::Closed
    })
    .await;
    let (record, exposition) = watched.figures().await;
    assert_eq!(record.uncounted, record.sources[&DecisionSource::Fallback]);
    assert!(record.uncounted >= 3);
    let results = record.calls.iter().map(|call| call.result);
    let failed: Vec<_> = results
        .filter(|result| !matches!(*result, "ok" | "repeated"))
        .collect();
    assert!(failed.iter().all(|code| StoreError::CODES.contains(code)));
    assert!(failed.contains(&"connection"), "{failed:?}");
    let calls = value(
        &exposition,
        &format!("store_calls_total node={node} result=error"),
    );
    // The server may have been probed since.
    assert!(calls >= failed.len() as f64, "{calls}");
    assert_eq!(value(&exposition, "store_errors_total"), calls);
    let series = format!("circuit_breaker_state node={node}");
    assert!(value(&exposition, &series) > 0.0);
    let opened = format!("BreakerChanged {{ node: {node:?}, state: Open }}");
    assert!(record.events.contains(&opened), "{:?}", record.events);
    server.restart();
    until("it closes", async || {
        let _ = watched.limiter.check(KEY).await;
        breaker() == BreakerState::Closed
    })
    .await;
    assert_eq!(value_now(&watched.metrics, &series), 0.0);
}

#[tokio::test]
async fn a_call_whose_requests_fail_within_the_script_is_told_as_a_failure() {
    let server = Server::start();
    let watched = on(&server);
    let uncounted = async |key: &str| {
        let decision = watched.limiter.check(key).await;
        decision.source() == DecisionSource::Fallback
    };
    assert!(!uncounted("alice").await);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    assert!(uncounted("bob").await);
    for series in [
        "store_calls_total result=error",
        "store_errors_total code=oom",
    ] {
        assert_eq!(value_now(&watched.metrics, series), 1.0, "{series}");
    }
}

#[tokio::test]
async fn a_store_that_two_limiters_share_calls_their_observer_once() {
    let server = Server::start();
    let (recorder, other) = (Recorder::new(), Recorder::new());
    let store = redis(&server);
    let limiter = |name: &str, observer: Arc<Recorder>| {
        let builder = Limiter::builder().store(store.clone());
        stores::limiter(builder.observe(observer), [limit(name, "9/month")])
    };
    let limiters = [
        limiter("a", recorder.clone()),
        limiter("b", recorder.clone()),
        limiter("c", other.clone()),
    ];
    assert!(limiters[0].check(KEY).await.is_admitted());
    recorder.clear();
    assert!(limiters[0].check(KEY).await.is_admitted());
    let record = recorder.record();
    assert_eq!((record.calls.len(), record.requests()), (1, 1));
    // The calls are the store's, the decisions the limiter's.
    assert_eq!(other.record().requests(), 0);
    let weak = Arc::downgrade(&other);
    drop((limiters, other));
    assert!(weak.upgrade().is_none(), "the store keeps an observer");
}
