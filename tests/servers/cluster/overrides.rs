//! Overrides on a cluster, whose keys are in one slot, and behind sentinels.

use crate::cluster::support::*;
use testkit::Sentinel;
use tollgate::limiter::Override;

fn process(store: RedisStore) -> Limiter {
    let policy = Policy::new("api", quota("10/day"));
    Limiter::builder().store(store).policy(policy).built()
}

fn of(requests: u64) -> Override {
    Override::quota(Quota::requests(requests).per_day())
}

async fn until_limit(limiter: &Limiter, expected: u64) {
    until("the limit holds", async || {
        let decision = limiter.check("alice").cost(0).await;
        let limit = decision.policy("api").map(|api| api.limit());
        limit == Some(expected)
    })
    .await;
}

async fn until_set(limiter: &Limiter, requests: u64) {
    let api = limiter.policy("api").expect("a policy");
    until("it is set", async || {
        api.set_override(Key::new("alice"), of(requests))
            .await
            .is_ok()
    })
    .await;
}

#[tokio::test]
async fn they_are_in_one_slot_and_follow_it_to_another_node() {
    let cluster = Cluster::start(3, 0);
    let [a, b] = [(); 2].map(|()| process(store(&cluster)));
    until_set(&a, 20).await;
    until_limit(&b, 20).await;
    let found = keys(&cluster, "#overrides");
    let name = found.first().map(|(name, _)| name.clone()).expect("keys");
    assert_eq!(found.len(), 2, "{found:?}");
    let slot = cluster.nodes()[0]
        .command(&["CLUSTER", "KEYSLOT", &name])
        .int();
    let from = found[0].1;
    assert!(found.iter().all(|(_, node)| *node == from), "{found:?}");
    let moving = cluster.begin_move(slot, (from + 1) % 3);
    moving.end();
    until_set(&b, 30).await;
    until_limit(&a, 30).await;
    let found = keys(&cluster, "#overrides");
    assert!(
        found.iter().all(|(_, node)| *node == (from + 1) % 3),
        "{found:?}"
    );
}

#[tokio::test]
async fn they_follow_the_master_that_sentinels_name() {
    let group = Sentinel::start();
    let watched = || {
        let builder = RedisStore::builder();
        let builder = builder.sentinel(group.master_name(), group.sentinel_urls());
        process(builder.timeout(TEST_TIMEOUT).built())
    };
    let [a, b] = [watched(), watched()];
    until_set(&a, 20).await;
    until_limit(&b, 20).await;
    group.fail_over();
    until_set(&b, 30).await;
    until_limit(&a, 30).await;
    until_limit(&watched(), 30).await;
}
