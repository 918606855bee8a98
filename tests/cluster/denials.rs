//! Who is known to be refused on a cluster.

use std::time::Duration;

use tollgate::{Key, Limiter, ManualClock, RedisStore, Source, Timestamp};

use crate::support::{By, PATIENCE, Places, cluster, counted, keys, limiter, until};

const BOUND: Duration = Duration::from_secs(1);

/// What the tests advance the clock by: less than the bound, and more than the half of it, after which the generation is
/// read again.
const STEP: Duration = Duration::from_millis(600);

/// A limiter that remembers whom the server refused, and goes by `clock` for that.
fn remembering(prefix: &str, clock: &ManualClock, policies: &[(&str, &str)]) -> Limiter {
    let store = RedisStore::builder()
        .cluster(cluster().urls())
        .prefix(prefix)
        .deadline(PATIENCE)
        .clock(clock.clone())
        .denials(BOUND);
    let policies = policies
        .iter()
        .map(|(name, quota)| By::Fixed.policy(name, quota));
    limiter(store.build().expect("a store"), policies)
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000))
}

/// What the cluster says about refusals that ended early.
fn generation(prefix: &str) -> Option<String> {
    let found = keys(cluster(), prefix);
    let (key, node) = found.into_iter().find(|(key, _)| key.ends_with("}gen"))?;
    let reply = cluster().nodes()[node].command(&["GET", &key]);
    Some(reply.text())
}

#[tokio::test]
async fn who_is_refused_in_one_slot_is_refused_in_process_until_somebody_else_gives_back() {
    let (clock, prefix) = (clock(), "td:");
    let [here, there] = [0, 1].map(|_| remembering(prefix, &clock, &[("told", "3/month")]));
    let is_remembered = async |key| here.check(key).await.source() == Source::Cache;
    for key in ["alice", "bob", "carol"].map(Key::new) {
        let decision = there.check(key).cost(3).await;
        let admission = decision.into_result().expect("admitted");
        assert!(!counted(&here.check(key).await));
        assert!(is_remembered(key).await);
        // Past the bound it is believed if the generation was known when it was asked for, and is what it was.
        let mut in_a_row = 0;
        until("it is remembered for as long as it stands", async || {
            clock.advance(STEP);
            in_a_row = if is_remembered(key).await {
                in_a_row + 1
            } else {
                0
            };
            in_a_row == 2
        })
        .await;
        let before = generation(prefix);
        admission.refund(1).await.expect("a refund");
        until("it is told", async || generation(prefix) != before).await;
        // The generation is read again, at the latest. The clock stands, so what is no longer believed then was lifted by it.
        clock.advance(STEP);
        until("it is noticed here", async || {
            here.check(key).await.is_admitted()
        })
        .await;
    }
}

#[tokio::test]
async fn what_is_refused_across_slots_is_not_remembered() {
    let places = Places::find(cluster(), "never").await;
    let limiter = remembering(
        "tg:",
        &clock(),
        &[("a", "2/month"), ("b", "9/month"), ("c", "9/month")],
    );
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
