//! Probes of failing nodes: they notice that a slot isn't served, and a node is probed once, and not once for each tag.

use std::{
    collections::HashSet,
    future::IntoFuture,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use testkit::{Cluster, Server};
use tollgate::{DecisionKind, DecisionSource, Key, Limiter, StoreError};

use crate::cluster::support::{
    MasterKeys, StrategyKind, admitted_by_store, limiter, store_by, until,
};

const TIMEOUT: Duration = Duration::from_millis(400);

fn of(cluster: &Cluster) -> Limiter {
    limiter(
        store_by(cluster, TIMEOUT),
        [StrategyKind::Fixed.policy("p", "100000/month")],
    )
}

async fn is_open(limiter: &Limiter, key: Key) -> bool {
    let decision = limiter.check(key).await;
    matches!(
        decision.kind(),
        DecisionKind::StoreFailed(StoreError::CircuitOpen { .. })
    )
}

/// How many probes a node would not run.
fn rejected_probes(node: &Server) -> u64 {
    let line = node.info("commandstats", "cmdstat_eval");
    let line = line.unwrap_or_default();
    let count = line.rsplit("rejected_calls=").next();
    let count = count.and_then(|count| count.split(',').next()?.parse().ok());
    count.unwrap_or(0)
}

/// When a master is down, and no replica replaces it, the others serve nothing either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_is_not_taken_for_healthy() {
    let cluster = Cluster::start(3, 0);
    let master_keys = MasterKeys::find(&cluster, "down").await;
    let (limiter, key) = (of(&cluster), master_keys.key(0));
    assert!(admitted_by_store(&limiter.check(key).await));
    cluster.nodes()[2].kill();
    let node = &cluster.nodes()[0];
    until("it reports that it is down", async || {
        let decision = limiter.check(key).await;
        matches!(decision.kind(),
            DecisionKind::StoreFailed(StoreError::Server { code, .. }) if &**code == "CLUSTERDOWN")
    })
    .await;
    until("nothing is sent any more", async || {
        is_open(&limiter, key).await
    })
    .await;
    let before = rejected_probes(node);
    until("four probes more", async || {
        let check = limiter.check(key).into_future().now_or_never();
        let decision = check.expect("a result at once");
        assert!(
            matches!(
                decision.kind(),
                DecisionKind::StoreFailed(StoreError::CircuitOpen { .. })
            ),
            "{decision:?}"
        );
        rejected_probes(node) >= before + 4
    })
    .await;
    cluster.nodes()[2].restart();
    until("it serves again", async || {
        limiter.check(key).await.source() == DecisionSource::Store
    })
    .await;
}

/// The connection that sends a script there now.
fn probing(node: &Server) -> HashSet<String> {
    let clients = node.command(&["CLIENT", "LIST"]).text();
    let probes = clients
        .lines()
        .filter(|line| line.contains(" cmd=eval "))
        .filter_map(|line| line.split(' ').next());
    probes.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_probed_once_and_not_once_for_each_hash_tag() {
    let cluster = Cluster::start_with(3, 0, |node| node.arg("cluster-require-full-coverage", "no"));
    let limiter = of(&cluster);
    let keys: Vec<_> = (0..200).map(|key| Key::new(format!("k{key}"))).collect();
    for key in &keys {
        assert!(admitted_by_store(&limiter.check(*key).await));
    }
    let node = &cluster.nodes()[0];
    // It replies to commands about the cluster, and holds those that write.
    node.command(&["CLIENT", "PAUSE", "60000", "WRITE"]).ok();
    // All of its tags, ten or eleven.
    let mut shut = Vec::new();
    for key in &keys {
        for _ in 0..5 {
            if is_open(&limiter, *key).await {
                shut.push(*key);
                break;
            }
        }
    }
    assert!((40..100).contains(&shut.len()), "{}", shut.len());
    let (start, mut seen, mut most) = (Instant::now(), HashSet::new(), 0);
    while start.elapsed() < Duration::from_secs(4) {
        let now = probing(node);
        most = most.max(now.len());
        seen.extend(now);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // One in a pause and the time that it is waited for; by each tag there would be thirty or more.
    assert_eq!(most, 1, "at once");
    assert!((2..=12).contains(&seen.len()), "{} probes", seen.len());
    node.command(&["CLIENT", "UNPAUSE"]).ok();
    let back = Instant::now();
    for key in &shut {
        until("it is called again", async || {
            limiter.check(*key).await.source() == DecisionSource::Store
        })
        .await;
    }
    // Within two seconds, on a machine that has the time.
    assert!(back.elapsed() < Duration::from_secs(6));
}
