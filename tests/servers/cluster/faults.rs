//! Nodes that fail: nothing is charged twice, and the others go on.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use testkit::{Builder, Cluster, Proxy, Server};
use tollgate::{DecisionSource, Key, Limiter, RedisStore, StoreError};

use crate::cluster::support::{
    MasterKeys, StrategyKind, TEST_TIMEOUT, admitted_by_store, calls, limiter, store_by,
    store_error, until, used,
};

const TIMEOUT: Duration = Duration::from_millis(400);

/// How much a busy machine may add.
const GRACE: Duration = Duration::from_millis(800);

fn one_policy(cluster: &Cluster) -> Limiter {
    limiter(
        store_by(cluster, TIMEOUT),
        [StrategyKind::Fixed.policy("p", "100000/month")],
    )
}

/// Each master serves its own slots, also when another is gone.
pub(crate) fn apart(node: Builder) -> Builder {
    node.arg("cluster-require-full-coverage", "no")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_reply_is_lost_is_charged_once() {
    let cluster = Cluster::start_with(3, 0, apart);
    let master_keys = MasterKeys::find(&cluster, "once").await;
    let limiter = one_policy(&cluster);
    for round in 1..=3 {
        assert!(admitted_by_store(&limiter.check(master_keys.key(0)).await));
        let node = &cluster.nodes()[0];
        node.reset_stats();
        node.pause();
        let decision = limiter.check(master_keys.key(0)).await;
        assert!(
            matches!(store_error(&decision), StoreError::Timeout),
            "{decision:?}"
        );
        // It reads what was sent to it before.
        node.resume();
        until("it is back", async || {
            limiter.peek(master_keys.key(0)).await.is_ok()
        })
        .await;
        let used = used(&limiter, master_keys.key(0)).await[0];
        // No task has read the reply: if the call ran, its charge was refunded.
        assert!(
            (round..=2 * round).contains(&used),
            "{used} after {round} rounds"
        );
        let other = cluster.nodes()[1..].iter().map(calls).sum::<u64>();
        assert!(other < 40, "{other} calls elsewhere");
    }
}

/// Sets a proxy before a node, which the others and all clients then take for the node.
pub(crate) async fn proxy_before(cluster: &Cluster, node: usize) -> Proxy {
    let node = &cluster.nodes()[node];
    let proxy = Proxy::to(node.addr());
    let port = proxy.addr().port().to_string();
    node.command(&["CONFIG", "SET", "cluster-announce-port", &port])
        .ok();
    if node.version() < (7, 0) {
        // The setting is only read at the start.
        node.command(&["CONFIG", "REWRITE"]).ok();
        node.restart();
    }
    until("all nodes tell of the proxy", async || {
        let shows = |node: &Server, what, word: &str| {
            let said = node.command(&["CLUSTER", what]).text();
            said.contains(word)
        };
        let named = format!(":{port}@");
        let mut nodes = cluster.nodes().iter();
        nodes.all(|node| shows(node, "NODES", &named) && shows(node, "INFO", "cluster_state:ok"))
    })
    .await;
    proxy
}

/// A cluster whose first node is behind a proxy, and a limiter that has found it and calls it in any case.
async fn behind_a_proxy(name: &str) -> (Cluster, MasterKeys, Proxy, Limiter) {
    let cluster = Cluster::start_with(3, 0, apart);
    let master_keys = MasterKeys::find(&cluster, name).await;
    let proxy = proxy_before(&cluster, 0).await;
    let store = RedisStore::builder()
        .cluster([cluster.nodes()[1].url()])
        .no_circuit_breaker();
    let store = store
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO);
    let limiter = limiter(
        store.build().expect("a store"),
        [StrategyKind::Fixed.policy("p", "1000/month")],
    );
    (cluster, master_keys, proxy, limiter)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_reply_is_truncated_is_not_sent_again() {
    let (cluster, master_keys, proxy, limiter) = behind_a_proxy("cut").await;
    let node = &cluster.nodes()[0];
    for round in 1..=10 {
        assert!(admitted_by_store(&limiter.check(master_keys.key(0)).await));
        node.reset_stats();
        proxy.halve();
        let decision = limiter.check(master_keys.key(0)).await;
        assert!(
            matches!(store_error(&decision), StoreError::Connection(_)),
            "{decision:?}"
        );
        proxy.pass();
        assert_eq!(calls(node), 1);
        // A charge whose reply was lost stays charged: once.
        assert_eq!(used(&limiter, master_keys.key(0)).await, [2 * round]);
    }
    let others = [1, 2].map(|node| calls(&cluster.nodes()[node]));
    assert!(others.iter().sum::<u64>() < 60, "{others:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_connection_breaks_is_not_sent_again() {
    let (cluster, master_keys, proxy, limiter) = behind_a_proxy("broken").await;
    let (node, key) = (&cluster.nodes()[0], master_keys.key(0));
    let (mut charged, mut heard) = (0, 0);
    for _ in 0..5 {
        assert!(admitted_by_store(&limiter.check(key).await));
        node.reset_stats();
        node.pause();
        let before = proxy.forwarded();
        let pending = {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(key).await })
        };
        // It lies before the node then, which reads it later, from a connection that is gone.
        until("it is called", async || proxy.forwarded() > before).await;
        proxy.cut();
        proxy.pass();
        let decision = pending.await.expect("a response");
        node.resume();
        // It reads what was there before it in the same round, and what it is sent then in the next one.
        node.command(&["PING"]).ok();
        assert!(
            matches!(store_error(&decision), StoreError::Connection(_)),
            "{decision:?}"
        );
        let calls = calls(node);
        assert!(calls <= 1, "{calls} calls");
        heard += calls;
        charged += 1 + calls;
        assert_eq!(used(&limiter, key).await, [charged]);
    }
    assert!(heard > 0);
}

