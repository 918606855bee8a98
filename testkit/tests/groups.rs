//! Clusters come up whole.

use tollgate_testkit::Cluster;

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
