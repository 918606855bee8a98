//! Slots that move from one master to another while requests for them are sent.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use testkit::{Cluster, Server};
use tollgate::{Key, Limiter, Policy, Quota, RedisStore, StoreError};

use crate::cluster::support::{
    MasterKeys, StillTime, StrategyKind, admitted_by_store, builder, hammer, keys, limiter, store,
    store_error, until, used,
};

/// A store with so few tags that many keys are in each slot.
fn store_with_few_tags(cluster: &Cluster) -> RedisStore {
    let store = builder(cluster.urls()).hash_tags(1);
    store.build().expect("a store")
}

/// The slot of all keys of a [`store_with_few_tags`] store, and the master that serves it.
fn slot(cluster: &Cluster) -> (i64, usize) {
    let found = keys(cluster, "");
    let (key, master) = found.first().expect("a key");
    (
        cluster.nodes()[0]
            .command(&["CLUSTER", "KEYSLOT", key])
            .int(),
        *master,
    )
}

fn two_policies(cluster: &Cluster) -> Limiter {
    let policies = [
        StrategyKind::Gcra.policy("a", "3/month"),
        StrategyKind::Fixed.policy("b", "3/month"),
    ];
    limiter(store_with_few_tags(cluster), policies)
}

/// Waits until a request has been turned away since its keys are on two nodes. Before 7.0 that is by the node that they go to.
async fn turned_away(cluster: &Cluster) {
    let by = |node: &Server| node.info("errorstats", "errorstat_TRYAGAIN").is_some();
    until("it has been turned away", async || {
        cluster.nodes().iter().any(by)
    })
    .await;
}

async fn send_all(limiter: &Limiter, keys: std::ops::Range<u64>) -> usize {
    let pending = keys.map(|key| async move {
        admitted_by_store(&limiter.check(Key::new(format!("{key}"))).await)
    });
    join_all(pending)
        .await
        .into_iter()
        .filter(|admitted| *admitted)
        .count()
}

#[tokio::test]
async fn keys_on_the_source_on_the_target_and_on_neither_are_all_counted() {
    let cluster = Cluster::start(3, 0);
    for strategy in [StrategyKind::Gcra, StrategyKind::Fixed, StrategyKind::List] {
        cluster.nodes().iter().for_each(|node| node.flush());
        let limiter = limiter(
            store_with_few_tags(&cluster),
            [strategy.policy("p", "3/month")],
        );
        assert_eq!(send_all(&limiter, 0..100).await, 100);
        let (slot, from) = slot(&cluster);
        let moving = cluster.begin_move(slot, (from + 1) % 3);
        assert_eq!(moving.keys(40), 40);
        // Of these, sixty are on the source, forty on the target, and fifty on neither; many are sent at once.
        assert_eq!(send_all(&limiter, 0..150).await, 150, "{strategy:?}");
        assert_eq!(send_all(&limiter, 0..150).await, 150, "{strategy:?}");
        assert_eq!(send_all(&limiter, 0..100).await, 0, "{strategy:?}");
        moving.end();
        assert_eq!(send_all(&limiter, 0..150).await, 50, "{strategy:?}");
        assert_eq!(send_all(&limiter, 0..150).await, 0, "{strategy:?}");
        let found = keys(&cluster, "");
        assert!(found.iter().all(|(_, master)| *master == (from + 1) % 3));
        assert_eq!(found.len(), 150);
        for node in cluster.nodes() {
            assert_eq!(node.immortal_keys(), [""; 0]);
        }
    }
}

#[tokio::test]
async fn a_request_whose_keys_have_moved_in_part_waits_for_the_other_keys() {
    let cluster = Cluster::start(3, 0);
    let limiter = two_policies(&cluster);
    assert!(admitted_by_store(&limiter.check(Key::new("k")).await));
    let (slot, from) = slot(&cluster);
    let moving = cluster.begin_move(slot, (from + 1) % 3);
    assert_eq!(moving.keys(1), 1);
    let waiting = limiter.check(Key::new("k"));
    let waiting = tokio::spawn(async move { waiting.await });
    turned_away(&cluster).await;
    assert!(!waiting.is_finished());
    moving.end();
    assert!(admitted_by_store(&waiting.await.expect("a response")));
    assert_eq!(used(&limiter, Key::new("k")).await, [2, 2]);
}

