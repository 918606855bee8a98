//! A Redis Cluster: requests with keys in one slot are leased, others are not.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use testkit::Cluster;
use tollgate::{DecisionSource, Key, Limiter, RedisStore};

use crate::leases::{
    support::{
        KEY, StrategyKind, TEST_TIMEOUT, hold_units, leased, leases, limiter, ms, until, used,
        used_of,
    },
    traffic::{Traffic, until_nothing_is_held},
};

fn cluster() -> Arc<Cluster> {
    static CLUSTER: OnceLock<Arc<Cluster>> = OnceLock::new();
    CLUSTER
        .get_or_init(|| Arc::new(Cluster::start(3, 0)))
        .clone()
}

fn store(cluster: &Cluster) -> RedisStore {
    let store = RedisStore::builder()
        .cluster(cluster.urls())
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO);
    store.build().expect("a store")
}

/// Keys of one slot have the same tag.
fn names(cluster: &Cluster, part: &str) -> Vec<String> {
    let masters = cluster.nodes().iter();
    let keys = masters.flat_map(|node| node.keys());
    keys.filter(|key| key.contains(part)).collect()
}

fn slot(cluster: &Cluster, name: &str) -> i64 {
    cluster.nodes()[0]
        .command(&["CLUSTER", "KEYSLOT", name])
        .int()
}

/// Two keys of policies `p` and `q`, in one slot if `together`.
async fn two_keys(cluster: &Cluster, together: bool, name: &str) -> [Key; 2] {
    let probe = limiter(
        store(cluster),
        [StrategyKind::Fixed.policy("probe", "9/month")],
    );
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

#[tokio::test]
async fn keys_in_one_slot_are_leased_and_keys_in_several_are_not() {
    let cluster = cluster();
    let policies = || ["p", "q"].map(|name| leased(StrategyKind::Fixed, name, "1000/month"));
    let limiter = limiter(store(&cluster), policies());
    let together = two_keys(&cluster, true, "t").await;
    let (admitted, by_lease) = send(&limiter, together, 400).await;
    assert_eq!(admitted, 400);
    assert!(by_lease > 0);
    for policy in ["p", "q"] {
        until_nothing_is_held(std::slice::from_ref(&limiter), policy).await;
    }
    // The last lease may still be on its way.
    until("what was left is refunded", async || {
        let seen = limiter.peek([("p", together[0]), ("q", together[1])]).await;
        let seen = seen.expect("a response");
        let mut used = seen
            .policies()
            .map(|policy| policy.limit() - policy.remaining());
        used.all(|used| used == 400)
    })
    .await;

    let granted = || leases(&limiter, "p").map(|stats| stats.granted);
    let before = granted();
    let apart = two_keys(&cluster, false, "a").await;
    assert_eq!(send(&limiter, apart, 400).await, (400, 0));
    assert_eq!(granted(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_on_a_cluster_is_used_to_its_end_and_not_exceeded() {
    let cluster = cluster();
    for strategy in [StrategyKind::Fixed, StrategyKind::Log] {
        let name = Key::new(format!("whole{strategy:?}"));
        let limiters: Vec<_> = (0..4)
            .map(|_| limiter(store(&cluster), [leased(strategy, "p", "4000/month")]))
            .collect();
        let traffic = Traffic::start(&limiters, name, &[1]);
        until("the quota is used", async || traffic.units() >= 4_000).await;
        let record = traffic.run_for(ms(100)).await;
        assert_eq!(record.admissions.len(), 4_000, "{strategy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_go_on_while_their_slot_moves_and_nothing_is_exceeded() {
    // Its slots move.
    let cluster = Arc::new(Cluster::start(3, 0));
    let limiters: Vec<_> = (0..3)
        .map(|_| {
            limiter(
                store(&cluster),
                [leased(StrategyKind::Log, "p", "30000/month")],
            )
        })
        .collect();
    hold_units(&limiters[0], KEY).await;
    let name = names(&cluster, ":p:").remove(0);
    let slot = slot(&cluster, &name);
    let on = |node: usize| cluster.nodes()[node].keys().contains(&name);
    let from = (0..3).find(|node| on(*node)).expect("a master");
    let before = used(&limiters[0], KEY).await;
    let traffic = Traffic::start(&limiters, KEY, &[1]);
    let mover = {
        let cluster = cluster.clone();
        tokio::task::spawn_blocking(move || {
            for step in 1..=4 {
                let moving = cluster.begin_move(slot, (from + step) % 3);
                std::thread::sleep(ms(30));
                while moving.keys(1) > 0 {}
                moving.end();
            }
        })
    };
    mover.await.expect("the mover ends well");
    let by_lease = traffic.by_lease();
    until("it is leased after the moves", async || {
        traffic.by_lease() > by_lease + 100
    })
    .await;
    let record = traffic.stop().await;
    until_nothing_is_held(&limiters, "p").await;
    let admitted = record.admissions.len() as u64;
    let counted = used_of(&limiters[0], KEY, "p").await;
    assert!(admitted <= 30_000);
    assert!(
        counted + 64 >= admitted && counted <= before + admitted,
        "{before} before, {admitted} admitted, {counted} counted"
    );
}
