//! Collections: of counts that others keep, at any time.

use std::sync::{atomic::Ordering::Relaxed, mpsc};

use tollgate::observe::{BreakerState, NodeStats, StoreStats};
use tollgate_tests::prelude::*;

use crate::metrics::support::*;

fn one(builder: LimiterBuilder) -> Limiter {
    stores::limiter(builder, [daily("one", 3)])
}

/// While one collection has read the state and not used it yet, another one begins, which reads more.
#[test]
fn two_collections_at_once_count_what_happened_once() {
    let observed = Arc::new(Observed::default());
    let (reads, collector) = (AtomicUsize::new(0), observed.clone());
    let store = StubStore::with_stats(move || {
        let mut state = StoreStats::default();
        // The first read is that of the limiter that is built.
        state.memory_evictions = Some(match reads.fetch_add(1, Relaxed) {
            0 => 0,
            1 => {
                let (collector, (ends, ended)) = (collector.clone(), mpsc::channel());
                thread::spawn(move || {
                    collector.metrics.collect();
                    let _ = ends.send(());
                });
                // It may have to wait for this one.
                let _ = ended.recv_timeout(ms(300));
                10
            }
            _ => 12,
        });
        state
    });
    let _limiter = one(observed.limiter().store(store));
    let evictions = || value_now(&observed, "memory_evictions_total");
    assert!(evictions() <= 12.0);
    assert_eq!(evictions(), 12.0);
}

#[tokio::test]
async fn the_servers_that_share_a_label_show_the_worst_circuit_breaker_and_all_connections() {
    let observed = Observed::default();
    let store = StubStore::with_stats(|| {
        let node = |number: u64| {
            let breaker = match number {
                77 => BreakerState::Open,
                _ => BreakerState::Closed,
            };
            NodeStats::new(format!("10.0.0.{number}:6379"), breaker, number % 2)
        };
        let mut state = StoreStats::default();
        state.nodes = (0..84).map(node).collect();
        state
    });
    let _limiter = one(observed.limiter().store(store));
    let exposition = observed.exposition();
    for (series, expected) in [
        ("circuit_breaker_state node=other", 2.0),
        ("circuit_breaker_state", 2.0),
        ("store_connections node=other", 10.0),
        ("store_connections", 42.0),
    ] {
        assert_eq!(value(&exposition, series), expected, "{series}");
    }
}

#[tokio::test]
async fn requests_that_are_dropped_before_their_decision_have_no_time_to_it() {
    let observed = Observed::default();
    let limiter = one(observed.limiter().store(StubStore::silent()));
    let check = limiter.check("alice").into_future();
    assert!(check.now_or_never().is_none());
    let waiting = limiter.wait("alice", secs(60)).into_future();
    assert!(waiting.now_or_never().is_none());
    let exposition = observed.exposition();
    for (series, expected) in [
        ("requests_total outcome=cancelled", 2.0),
        ("decision_seconds_count", 0.0),
        ("wait_seconds_count", 0.0),
    ] {
        assert_eq!(value(&exposition, series), expected, "{series}");
    }
}
