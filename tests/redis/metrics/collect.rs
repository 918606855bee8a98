//! Collections: of counts that others keep, at any time.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use tollgate::{
    InvalidValue, Key, Limiter, LimiterBuilder, MemoryStore, Policy, Quota,
    metrics::Metrics,
    observe::{BreakerState, Event, NodeStats, Observer, StoreStats},
    store::{CallersFuture, CounterOp, LimitHandle, Op, Store, StoreResponse},
    strategy::Rule,
};

use crate::metrics::support::Observed;

/// A store in process, whose state and responses are the test's.
pub(crate) struct Stub {
    counts: MemoryStore,
    state: Box<dyn Fn() -> StoreStats + Send + Sync>,
    responds: bool,
}

impl Stub {
    pub(crate) fn with_state(state: impl Fn() -> StoreStats + Send + Sync + 'static) -> Self {
        Self {
            counts: MemoryStore::new(),
            state: Box::new(state),
            responds: true,
        }
    }

    fn silent() -> Self {
        Self {
            responds: false,
            ..Self::with_state(StoreStats::default)
        }
    }
}

impl fmt::Debug for Stub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stub").finish_non_exhaustive()
    }
}

impl Store for Stub {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.counts.register(policy, rule)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        match self.responds {
            true => self.counts.execute(op, counters),
            false => StoreResponse::pending(std::future::pending()),
        }
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        self.counts.callers(limit, key)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        self.counts.execute_detached(op, counters);
    }

    fn stats(&self) -> StoreStats {
        (self.state)()
    }
}

fn one(builder: LimiterBuilder) -> Limiter {
    let policy = Policy::new("one", Quota::requests(3).per_day());
    builder.policy(policy).build().expect("a limiter")
}

/// While one collection has read the state and not used it yet, another one begins, which reads more.
#[test]
fn two_collections_at_once_count_what_happened_once() {
    let observed = Arc::new(Observed::new());
    let (reads, collector) = (AtomicUsize::new(0), observed.clone());
    let store = Stub::with_state(move || {
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
                let _ = ended.recv_timeout(Duration::from_millis(300));
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
    let observed = Observed::new();
    let store = Stub::with_state(|| {
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
    let observed = Observed::new();
    let limiter = one(observed.limiter().store(Stub::silent()));
    let check = limiter.check("alice").into_future();
    assert!(check.now_or_never().is_none());
    let waiting = limiter.wait("alice", Duration::from_secs(60)).into_future();
    assert!(waiting.now_or_never().is_none());
    let exposition = observed.exposition();
    let cancelled = [("outcome", "cancelled")];
    assert_eq!(exposition.value("tollgate_requests_total", &cancelled), 2.0);
    for metric in [
        "tollgate_decision_seconds_count",
        "tollgate_wait_seconds_count",
    ] {
        assert_eq!(exposition.value(metric, &[]), 0.0, "{metric}");
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

#[tokio::test]
async fn a_collection_while_shadow_policies_are_replaced_counts_no_request_twice() {
    let observed = Observed::new();
    let builder = |quota: u64| {
        let next = Policy::new("next", Quota::requests(quota).per_day());
        let one = Policy::new("one", Quota::requests(100).per_day());
        Limiter::builder().policy(one).policy(next.shadow_of("one"))
    };
    let limiter = builder(1).observe(observed.metrics.clone());
    let limiter = limiter.observe(Arc::new(Collects(observed.metrics.clone())));
    let limiter = limiter.build().expect("a limiter");
    for quota in 2..5 {
        assert!(limiter.check("alice").await.is_admitted());
        limiter.reconfigure(builder(quota)).expect("valid policies");
    }
    let evaluated = [("policy", "next")];
    assert_eq!(
        observed.value("tollgate_shadow_requests_total", &evaluated),
        3.0
    );
}

#[tokio::test]
async fn shadow_policies_that_change_between_two_collections_lose_no_request() {
    let observed = Observed::new();
    let builder = |builder: LimiterBuilder, quota: u64| {
        let next = Policy::new("next", Quota::requests(quota).per_day());
        let one = Policy::new("one", Quota::requests(100).per_day());
        builder.policy(one).policy(next.shadow_of("one"))
    };
    let limiter = builder(observed.limiter(), 1).build();
    let limiter = limiter.expect("a limiter");
    let requests = async |n: u64| {
        for _ in 0..n {
            assert!(limiter.check("alice").await.is_admitted());
        }
    };
    let evaluated = || observed.value("tollgate_shadow_requests_total", &[("policy", "next")]);
    requests(10).await;
    assert_eq!(evaluated(), 10.0);
    for quota in 2..5 {
        requests(7).await;
        let next = builder(Limiter::builder(), quota);
        limiter.reconfigure(next).expect("valid policies");
    }
    requests(25).await;
    assert_eq!(evaluated(), 56.0);
}
