//! Collections: of counts that others keep, at any time.

use std::sync::{atomic::Ordering::Relaxed, mpsc};

use tollgate::{
    metrics::Metrics,
    observe::{BreakerState, Event, NodeStats, StoreStats},
};
use tollgate_tests::prelude::*;

use crate::metrics::support::*;

fn one(builder: LimiterBuilder) -> Limiter {
    let policy = Policy::new("one", Quota::requests(3).per_day());
    builder.policy(policy).build().expect("a limiter")
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
    let evictions = || observed.value("tollgate_memory_evictions_total", &[]);
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
    let other = [("node", "other")];
    let state = |labels| exposition.value("tollgate_circuit_breaker_state", labels);
    assert_eq!((state(&other), state(&[])), (2.0, 2.0));
    let connections = |labels| exposition.value("tollgate_store_connections", labels);
    assert_eq!((connections(&other), connections(&[])), (10.0, 42.0));
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
    let cancelled = [("outcome", "cancelled")];
    assert_eq!(exposition.value("tollgate_requests_total", &cancelled), 2.0);
    for metric in ["decision", "wait"] {
        let name = format!("tollgate_{metric}_seconds_count");
        assert_eq!(exposition.value(&name, &[]), 0.0, "{metric}");
    }
}

/// Collects whenever policies are about to be in force.
#[derive(Debug)]
struct Collects(Arc<Metrics>);

impl Observer for Collects {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::PoliciesInForce { .. } = event {
            self.0.collect();
        }
    }
}

/// A policy, and a shadow of it that is changed by its quota.
fn with_shadow(builder: LimiterBuilder, quota: u64) -> LimiterBuilder {
    let next = Policy::new("next", Quota::requests(quota).per_day());
    let one = Policy::new("one", Quota::requests(100).per_day());
    builder.policy(one).policy(next.shadow_of("one"))
}

#[tokio::test]
async fn shadow_policies_that_are_replaced_lose_no_request_and_count_none_twice() {
    for collects in [false, true] {
        let observed = Observed::default();
        let mut builder = with_shadow(observed.limiter(), 1);
        if collects {
            builder = builder.observe(Arc::new(Collects(observed.metrics.clone())));
        }
        let limiter = builder.build().expect("a limiter");
        let evaluated = async |n: u64| {
            for _ in 0..n {
                assert!(limiter.check("alice").await.is_admitted());
            }
            observed.value("tollgate_shadow_requests_total", &[("policy", "next")])
        };
        assert_eq!(evaluated(10).await, 10.0);
        for quota in 2..5 {
            for _ in 0..7 {
                assert!(limiter.check("alice").await.is_admitted());
            }
            let next = with_shadow(Limiter::builder(), quota);
            limiter.reconfigure(next).expect("valid policies");
        }
        assert_eq!(evaluated(25).await, 56.0, "collects: {collects}");
    }
}
