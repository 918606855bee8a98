//! Nodes that fail: nothing is charged twice, and the others go on.

use tokio::runtime::Handle;

use crate::cluster::support::*;

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
    let store = builder([cluster.nodes()[1].url()]).no_circuit_breaker();
    let limiter = one_policy(store.built());
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
        assert_eq!(store_error(&decision).code(), "connection");
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
        assert_eq!(store_error(&decision).code(), "connection");
        let calls = calls(node);
        assert!(calls <= 1, "{calls} calls");
        heard += calls;
        charged += 1 + calls;
        assert_eq!(used(&limiter, key).await, [charged]);
    }
    assert!(heard > 0);
}

#[tokio::test]
async fn a_node_that_hangs_delays_no_request_to_the_others_and_has_a_breaker_of_its_own() {
    let cluster = Cluster::start_with(3, 0, apart);
    let master_keys = MasterKeys::find(&cluster, "hang").await;
    let store = builder(cluster.urls()).runtime(Handle::current());
    let limiter = one_policy(store.built());
    let [hangs, one, other] = [0, 1, 2].map(|master| master_keys.key(master));
    for key in [hangs, one, other] {
        assert!(admitted_by_store(&limiter.check(key).await));
    }
    cluster.nodes()[0].pause();
    let time = StillTime::new();
    for timeouts in 0.. {
        let check = tokio::spawn(limiter.check(hangs).into_future());
        for key in [one, other].into_iter().cycle().take(20) {
            assert!(admitted_by_store(&limiter.check(key).await));
        }
        // A later one may end early, with the attempt to connect that began before it.
        assert!(timeouts > 0 || !check.is_finished());
        time.time_out().await;
        let decision = check.await.expect("a response");
        if store_error(&decision).code() == "circuit_open" {
            assert!(timeouts >= 3, "{timeouts}");
            break;
        }
        assert_eq!(store_error(&decision).code(), "timeout");
    }
    for key in [one, other].into_iter().cycle().take(20) {
        assert!(admitted_by_store(&limiter.check(key).await));
        let decision = limiter.check(hangs).await;
        assert_eq!(store_error(&decision).code(), "circuit_open");
    }
    time.end();
    cluster.nodes()[0].resume();
    let is_called = async || limiter.check(hangs).await.source() == DecisionSource::Store;
    until("it is called again", is_called).await;
}

/// When a master is down, and no replica replaces it, the others serve nothing either.
#[tokio::test]
async fn a_cluster_that_is_down_is_not_taken_for_healthy_and_used_again_when_it_serves() {
    let cluster = Cluster::start(3, 0);
    let master_keys = MasterKeys::find(&cluster, "down").await;
    let (limiter, key) = (one_policy(store(&cluster)), master_keys.key(0));
    assert!(admitted_by_store(&limiter.check(key).await));
    let [node, _, gone] = cluster.nodes() else {
        unreachable!()
    };
    gone.kill();
    // At once, and not only when it has been silent for a while.
    let slot = master_keys.slot(&cluster, 2).to_string();
    node.command(&["CLUSTER", "DELSLOTS", &slot]).ok();
    let fails = async || {
        let decision = limiter.check(key).await;
        matches!(decision.kind(), DecisionKind::StoreFailed(error) if error.code() == "clusterdown")
    };
    until("it is down", fails).await;
    gone.restart();
    let serves = async || limiter.check(key).await.source() == DecisionSource::Store;
    until("it serves again", serves).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_master_is_replaced_by_its_replica_while_the_others_go_on() {
    let cluster = Cluster::start_with(3, 1, apart);
    let master_keys = MasterKeys::find(&cluster, "dies").await;
    let limiter = one_policy(store(&cluster));
    let [dies, one, other] = [0, 1, 2].map(|master| master_keys.key(master));
    for key in [dies, one, other].into_iter().cycle().take(30) {
        assert!(admitted_by_store(&limiter.check(key).await));
    }
    let replica = &cluster.nodes()[3];
    let offset = |node: &Server| node.info("replication", "master_repl_offset");
    let replicated = async || offset(replica) == offset(&cluster.nodes()[0]);
    until("the replica has it all", replicated).await;
    cluster.nodes()[0].kill();
    assert_eq!(limiter.check(dies).await.source(), DecisionSource::Fallback);
    replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).ok();
    until("the replica has taken over", async || {
        for key in [one, other] {
            assert!(admitted_by_store(&limiter.check(key).await));
        }
        limiter.check(dies).await.source() == DecisionSource::Store
    })
    .await;
    // Ten before, and the one that was the first to be admitted since.
    assert_eq!(used(&limiter, dies).await, [11]);
    // The old one comes back as a replica; it redirects clients to the new one.
    cluster.nodes()[0].restart();
    for _ in 0..20 {
        assert!(admitted_by_store(&limiter.check(dies).await));
    }
    assert_eq!(used(&limiter, dies).await, [31]);
}

#[tokio::test]
async fn any_live_node_is_enough_to_find_all_of_them() {
    let cluster = Cluster::start(3, 0);
    let gone = || "redis://127.0.0.1:1".to_owned();
    let at = |urls: Vec<String>| one_policy(builder(urls).built());
    let some = at(vec![gone(), cluster.nodes()[1].url()]);
    let is_found = async || some.check(Key::new("first")).await.source() == DecisionSource::Store;
    until("it is found", is_found).await;
    for key in 0..30 {
        let key = Key::new(format!("{key}"));
        assert!(admitted_by_store(&some.check(key).await));
    }
    let decision = at(vec![gone()]).check(Key::new("k")).await;
    let error = store_error(&decision);
    assert_eq!(error.code(), "connection");
}
