//! What is rejected from memory on a cluster.

use crate::cluster::support::*;
use tollgate::clock::Timestamp;
use tollgate_tests::every_policy::refund_every;

/// Long beside what the machine is late by.
const BOUND: Duration = secs(60);

/// A limiter that caches rejections, by `clock`.
fn remembering(prefix: &str, clock: &ManualClock, policies: &[(&str, &str)]) -> Limiter {
    let store = RedisStore::builder()
        .cluster(cluster().urls())
        .prefix(prefix)
        .timeout(TEST_TIMEOUT)
        .rejection_cache_clock(clock.clone())
        .rejection_cache_staleness(BOUND);
    let policies = policies.iter();
    let policies = policies.map(|(name, quota)| Fixed.policy(name, quota));
    limiter(store.built(), policies)
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
        for source in [DecisionSource::Store, DecisionSource::RejectionCache] {
            assert_eq!(there.check(key).await.source(), source);
        }
        refund_every(&admission, 2).await.expect("a refund");
        // By the process that refunds, no longer at all.
        assert!(admitted_by_store(&there.check(key).await));
        assert_eq!(source(key).await, DecisionSource::RejectionCache);
        clock.advance(BOUND);
        assert!(admitted_by_store(&here.check(key).await));
    }
}

#[tokio::test]
async fn a_rejection_across_slots_is_not_cached() {
    let master_keys = MasterKeys::find(cluster(), "never").await;
    let policies = [("a", "2/month"), ("b", "9/month"), ("c", "9/month")];
    let limiter = remembering("tg:", &clock(), &policies);
    for is_admitted in [true, true, false, false, false, false, false] {
        assert_eq!(admits(&limiter, master_keys.apart()).await, is_admitted);
    }
    // What one slot rejects by itself is, for the request that it rejected.
    let alone = master_keys.key(0);
    for source in [DecisionSource::Store, DecisionSource::RejectionCache] {
        let rejected = limiter.check(alone).await;
        assert_eq!((rejected.is_admitted(), rejected.source()), (false, source));
    }
    let source = limiter.check(master_keys.apart()).await.source();
    assert_eq!(source, DecisionSource::Store);
}
