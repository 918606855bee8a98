//! Who is known to be refused on a cluster.

use std::time::Duration;

use tollgate::{Key, Limiter, RedisStore, Source};

use crate::support::{By, PATIENCE, Places, cluster, counted, limiter, until};

/// A limiter that remembers whom the server refused.
fn remembering(policies: &[(&str, &str)]) -> Limiter {
    let store = RedisStore::builder()
        .cluster(cluster().urls())
        .deadline(PATIENCE);
    let policies = policies
        .iter()
        .map(|(name, quota)| By::Window.policy(name, quota));
    limiter(store.build().expect("a store"), policies)
}

#[tokio::test]
async fn who_is_refused_in_one_slot_is_refused_in_process_until_somebody_else_gives_back() {
    let [here, there] = [0, 1].map(|_| remembering(&[("told", "3/month")]));
    for key in ["alice", "bob", "carol"].map(Key::new) {
        let decision = there.check(key).cost(3).await;
        let admission = decision.into_result().expect("admitted");
        assert!(!counted(&here.check(key).await));
        assert_eq!(here.check(key).await.source(), Source::Cache);
        // The generation is known by now, so the next refusal is believed for as long as it stands.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let _ = here.check(key).await;
        until("it is remembered", async || {
            here.check(key).await.source() == Source::Cache
        })
        .await;
        admission.refund(1).await.expect("a refund");
        until("it is noticed here", async || {
            here.check(key).await.is_admitted()
        })
        .await;
    }
}

#[tokio::test]
async fn what_is_refused_across_slots_is_not_remembered() {
    let places = Places::find(cluster(), "never").await;
    let limiter = remembering(&[("a", "2/month"), ("b", "9/month"), ("c", "9/month")]);
    for _ in 0..2 {
        assert!(counted(&limiter.check(places.apart()).await));
    }
    for _ in 0..5 {
        assert!(!counted(&limiter.check(places.apart()).await));
    }
    // What one slot refuses by itself is.
    let alone = places.key(0);
    assert!(!counted(&limiter.check(alone).await));
    assert_eq!(limiter.check(alone).await.source(), Source::Cache);
    assert_eq!(limiter.check(places.apart()).await.source(), Source::Cache);
}
