//! A Redis Cluster: requests with keys in one slot are leased, others are not.

use std::slice;

use crate::{
    cluster::support::{MasterKeys, builder, keys, store},
    leases::support::*,
};

async fn send(limiter: &Limiter, [p, q]: [Key; 2], requests: u64) -> (u64, u64) {
    let (mut admitted, mut by_lease) = (0, 0);
    for _ in 0..requests {
        let decision = limiter.check([("p", p), ("q", q)]).await;
        admitted += u64::from(decision.is_admitted());
        by_lease += u64::from(decision.source() == DecisionSource::Lease);
    }
    (admitted, by_lease)
}

#[test]
fn keys_in_one_slot_are_leased_and_keys_in_several_are_not() {
    scene(async |scene| {
        let cluster = Cluster::start(3, 0);
        let policies = || ["p", "q"].map(|name| leased(Fixed, name, "1000/month"));
        let one_tag = builder(cluster.urls()).hash_tags(1).built();
        let (together, [p, q]) = (limiter(one_tag, policies()), ["x", "y"].map(Key::new));
        let (admitted, by_lease) = send(&together, [p, q], 400).await;
        assert!(admitted == 400 && by_lease > 0, "{admitted} {by_lease}");
        scene.refund_leases(slice::from_ref(&together)).await;
        until("what was left is refunded", async || {
            let seen = together.peek([("p", p), ("q", q)]).await;
            let seen = seen.expect("a response");
            [seen.used("p"), seen.used("q")] == [400, 400]
        })
        .await;
        let master_keys = MasterKeys::find(&cluster, "apart").await;
        let apart = limiter(store(&cluster), policies());
        let keys = [0, 1].map(|master| master_keys.key(master));
        assert_eq!(send(&apart, keys, 400).await, (400, 0));
        assert!(leases(&apart, "p").is_none());
    });
}

/// Requests of all limiters at once; returns how many were admitted, and how many of them by leases.
async fn send_all(scene: &Scene, limiters: &[Limiter]) -> (u64, u64) {
    let limiters = limiters.iter().cycle().take(120);
    let decisions = join_all(limiters.map(|limiter| limiter.check(KEY).into_future()));
    let decisions = scene.wait(decisions).await;
    let count = |is_counted: fn(&&Decision) -> bool| decisions.iter().filter(is_counted).count();
    let by_lease = count(|it| it.source() == DecisionSource::Lease);
    (count(|it| it.is_admitted()) as u64, by_lease as u64)
}

#[test]
fn leases_go_on_while_their_slot_moves_and_a_quota_is_used_to_its_end_and_not_exceeded() {
    scene(async |scene| {
        let cluster = Cluster::start(3, 0);
        let policy = || leased(Log, "p", "4000/month");
        let limiters = [(); 3].map(|()| limiter(store(&cluster), [policy()]));
        let (mut admitted, mut by_lease) = (hold(&limiters[0], KEY).await, 0);
        let mut send = async || {
            let (more, leased) = send_all(&scene, &limiters).await;
            (admitted, by_lease) = (admitted + more, by_lease + leased);
            (admitted, by_lease)
        };
        let (name, from) = keys(&cluster, ":p:").remove(0);
        let slot = ["CLUSTER", "KEYSLOT", &name];
        let slot = cluster.nodes()[0].command(&slot).int();
        for step in 1..=4 {
            let moving = cluster.begin_move(slot, (from + step) % 3);
            send().await;
            while moving.keys(1) > 0 {}
            send().await;
            moving.end();
            send().await;
        }
        until("all of the quota is used", async || {
            scene.advance(ms(200));
            let (admitted, by_lease) = send().await;
            assert!(admitted <= 4_000 && by_lease > 0, "{admitted} {by_lease}");
            admitted == 4_000
        })
        .await;
        until_used(&limiters[0], KEY, 4_000).await;
    });
}
