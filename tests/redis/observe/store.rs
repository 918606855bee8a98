//! What a store reports: round trips, the circuit breaker, and its state.

use tollgate::observe::{BreakerState, LimiterStats};
use tollgate_tests::{prelude::*, stores::redis};

use crate::observe::support::*;

fn on(server: &Server) -> LimiterBuilder {
    let store = RedisStore::builder().url(server.url());
    let store = store.timeout(TEST_TIMEOUT).connections(1);
    let builder = Limiter::builder().store(store.built());
    builder.policy(limit("p", "1000/month"))
}

fn requests_of_calls(record: &Record) -> usize {
    let done = record.calls.iter().filter(|call| call.result == "ok");
    done.map(|call| call.requests).sum()
}

#[tokio::test]
async fn one_event_is_reported_for_each_round_trip_with_all_its_requests() {
    let server = Server::start();
    let (limiter, recorder) = recorded_by(on(&server), []);
    let check = |key| limiter.check(format!("key-{}", key % 25)).into_future();
    let checks = join_all((0..50).map(check)).await;
    assert!(checks.iter().all(Decision::is_admitted));
    let record = recorder.record();
    assert_eq!(requests_of_calls(&record), 50);
    assert!(record.calls.len() < 50, "{} calls", record.calls.len());
    let first = &record.calls[0];
    assert_eq!(first.node, server.addr().to_string());
    let round_trips = server.calls("evalsha") + server.calls("eval");
    assert_eq!(record.calls.len() as u64, round_trips);
    // The server did not know the script at first: no failure.
    let repeated = record.calls.iter().filter(|call| call.result != "ok");
    assert!(repeated.clone().all(|call| call.result == "repeated"));
    assert_eq!(repeated.count() as u64, server.calls("eval"));
    let stats = limiter.stats().store;
    assert_eq!(stats.nodes.len(), 1);
    let node = &stats.nodes[0];
    assert_eq!((&*node.node, node.connections), (&*first.node, 1));
    assert_eq!(node.breaker, BreakerState::Closed);
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

#[tokio::test]
async fn a_failed_server_is_reported_with_its_errors_and_its_breaker() {
    let server = Server::start();
    let (limiter, recorder) = recorded_by(on(&server).on_store_error(OnStoreError::Admit), []);
    assert!(limiter.check(KEY).await.is_admitted());
    server.kill();
    until("the breaker is open", async || {
        let decision = limiter.check(KEY).await;
        assert!(decision.is_admitted());
        limiter.stats().store.nodes[0].breaker != BreakerState::Closed
    })
    .await;
    let record = recorder.record();
    assert_eq!(record.outcome(DecisionOutcome::Admitted), record.requests());
    assert!(record.uncounted >= 3);
    let results = record.calls.iter().map(|call| call.result);
    let failed: Vec<_> = results
        .filter(|result| !matches!(*result, "ok" | "repeated"))
        .collect();
    assert!(failed.iter().all(|code| StoreError::CODES.contains(code)));
    assert!(failed.contains(&"connection"), "{failed:?}");
    let node = server.addr().to_string();
    let opened = format!("BreakerChanged {{ node: {node:?}, state: Open }}");
    assert!(record.events.contains(&opened), "{:?}", record.events);
}

#[tokio::test]
async fn the_state_of_a_memory_store_has_its_keys() {
    let store = MemoryStore::new();
    let limiter = stores::limiter(Limiter::builder().store(store), [limit("p", "9/month")]);
    for key in ["a", "b", "c"] {
        let _ = limiter.check(("p", key)).await;
    }
    let stats = limiter.stats();
    assert_eq!(stats.store.memory_keys, Some(3));
    assert_eq!(stats.store.memory_evictions, Some(0));
    let p = &stats.policies[0];
    assert_eq!((stats.generation, &*p.policy, p.limit), (0, "p", 9));
}

#[tokio::test]
async fn a_handle_reads_the_state_for_as_long_as_the_limiter_lives() {
    let (limiter, recorder) = recorded(&World::memory(), [limit("p", "9/month")]);
    let handle = recorder.handle().expect("one");
    let generation = |stats: LimiterStats| stats.generation;
    assert_eq!(handle.stats().map(generation), Some(0));
    let next = Limiter::builder().policy(limit("p", "7/month"));
    limiter.reconfigure(next).expect("valid");
    assert_eq!(handle.stats().map(generation), Some(1));
    drop(limiter);
    assert!(handle.stats().is_none());
}
