//! Clusters and sentinels come up whole and survive the loss of a master.

use std::time::{Duration, Instant};

use tollgate_testkit::{Cluster, Sentinel};

#[test]
fn a_cluster_shares_the_slots() {
    let cluster = Cluster::start(3, 0);
    assert_eq!(cluster.urls().len(), 3);
    for node in cluster.nodes() {
        assert_eq!(node.info("cluster", "cluster_enabled").unwrap(), "1");
        let state = node.command(&["CLUSTER", "INFO"]).text();
        assert!(state.contains("cluster_state:ok"), "{state}");
        assert!(state.contains("cluster_slots_ok:16384"), "{state}");
    }
    let mut used = std::collections::BTreeSet::new();
    for number in 0..30 {
        let key = format!("key{number}");
        let master = cluster.master_of(&key);
        used.insert(master.port());
        master.command(&["SET", &key, "1"]).ok();
        for other in cluster
            .nodes()
            .iter()
            .filter(|node| node.port() != master.port())
        {
            let moved = other.command(&["SET", &key, "1"]).error();
            assert!(moved.ends_with(&format!(":{}", master.port())), "{moved}");
        }
    }
    assert_eq!(used.len(), 3);
}

#[test]
fn a_replica_takes_over_in_a_cluster() {
    let cluster = Cluster::start(3, 1);
    let (first, heir) = (&cluster.nodes()[0], &cluster.nodes()[3]);
    assert_eq!(
        heir.info("replication", "master_port").unwrap(),
        first.port().to_string()
    );
    first.kill();
    let start = Instant::now();
    while heir.info("replication", "role").unwrap() != "master" {
        assert!(start.elapsed() < Duration::from_secs(60), "no failover");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn sentinels_promote_a_replica() {
    let group = Sentinel::start();
    assert_eq!(group.sentinel_urls().len(), 3);
    assert_eq!(group.master_name(), "tollgate");
    let old = group.master();
    assert_eq!(old.port(), group.servers()[0].port());
    old.command(&["SET", "a", "1"]).ok();
    assert_eq!(old.command(&["WAIT", "2", "5000"]).int(), 2);
    let new = group.fail_over();
    assert_ne!(new.port(), old.port());
    assert_eq!(new.command(&["GET", "a"]).text(), "1");
    new.command(&["SET", "b", "1"]).ok();
    assert_eq!(group.master().port(), new.port());
}
