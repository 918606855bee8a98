//! Nodes that fail: nothing is charged twice, and the others go on.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use testkit::{Builder, Cluster};
use tollgate::{Key, Limiter, RedisStore, Ruling, Source, StoreError};

use crate::support::{By, Places, calls, counted, limiter, store_by, until, used};

const DEADLINE: Duration = Duration::from_millis(400);

/// A busy machine is forgiven so much.
const GRACE: Duration = Duration::from_millis(800);

fn one_policy(cluster: &Cluster) -> Limiter {
    limiter(
        store_by(cluster, DEADLINE),
        [By::Window.policy("p", "100000/month")],
    )
}

/// Each master serves its own slots, also when another is gone.
fn apart(node: Builder) -> Builder {
    node.arg("cluster-require-full-coverage", "no")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_whose_answer_is_lost_is_charged_once() {
    let cluster = Cluster::start_with(3, 0, apart);
    let places = Places::find(&cluster, "once").await;
    let limiter = one_policy(&cluster);
    for round in 1..=3 {
        assert!(counted(&limiter.check(places.key(0)).await));
        let node = &cluster.nodes()[0];
        node.reset_stats();
        node.pause();
        let decision = limiter.check(places.key(0)).await;
        assert!(
            matches!(decision.ruling(), Ruling::Fault(StoreError::Timeout)),
            "{decision:?}"
        );
        // It reads what was sent to it before.
        node.resume();
        until("it is back", async || {
            limiter.peek(places.key(0)).await.source() == Source::Store
        })
        .await;
        let used = used(&limiter, places.key(0)).await[0];
        // Nobody has come for the answer: if it was heard, it was given back.
        assert!(
            (round..=2 * round).contains(&used),
            "{used} after {round} rounds"
        );
        let other = cluster.nodes()[1..].iter().map(calls).sum::<u64>();
        assert!(other < 40, "{other} calls elsewhere");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_keeps_nobody_waiting_at_the_others() {
    let cluster = Cluster::start_with(3, 0, apart);
    let places = Places::find(&cluster, "hang").await;
    let limiter = one_policy(&cluster);
    for master in 0..3 {
        assert!(counted(&limiter.check(places.key(master)).await));
    }
    cluster.nodes()[0].pause();
    let hanging = {
        let (limiter, key) = (limiter.clone(), places.key(0));
        tokio::spawn(async move {
            for _ in 0..3 {
                let asked = Instant::now();
                let decision = limiter.check(key).await;
                assert_eq!(decision.source(), Source::Fallback, "{decision:?}");
                assert!(asked.elapsed() < DEADLINE + GRACE, "{:?}", asked.elapsed());
            }
        })
    };
    let mut asked = 0;
    while !hanging.is_finished() {
        for master in [1, 2] {
            assert!(counted(&limiter.check(places.key(master)).await));
        }
        asked += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    hanging.await.expect("all were answered in time");
    assert!(asked > 20, "{asked}");
    cluster.nodes()[0].resume();
    until("it is back", async || {
        limiter.check(places.key(0)).await.source() == Source::Store
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_followed_by_its_replica_while_the_others_go_on() {
    let cluster = Cluster::start_with(3, 1, apart);
    let places = Places::find(&cluster, "dies").await;
    let limiter = one_policy(&cluster);
    for master in 0..3 {
        for _ in 0..10 {
            assert!(counted(&limiter.check(places.key(master)).await));
        }
    }
    let replica = &cluster.nodes()[3];
    let offset = |node: &testkit::Server| node.info("replication", "master_repl_offset");
    until("the replica has it all", async || {
        offset(replica) == offset(&cluster.nodes()[0])
    })
    .await;
    cluster.nodes()[0].kill();
    let failed = AtomicU64::new(0);
    until("the replica has taken over", async || {
        let asked = Instant::now();
        let decision = limiter.check(places.key(0)).await;
        assert!(asked.elapsed() < DEADLINE + GRACE, "{:?}", asked.elapsed());
        for master in [1, 2] {
            assert!(counted(&limiter.check(places.key(master)).await));
        }
        failed.fetch_add(
            (decision.source() == Source::Fallback).into(),
            Ordering::Relaxed,
        );
        decision.source() == Source::Store
    })
    .await;
    assert!(failed.into_inner() > 0);
    // Ten before, and the one that was the first to be admitted since.
    assert_eq!(used(&limiter, places.key(0)).await, [11]);
    // The old one comes back as a replica; it sends whoever asks it to the new one.
    cluster.nodes()[0].restart();
    for _ in 0..20 {
        assert!(counted(&limiter.check(places.key(0)).await));
    }
    assert_eq!(used(&limiter, places.key(0)).await, [31]);
}

#[tokio::test]
async fn any_node_that_lives_leads_to_all_of_them() {
    let cluster = Cluster::start(3, 0);
    let gone = format!("redis://127.0.0.1:{}", testkit::free_port());
    let store = RedisStore::cluster([gone.clone(), cluster.nodes()[1].url()]).expect("a store");
    let some = limiter(store, [By::Gcra.policy("p", "9/h")]);
    until("it is found", async || {
        some.check(Key::new("first")).await.source() == Source::Store
    })
    .await;
    for key in 0..30 {
        assert!(counted(&some.check(Key::new(format!("{key}"))).await));
    }
    let none = limiter(
        RedisStore::cluster([gone]).expect("a store"),
        [By::Gcra.policy("p", "9/h")],
    );
    let decision = none.check(Key::new("k")).await;
    assert!(
        matches!(decision.ruling(), Ruling::Fault(StoreError::Connection(_))),
        "{decision:?}"
    );
}
