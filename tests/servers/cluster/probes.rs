//! Probes of failing nodes: they notice that a slot isn't served, and a node is probed once, and not once for each tag.

use crate::cluster::support::*;
use std::collections::HashSet;

fn is_open(limiter: &Limiter, key: Key) -> bool {
    let decision = limiter.check(key).into_future().now_or_never();
    decision.is_some_and(|decision| {
        matches!(
            decision.kind(),
            DecisionKind::StoreFailed(StoreError::CircuitOpen { .. })
        )
    })
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
#[tokio::test]
async fn a_cluster_that_is_down_is_not_taken_for_healthy() {
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
    until("it reports that it is down", async || {
        let decision = limiter.check(key).await;
        matches!(decision.kind(),
            DecisionKind::StoreFailed(StoreError::Server { code, .. }) if &**code == "CLUSTERDOWN")
    })
    .await;
    until("nothing is sent any more", async || {
        let _ = limiter.check(key).await;
        is_open(&limiter, key)
    })
    .await;
    let before = rejected_probes(node);
    until("three probes more", async || {
        assert!(is_open(&limiter, key));
        rejected_probes(node) >= before + 3
    })
    .await;
    gone.restart();
    let serves = async || limiter.check(key).await.source() == DecisionSource::Store;
    until("it serves again", serves).await;
}

/// The connections that send a script there now.
fn probing(node: &Server) -> HashSet<String> {
    let clients = node.command(&["CLIENT", "LIST"]).text();
    let probes = clients
        .lines()
        .filter(|line| line.contains(" cmd=eval "))
        .filter_map(|line| line.split(' ').next());
    probes.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_node_is_probed_once_and_not_once_for_each_hash_tag() {
    /// How long a probe is waited for before the next one goes.
    const WAIT: Duration = ms(500);
    let cluster = Cluster::start_with(3, 0, apart);
    let limiter = one_policy(store(&cluster));
    for key in 0..200 {
        let key = Key::new(format!("k{key}"));
        assert!(admitted_by_store(&limiter.check(key).await));
    }
    // Those of all of its tags, about twenty.
    let first = keys(&cluster, ":p:").into_iter();
    let first = first.filter_map(|(key, master)| {
        let name = key.rsplit(':').next().expect("a name");
        (master == 0).then(|| Key::new(name))
    });
    let first: Vec<_> = first.collect();
    assert!((40..100).contains(&first.len()), "{}", first.len());
    let (node, start) = (&cluster.nodes()[0], Instant::now());
    // It replies to commands about the cluster, and holds those that write.
    node.command(&["CLIENT", "PAUSE", "600000", "WRITE"]).ok();
    let time = StillTime::new();
    while !first.iter().all(|key| is_open(&limiter, *key)) {
        let checks = first.iter().map(|key| limiter.check(*key).into_future());
        let checks: Vec<_> = checks.map(tokio::spawn).collect();
        time.time_out().await;
        for check in checks {
            let decision = check.await.expect("a response");
            assert_eq!(decision.source(), DecisionSource::Fallback);
        }
    }
    time.end();
    let mut seen = HashSet::new();
    until("three probes", async || {
        seen.extend(probing(node));
        seen.len() >= 3
    })
    .await;
    // By each tag there would be twenty at once.
    let most = 2 + start.elapsed().as_millis() / WAIT.as_millis();
    assert!(
        seen.len() as u128 <= most,
        "{} probes, not {most}",
        seen.len()
    );
    node.command(&["CLIENT", "UNPAUSE"]).ok();
    let back = Instant::now();
    for key in &first {
        let is_called = async || limiter.check(*key).await.source() == DecisionSource::Store;
        until("it is called again", is_called).await;
    }
    println!("called again {:?} after it is back", back.elapsed());
}
