//! A Redis Cluster: requests with keys in one slot are leased, others are not.

use crate::leases::support::*;
use std::slice;

fn connected(cluster: &Cluster, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let store = RedisStore::builder()
        .cluster(cluster.urls())
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO);
    limiter(store.built(), policies)
}

/// Keys of one slot have the same tag.
fn names(cluster: &Cluster, part: &str) -> Vec<String> {
    let masters = cluster.nodes().iter();
    let keys = masters.flat_map(|node| node.keys());
    keys.filter(|key| key.contains(part)).collect()
}

fn slot(cluster: &Cluster, name: &str) -> i64 {
    let first = &cluster.nodes()[0];
    first.command(&["CLUSTER", "KEYSLOT", name]).int()
}

/// Two keys of policies `p` and `q`, in one slot if `together`.
async fn two_keys(cluster: &Cluster, together: bool, name: &str) -> [Key; 2] {
    let probe = connected(cluster, [Fixed.policy("probe", "9/month")]);
    let mut first = None;
    for number in 0.. {
        let text = format!("{name}{number}");
        let key = Key::new(text.as_str());
        assert!(probe.check(key).await.is_admitted());
        let found = names(cluster, &format!(":probe:{text}"));
        let found = found.iter().find(|name| name.ends_with(&text));
        let slot = slot(cluster, found.expect("a key"));
        match first {
            None => first = Some((key, slot)),
            Some((other, of_other)) if (of_other == slot) == together => return [other, key],
            Some(_) => {}
        }
    }
    unreachable!()
}

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
        let policies = ["p", "q"].map(|name| leased(Fixed, name, "1000/month"));
        let limiter = connected(&cluster, policies);
        let [p, q] = two_keys(&cluster, true, "t").await;
        let (admitted, by_lease) = send(&limiter, [p, q], 400).await;
        assert!(admitted == 400 && by_lease > 0, "{admitted} {by_lease}");
        scene.refund_leases(slice::from_ref(&limiter)).await;
        until("what was left is refunded", async || {
            let seen = limiter.peek([("p", p), ("q", q)]).await;
            let seen = seen.expect("a response");
            let used = |it: tollgate::limiter::PolicyDecision<'_>| it.limit() - it.remaining();
            seen.policies().map(used).all(|used| used == 400)
        })
        .await;
        let granted = stats(&limiter)[1];
        let apart = two_keys(&cluster, false, "a").await;
        assert_eq!(send(&limiter, apart, 400).await, (400, 0));
        assert_eq!(stats(&limiter)[1], granted);
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
        let limiters: Vec<_> = (0..3).map(|_| connected(&cluster, [policy()])).collect();
        let (mut admitted, mut by_lease) = (hold(&limiters[0], KEY).await, 0);
        let mut send = async || {
            let (more, leased) = send_all(&scene, &limiters).await;
            (admitted, by_lease) = (admitted + more, by_lease + leased);
            (admitted, by_lease)
        };
        let name = names(&cluster, ":p:").remove(0);
        let slot = slot(&cluster, &name);
        let on = |node: usize| cluster.nodes()[node].keys().contains(&name);
        let from = (0..3).find(|node| on(*node)).expect("a master");
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
