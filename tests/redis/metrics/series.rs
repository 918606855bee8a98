//! The number of series.

use std::num::NonZeroUsize;

use tollgate_tests::{prelude::*, stores::limiter};

use crate::metrics::{guide, support::*};

/// Fewer than are used.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The number of series by the guide.
fn formula(policies: usize, servers: usize) -> usize {
    let [always, per_policy, per_server] = guide::formula();
    always + per_policy * policies + per_server * servers
}

/// The series, without their values.
fn series(exposition: &Exposition) -> BTreeSet<String> {
    let samples = exposition.0.iter();
    let series: BTreeSet<_> = samples
        .map(|sample| format!("{} {:?}", sample.name, sample.labels))
        .collect();
    assert_eq!(series.len(), exposition.0.len(), "a series twice");
    series
}

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::requests(3).per_minute())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    current_thread().block_on(future)
}

#[test]
fn a_hundred_thousand_keys_leave_the_series_that_the_guide_says() {
    let observed = Observed::default();
    let store = MemoryStore::builder().max_keys(MAX_KEYS).build();
    let refunding = policy("two").refund_unless(outcome::success);
    let policies = [policy("one"), refunding, policy("next").shadow()];
    let limiter = limiter(observed.limiter().store(store), policies);
    let before = series(&observed.exposition());
    assert_eq!(before.len(), formula(3, 0));

    let check = |seed: u64| {
        let mut rng = Rng::new(seed);
        block_on(async {
            for _ in 0..50_000 {
                let key = random_key(&mut rng);
                let times = 1 + rng.below(3);
                let _ = limiter.check(key).times(times).cost(2).await;
            }
        });
    };
    thread::scope(|scope| (0..2).for_each(|seed| drop(scope.spawn(move || check(seed)))));
    let after = observed.exposition();
    assert_eq!(series(&after), before);
    assert!(value(&after, "requests_total") >= 100_000.0);
    assert!(value(&after, "memory_evictions_total") > 0.0);
    assert!(value(&after, "decision_seconds_count source=store") > 1_000.0);
}

/// Checks so many keys at once.
fn check_keys(limiter: &Limiter, keys: usize) {
    let mut rng = Rng::new(1);
    block_on(async {
        let checks = (0..keys).map(|_| limiter.check(random_key(&mut rng)).into_future());
        let decisions = join_all(checks).await;
        let is_by_store = |decision: &Decision| decision.source() == DecisionSource::Store;
        assert!(decisions.iter().all(is_by_store));
    });
}

#[test]
fn each_node_of_a_cluster_adds_what_the_guide_says() {
    let cluster = Cluster::start(3, 0);
    let observed = Observed::default();
    let store = RedisStore::builder().cluster(cluster.urls());
    let store = store.timeout(TEST_TIMEOUT).built();
    let limiter = limiter(observed.limiter().store(store), [policy("one")]);
    check_keys(&limiter, 1_000);
    // Calls of the store are reported by a thread of its own.
    block_on(until("all requests are reported", async || {
        let exposition = observed.exposition();
        series(&exposition).len() == formula(1, 3)
            && value(&exposition, "batch_requests_sum") >= 1_000.0
    }));
    let exposition = observed.exposition();
    assert_eq!(series(&exposition).len(), formula(1, 3));

    // Each node has its own calls and its own circuit breaker.
    for node in cluster.nodes() {
        let node = node.addr().to_string();
        let of_node = |series: &str| value(&exposition, &format!("{series} node={node}"));
        assert!(of_node("store_calls_total result=ok") >= 1.0, "{node}");
        assert_eq!(of_node("store_calls_total result=error"), 0.0, "{node}");
        assert_eq!(of_node("circuit_breaker_state"), 0.0, "{node}");
    }
    let requests = value(&exposition, "batch_requests_sum");
    assert_eq!(requests, 1_000.0);
}

#[test]
fn each_new_policy_adds_what_the_guide_says_and_keeps_its_series_once_it_is_gone() {
    let observed = Observed::default();
    let limiter = in_process(&observed, [policy("one")]);
    let ban = policy("abuse").strategy(Ban::for_duration(TEST_TIMEOUT));
    let shadow = policy("next").shadow();
    let other = Limiter::builder().policy(ban).policy(shadow);
    let with_two = other.policy(policy("two"));
    limiter.reconfigure(with_two).expect("valid policies");
    let after = series(&observed.exposition());
    assert_eq!(after.len(), formula(4, 0));
    let back = Limiter::builder().policy(policy("one"));
    limiter.reconfigure(back).expect("valid policies");
    assert_eq!(series(&observed.exposition()), after);
}
