//! Overrides on a cluster, whose keys are in one slot.

use crate::cluster::support::*;
use tollgate::limiter::Override;

/// Sets an override by one process, and waits until another one is limited by it.
async fn set_and_seen(by: &Limiter, other: &Limiter, requests: u64) {
    let api = by.policy("api").expect("a policy");
    until("it is set", async || {
        let limit = Override::quota(Quota::requests(requests).per_day());
        api.set_override(Key::new("alice"), limit).await.is_ok()
    })
    .await;
    until("the limit holds", async || {
        let decision = other.check("alice").cost(0).await;
        let limit = decision.policy("api").map(|api| api.limit());
        limit == Some(requests)
    })
    .await;
}

#[tokio::test]
async fn they_are_in_one_slot_and_follow_it_to_another_node() {
    let cluster = Cluster::start(3, 0);
    let [a, b] = [(); 2].map(|()| {
        let policy = Policy::new("api", quota("10/day"));
        Limiter::builder()
            .store(store(&cluster))
            .policy(policy)
            .built()
    });
    set_and_seen(&a, &b, 20).await;
    let found = keys(&cluster, "#overrides");
    assert_eq!(found.len(), 2, "{found:?}");
    let (name, from) = &found[0];
    assert!(found.iter().all(|(_, node)| node == from), "{found:?}");
    let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", name]);
    let to = (from + 1) % 3;
    cluster.begin_move(slot.int(), to).end();
    set_and_seen(&b, &a, 30).await;
    let found = keys(&cluster, "#overrides");
    assert!(found.iter().all(|(_, node)| *node == to), "{found:?}");
}
