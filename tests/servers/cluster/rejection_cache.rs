//! What is rejected from memory on a cluster.

use std::time::Duration;

use tollgate::{Key, Limiter, ManualClock, RedisStore, clock::Timestamp, observe::DecisionSource};

use crate::cluster::support::{
    MasterKeys, StrategyKind, TEST_TIMEOUT, admitted_by_store, cluster, keys, limiter,
};

/// Long beside what the machine is late by.
const BOUND: Duration = Duration::from_secs(60);

/// A limiter that caches rejections, by `clock`.
fn remembering(prefix: &str, clock: &ManualClock, policies: &[(&str, &str)]) -> Limiter {
    let store = RedisStore::builder()
        .cluster(cluster().urls())
        .prefix(prefix)
        .timeout(TEST_TIMEOUT)
        .rejection_cache_clock(clock.clone())
        .rejection_cache_staleness(BOUND);
    let policies = policies
        .iter()
        .map(|(name, quota)| StrategyKind::Fixed.policy(name, quota));
    limiter(store.build().expect("a store"), policies)
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000))
}

#[tokio::test]
async fn a_rejection_in_one_slot_is_cached_for_the_bound() {
    let (clock, prefix) = (clock(), "td:");
    let [here, there] = [0, 1].map(|_| remembering(prefix, &clock, &[("shown", "3/month")]));
    let source = async |key| {
        let rejected = here.check(key).await;
        assert!(!rejected.is_admitted());
        rejected.source()
    };
    for key in ["alice", "bob", "carol"].map(Key::new) {
        let decision = there.check(key).cost(3).await;
        let admission = decision.into_result().expect("admitted");
        // However many requests follow, on any node, no later one is rejected from the cache.
        for _ in 0..3 {
            assert_eq!(source(key).await, DecisionSource::Store);
            clock.advance(BOUND / 2);
            assert_eq!(source(key).await, DecisionSource::RejectionCache);
            clock.advance(BOUND / 2);
        }
        assert_eq!(source(key).await, DecisionSource::Store);
        admission
            .policy("shown")
            .expect("a policy")
            .refund(1)
            .await
            .expect("a refund");
        assert_eq!(source(key).await, DecisionSource::RejectionCache);
        clock.advance(BOUND);
        assert!(admitted_by_store(&here.check(key).await));
    }
    // A cluster has no epoch, and no key for it.
    assert!(
        !keys(cluster(), prefix)
            .iter()
            .any(|(key, _)| key.ends_with("gen"))
    );
}

#[tokio::test]
async fn a_refund_by_this_process_on_a_cluster_ends_a_cached_rejection_at_once() {
    let limiter = remembering("tm:", &clock(), &[("mine", "3/month")]);
    for key in ["alice", "bob", "carol"].map(Key::new) {
        let decision = limiter.check(key).cost(3).await;
        let admission = decision.into_result().expect("admitted");
        for source in [DecisionSource::Store, DecisionSource::RejectionCache] {
            assert_eq!(limiter.check(key).await.source(), source);
        }
        admission
            .policy("mine")
            .expect("a policy")
            .refund(1)
            .await
            .expect("a refund");
        assert!(admitted_by_store(&limiter.check(key).await));
    }
}

#[tokio::test]
async fn a_rejection_across_slots_is_not_cached() {
    let master_keys = MasterKeys::find(cluster(), "never").await;
    let limiter = remembering(
        "tg:",
        &clock(),
        &[("a", "2/month"), ("b", "9/month"), ("c", "9/month")],
    );
    for _ in 0..2 {
        assert!(admitted_by_store(&limiter.check(master_keys.apart()).await));
    }
    for _ in 0..5 {
        assert!(!admitted_by_store(
            &limiter.check(master_keys.apart()).await
        ));
    }
    // What one slot rejects by itself is, for the request that it rejected.
    let alone = master_keys.key(0);
    for source in [DecisionSource::Store, DecisionSource::RejectionCache] {
        let rejected = limiter.check(alone).await;
        assert_eq!((rejected.is_admitted(), rejected.source()), (false, source));
    }
    assert_eq!(
        limiter.check(master_keys.apart()).await.source(),
        DecisionSource::Store
    );
}