/// The last permit's release deletes the key, so the next request of the same call finds none on the source.
#[tokio::test]
async fn a_permit_that_is_released_while_its_slot_moves_is_taken_again() {
    let cluster = Cluster::start(3, 0);
    let limiter = limiter(
        store_with_few_tags(&cluster),
        [Policy::new("p", Quota::concurrent(1))],
    );
    let held = limiter.check(Key::new("k")).await;
    assert!(admitted_by_store(&held));
    let (slot, from) = slot(&cluster);
    let moving = cluster.begin_move(slot, (from + 1) % 3);
    drop(held.into_result());
    let next = limiter.check(Key::new("k")).await;
    assert!(admitted_by_store(&next), "{next:?}");
    moving.end();
    assert_eq!(used(&limiter, Key::new("k")).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_back_and_forth_under_load_admit_exactly_the_quota() {
    let cluster = Arc::new(Cluster::start(3, 0));
    for strategy in [StrategyKind::Gcra, StrategyKind::Log] {
        cluster.nodes().iter().for_each(|node| node.flush());
        let limiters = [0, 1].map(|_| {
            limiter(
                store_with_few_tags(&cluster),
                [strategy.policy("p", "40/month")],
            )
        });
        assert_eq!(send_all(&limiters[0], 0..50).await, 50);
        let (slot, from) = slot(&cluster);
        let done = Arc::new(AtomicBool::new(false));
        // How many results each task has had.
        let rounds: Arc<[AtomicU64; 64]> = Arc::new([const { AtomicU64::new(0) }; 64]);
        let mover = {
            let (cluster, done, rounds) = (cluster.clone(), done.clone(), rounds.clone());
            let count = move || rounds.iter().map(|r| r.load(Ordering::Relaxed)).collect();
            std::thread::spawn(move || {
                let mut moves = 0;
                while moves < 4 || !done.load(Ordering::Relaxed) {
                    moves += 1;
                    let before: Vec<u64> = count();
                    let moving = cluster.begin_move(slot, (from + moves) % 3);
                    while moving.keys(3) > 0 {}
                    moving.end();
                    // No request is still on its way to where it was redirected: it might arrive when the slot is on its way
                    // there again, and find no key.
                    let all_answered = || {
                        let now: Vec<u64> = count();
                        let mut tasks = now.iter().zip(&before);
                        tasks.all(|(now, before)| *now >= 100 || now > before)
                    };
                    while !all_answered() {
                        std::thread::yield_now();
                    }
                }
                moves
            })
        };
        let admitted = Arc::new(AtomicU64::new(50));
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let (limiter, admitted) = (limiters[task % 2].clone(), admitted.clone());
                let rounds = rounds.clone();
                tokio::spawn(async move {
                    for round in 0..100 {
                        let key = (task * 31 + round * 7) % 50;
                        let decision = limiter.check(Key::new(format!("{key}"))).await;
                        admitted.fetch_add(admitted_by_store(&decision).into(), Ordering::Relaxed);
                        rounds[task].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task ends well");
        }
        done.store(true, Ordering::Relaxed);
        let moves = mover.join().expect("the mover ends well");
        assert!(moves >= 4);
        // Six thousand and four hundred requests for a quota of two thousand.
        for key in 0..50 {
            let used = used(&limiters[0], Key::new(format!("{key}"))).await;
            assert_eq!(used, [40], "{strategy:?}");
        }
        assert_eq!(admitted.load(Ordering::Relaxed), 2_000, "{strategy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_several_slots_go_on_while_one_of_them_moves() {
    let cluster = Arc::new(Cluster::start(3, 0));
    let master_keys = MasterKeys::find(&cluster, "go").await;
    // A window's end is moved by as long as its key is on the way, and what was charged before then isn't found any more by
    // refunds.
    let policies = || ["a", "b", "c"].map(|name| StrategyKind::Log.policy(name, "300/month"));
    let limiters = [0, 1].map(|_| limiter(store(&cluster), policies()));
    let slot = master_keys.slot(&cluster, 0);
    let mover = {
        let cluster = cluster.clone();
        std::thread::spawn(move || {
            for to in [1, 2, 0, 2, 1, 0] {
                let moving = cluster.begin_move(slot, to);
                while moving.keys(1) > 0 {}
                moving.end();
            }
        })
    };
    let admitted = hammer(&limiters, master_keys.apart(), 64, 1_000).await;
    mover.join().expect("the mover ends well");
    assert!(admitted <= 300);
    assert_eq!(used(&limiters[0], master_keys.apart()).await, [admitted; 3]);
}

#[tokio::test]
async fn a_request_that_cannot_wait_for_a_move_to_end_fails_and_is_not_charged() {
    let cluster = Cluster::start(3, 0);
    let limiter = two_policies(&cluster);
    assert!(admitted_by_store(&limiter.check(Key::new("k")).await));
    let (slot, from) = slot(&cluster);
    let moving = cluster.begin_move(slot, (from + 1) % 3);
    assert_eq!(moving.keys(1), 1);
    let check = tokio::spawn(limiter.check(Key::new("k")).into_future());
    turned_away(&cluster).await;
    let time = StillTime::new();
    time.time_out().await;
    let decision = check.await.expect("a response");
    time.end();
    assert!(
        matches!(store_error(&decision), StoreError::Timeout),
        "{decision:?}"
    );
    moving.end();
    assert_eq!(used(&limiter, Key::new("k")).await, [1, 1]);
}

/// The map of slots is changed by the redirect itself, before it is read anew.
#[tokio::test]
async fn a_request_for_a_slot_that_has_moved_is_redirected_once() {
    let cluster = Cluster::start(3, 0);
    let limiter = limiter(
        store_with_few_tags(&cluster),
        [StrategyKind::Gcra.policy("p", "100/month")],
    );
    assert!(admitted_by_store(&limiter.check(Key::new("key")).await));
    let (slot, from) = slot(&cluster);
    cluster.begin_move(slot, (from + 1) % 3).end();
    let redirects = || {
        let line = cluster.nodes()[from].info("errorstats", "errorstat_MOVED");
        line.and_then(|line| line.strip_prefix("count=")?.parse::<u64>().ok())
    };
    let before = redirects().unwrap_or(0);
    for _ in 0..3 {
        assert!(admitted_by_store(&limiter.check(Key::new("key")).await));
        assert_eq!(redirects(), Some(before + 1));
    }
}

/// A node that is to get its first slots is not yet one of those that serve.
#[tokio::test]
async fn requests_do_not_each_connect_to_a_node_that_has_just_joined() {
    let cluster = Cluster::start(3, 0);
    let limiter = limiter(
        store_with_few_tags(&cluster),
        [StrategyKind::Gcra.policy("p", "3/month")],
    );
    assert_eq!(send_all(&limiter, 0..10).await, 10);
    let (slot, from) = slot(&cluster);
    let new = Server::builder()
        .arg("cluster-enabled", "yes")
        .arg("cluster-announce-ip", "127.0.0.1")
        .start();
    let (slot, old) = (slot.to_string(), &cluster.nodes()[from]);
    let id = |node: &Server| node.command(&["CLUSTER", "MYID"]).text();
    let meet = ["CLUSTER", "MEET", "127.0.0.1", &old.port().to_string()];
    new.command(&meet).ok();
    until("they have met", async || {
        let knows = |node: &Server, other| {
            let nodes = node.command(&["CLUSTER", "NODES"]).text();
            nodes.contains(&id(other))
        };
        let serves = new.command(&["CLUSTER", "INFO"]).text();
        knows(&new, old) && knows(old, &new) && serves.contains("cluster_state:ok")
    })
    .await;
    new.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(old)])
        .ok();
    old.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(&new)])
        .ok();
    let connections = || {
        let received = new.info("stats", "total_connections_received");
        received.and_then(|many| many.parse::<u64>().ok())
    };
    let before = connections().expect("a number");
    // Keys that are nowhere yet are made there.
    for key in 100..200 {
        assert!(admitted_by_store(
            &limiter.check(Key::new(format!("{key}"))).await
        ));
    }
    assert_eq!(new.keys().len(), 100);
    let more = connections().expect("a number") - before;
    // Those of this test included.
    assert!(more < 20, "{more} connections");
}