/// A cluster whose first node hangs, which the limiter has not connected to yet.
async fn with_one_that_hangs(name: &str) -> (Cluster, MasterKeys, Limiter) {
    let cluster = Cluster::start_with(3, 0, apart);
    let master_keys = MasterKeys::find(&cluster, name).await;
    let limiter = one_policy(&cluster);
    for master in 0..3 {
        assert!(admitted_by_store(
            &limiter.check(master_keys.key(master)).await
        ));
    }
    cluster.nodes()[0].pause();
    (cluster, master_keys, limiter)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_shard_has_its_own_circuit_breaker() {
    let (cluster, master_keys, limiter) = with_one_that_hangs("own").await;
    until("nothing is sent there any more", async || {
        let decision = limiter.check(master_keys.key(0)).await;
        matches!(store_error(&decision), StoreError::CircuitOpen { .. })
    })
    .await;
    for _ in 0..20 {
        for master in [1, 2] {
            assert!(admitted_by_store(
                &limiter.check(master_keys.key(master)).await
            ));
        }
        // Decided at once, probes aside, and not by the node.
        let decision = limiter.check(master_keys.key(0)).await;
        assert_eq!(decision.source(), DecisionSource::Fallback);
    }
    cluster.nodes()[0].resume();
    until("it is called again", async || {
        limiter.check(master_keys.key(0)).await.source() == DecisionSource::Store
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_delays_no_request_to_the_others() {
    let (cluster, master_keys, limiter) = with_one_that_hangs("hang").await;
    let hanging = {
        let (limiter, key) = (limiter.clone(), master_keys.key(0));
        tokio::spawn(async move {
            for _ in 0..3 {
                let start = Instant::now();
                let decision = limiter.check(key).await;
                assert_eq!(decision.source(), DecisionSource::Fallback, "{decision:?}");
                assert!(start.elapsed() < TIMEOUT + GRACE, "{:?}", start.elapsed());
            }
        })
    };
    let mut sent = 0;
    while !hanging.is_finished() {
        for master in [1, 2] {
            assert!(admitted_by_store(
                &limiter.check(master_keys.key(master)).await
            ));
        }
        sent += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    hanging.await.expect("all had a result in time");
    assert!(sent > 20, "{sent}");
    cluster.nodes()[0].resume();
    until("it is back", async || {
        limiter.check(master_keys.key(0)).await.source() == DecisionSource::Store
    })
    .await;
}

/// Requests that share a connection don't wait for one that fails to reopen it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_past_its_deadline_for_a_network_that_drops_everything() {
    let cluster = Cluster::start_with(3, 0, apart);
    let proxy = proxy_before(&cluster, 0).await;
    let deadline = Duration::from_secs(1);
    let store = RedisStore::builder()
        .cluster([cluster.nodes()[1].url()])
        .timeout(deadline)
        .no_circuit_breaker();
    let limiter = limiter(
        store.build().expect("a store"),
        [StrategyKind::Fixed.policy("p", "100000/month")],
    );
    let send = |task: u64| {
        let limiter = limiter.clone();
        async move {
            let (mut slowest, start) = (Duration::ZERO, Instant::now());
            // So that they don't all send at once.
            tokio::time::sleep(Duration::from_millis(7 * task)).await;
            for number in 0.. {
                if start.elapsed() > 5 * deadline {
                    break;
                }
                let key = Key::new(format!("{task}-{number}"));
                let start = Instant::now();
                let _ = limiter.check(key).await;
                slowest = slowest.max(start.elapsed());
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            slowest
        }
    };
    for task in 0..9 {
        assert!(admitted_by_store(
            &limiter.check(Key::new(format!("{task}"))).await
        ));
    }
    let pending: Vec<_> = (0..100).map(|task| tokio::spawn(send(task))).collect();
    let before = proxy.forwarded();
    until("they are under way", async || {
        proxy.forwarded() > before + 20_000
    })
    .await;
    proxy.hold();
    let mut slowest = Duration::ZERO;
    for task in pending {
        slowest = slowest.max(task.await.expect("all have a result"));
    }
    assert!(slowest >= deadline, "no request waited");
    assert!(slowest < deadline + deadline / 2, "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_master_is_replaced_by_its_replica_while_the_others_go_on() {
    let cluster = Cluster::start_with(3, 1, apart);
    let master_keys = MasterKeys::find(&cluster, "dies").await;
    let limiter = one_policy(&cluster);
    for master in 0..3 {
        for _ in 0..10 {
            assert!(admitted_by_store(
                &limiter.check(master_keys.key(master)).await
            ));
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
        let start = Instant::now();
        let decision = limiter.check(master_keys.key(0)).await;
        assert!(start.elapsed() < TIMEOUT + GRACE, "{:?}", start.elapsed());
        for master in [1, 2] {
            assert!(admitted_by_store(
                &limiter.check(master_keys.key(master)).await
            ));
        }
        failed.fetch_add(
            (decision.source() == DecisionSource::Fallback).into(),
            Ordering::Relaxed,
        );
        decision.source() == DecisionSource::Store
    })
    .await;
    assert!(failed.into_inner() > 0);
    // Ten before, and the one that was the first to be admitted since.
    assert_eq!(used(&limiter, master_keys.key(0)).await, [11]);
    // The old one comes back as a replica; it redirects clients to the new one.
    cluster.nodes()[0].restart();
    for _ in 0..20 {
        assert!(admitted_by_store(&limiter.check(master_keys.key(0)).await));
    }
    assert_eq!(used(&limiter, master_keys.key(0)).await, [31]);
}

#[tokio::test]
async fn any_live_node_is_enough_to_find_all_of_them() {
    let cluster = Cluster::start(3, 0);
    let gone = format!("redis://127.0.0.1:{}", testkit::free_port());
    let store = RedisStore::cluster([gone.clone(), cluster.nodes()[1].url()]).expect("a store");
    let some = limiter(store, [StrategyKind::Gcra.policy("p", "9/h")]);
    until("it is found", async || {
        some.check(Key::new("first")).await.source() == DecisionSource::Store
    })
    .await;
    for key in 0..30 {
        assert!(admitted_by_store(
            &some.check(Key::new(format!("{key}"))).await
        ));
    }
    let none = limiter(
        RedisStore::cluster([gone]).expect("a store"),
        [StrategyKind::Gcra.policy("p", "9/h")],
    );
    let decision = none.check(Key::new("k")).await;
    assert!(
        matches!(store_error(&decision), StoreError::Connection(_)),
        "{decision:?}"
    );
}
