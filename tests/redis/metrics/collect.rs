//! Collections: of settings, and of counts that others keep, at any time.

use std::sync::{atomic::Ordering::Relaxed, mpsc};

use tollgate::observe::{BreakerState, LeaseStats, NodeStats, StoreCallEvent, StoreStats};
use tollgate_tests::prelude::*;

use crate::metrics::support::*;

fn one(builder: LimiterBuilder) -> Limiter {
    stores::limiter(builder, [daily("api", 3)])
}

#[tokio::test]
async fn requests_are_near_the_limit_from_a_percentage_on_that_can_be_set() {
    for (percent, expected) in [(None, [8.0, 2.0, 5.0]), (Some(50), [5.0, 5.0, 5.0])] {
        let observed = Observed::with(|metrics| match percent {
            Some(percent) => metrics.near_percent(percent),
            None => metrics,
        });
        let limiter = in_process(&observed, [daily("api", 10)]);
        send(&limiter, 15).await;
        let results = ["within", "near", "over"].map(|result| {
            let series = format!("policy_requests_total policy=api result={result}");
            value_now(&observed, &series)
        });
        assert_eq!(results, expected);
    }
}

#[tokio::test]
async fn quotas_are_gauges_and_change_with_the_policies() {
    let observed = Observed::default();
    let policies = [
        Policy::new("api", quota("100/min burst 20")),
        Policy::new("busy", Quota::concurrent(8)),
        Policy::block_list("blocked"),
    ];
    let limiter = in_process(&observed, policies);
    let gauges = |policy: &str| {
        let gauges = ["quota_units", "quota_period_seconds", "burst_units"];
        gauges.map(|gauge| value_now(&observed, &format!("policy_{gauge} policy={policy}")))
    };
    assert_eq!(gauges("api"), [100.0, 60.0, 20.0]);
    assert_eq!(gauges("busy"), [8.0, 0.0, 8.0]);
    assert_eq!(gauges("blocked"), [0.0; 3]);
    let blocked = &limiter.stats().policies[2];
    assert_eq!((blocked.quota, blocked.limit), (None, 0));
    let next = Limiter::builder().policy(Policy::new("api", quota("7/s")));
    limiter.reconfigure(next).expect("a policy");
    assert_eq!(gauges("api"), [7.0, 1.0, 7.0]);
    assert_eq!(gauges("busy"), [0.0; 3]);
    drop(limiter);
    assert_eq!(gauges("api"), [0.0; 3]);
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
async fn servers_beyond_the_64th_share_a_label_and_show_the_worst_breaker_and_all_connections() {
    let observed = Observed::default();
    let name = |number: u64| format!("10.0.0.{number}:6379");
    let store = StubStore::with_stats(move || {
        let node = |number: u64| {
            let breaker = match number {
                77 => BreakerState::Open,
                _ => BreakerState::Closed,
            };
            NodeStats::new(name(number), breaker, number % 2)
        };
        let mut state = StoreStats::default();
        state.nodes = (0..84).map(node).collect();
        (state.dropped_refunds, state.unconfirmed_refunds) = (3, 5);
        state
    });
    let _limiter = one(observed.limiter().store(store));
    let error = StoreError::server("OOM", "");
    for number in 0..200 {
        let node = name(number);
        let call = StoreCallEvent::new(&node, ms(1)).with_ops(2, 2);
        observed.metrics.on_store_call(&call);
        observed.metrics.on_store_call(&call.with_error(&error));
    }
    let exposition = observed.exposition();
    let connections = exposition.find("tollgate_store_connections", &[]);
    assert_eq!(connections.count(), 65);
    for (series, expected) in [
        ("circuit_breaker_state node=other", 2.0),
        ("circuit_breaker_state", 2.0),
        ("store_connections node=other", 10.0),
        ("store_connections", 42.0),
        ("store_calls_total node=10.0.0.63:6379", 2.0),
        ("store_calls_total node=other result=ok", 136.0),
        ("store_calls_total", 400.0),
        ("store_errors_total code=oom", 200.0),
        ("refunds_dropped_total", 3.0),
        ("refunds_unconfirmed_total", 5.0),
    ] {
        assert_eq!(value(&exposition, series), expected, "{series}");
    }
}

/// The state of a store whose leases under the policies of these names have had so many units.
fn leases(policies: &[&str], units: u64) -> StoreStats {
    let leases = policies.iter().map(|policy| {
        let mut stats = LeaseStats::new(Arc::from(*policy));
        (stats.granted, stats.spent, stats.refunded) = (10 * units, 6 * units, 2 * units);
        (stats.lapsed, stats.held) = (units, units);
        stats
    });
    let mut state = StoreStats::default();
    state.leases = leases.collect();
    state
}

#[tokio::test]
async fn units_of_leases_go_on_in_a_limiter_with_another_store() {
    let observed = Observed::default();
    let on = |store| one(observed.limiter().store(store));
    let api = || {
        let exposition = observed.exposition();
        // A policy of another limiter on the store has no series.
        let held = exposition.find("tollgate_lease_units_held", &[]);
        assert_eq!(held.count(), 1);
        let units = ["granted", "spent", "refunded", "lapsed"].map(|kind| {
            let series = format!("lease_units_total policy=api kind={kind}");
            value(&exposition, &series)
        });
        (units, value(&exposition, "lease_units_held policy=api"))
    };
    let first = on(StubStore::with_stats(|| leases(&["api", "of another"], 7)));
    assert_eq!(api(), ([70.0, 42.0, 14.0, 7.0], 7.0));

    // The counts of the next store begin anew.
    let second = on(StubStore::with_stats(|| leases(&["api"], 2)));
    assert_eq!(api(), ([90.0, 54.0, 18.0, 9.0], 2.0));
    drop(first);
    assert_eq!(api(), ([90.0, 54.0, 18.0, 9.0], 2.0));

    // Those of one that has leased nothing yet, too, and soon has leased more than the one before.
    let leased = Arc::new(AtomicBool::new(false));
    let is_leased = leased.clone();
    let third = on(StubStore::with_stats(move || {
        let policies: &[&str] = if is_leased.load(Relaxed) {
            &["api"]
        } else {
            &[]
        };
        leases(policies, 9)
    }));
    drop(second);
    leased.store(true, Relaxed);
    assert_eq!(api(), ([180.0, 108.0, 36.0, 18.0], 9.0));
    drop(third);
    assert_eq!(api(), ([180.0, 108.0, 36.0, 18.0], 0.0));
}
