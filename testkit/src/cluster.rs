//! A Redis Cluster.

use std::time::Duration;

use crate::{Builder, Reply, Server, wait};

const SLOTS: usize = 16_384;
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster whose masters share the slots evenly, in order.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts the nodes, joins them, and waits until all of them agree. This takes
    /// some seconds.
    ///
    /// # Panics
    /// If they do not agree within a minute.
    #[track_caller]
    pub fn start(masters: usize, replicas_per_master: usize) -> Self {
        Self::start_with(masters, replicas_per_master, |node| node)
    }

    /// [`start`](Self::start) with more options for each node.
    ///
    /// A [`Clock`](crate::Clock) must follow the real time until the cluster runs:
    /// nodes do not serve until two seconds have passed.
    #[track_caller]
    pub fn start_with(
        masters: usize,
        replicas_per_master: usize,
        options: impl Fn(Builder) -> Builder,
    ) -> Self {
        assert!(masters > 0, "a cluster needs a master");
        let count = masters * (1 + replicas_per_master);
        let start = |_| {
            let node = Server::builder()
                .arg("cluster-enabled", "yes")
                .arg("cluster-node-timeout", "3000")
                .arg("cluster-announce-ip", "127.0.0.1");
            options(node).start()
        };
        let cluster = Self {
            nodes: (0..count).map(start).collect(),
        };
        cluster.assign_slots(masters);
        cluster.join();
        cluster.assign_replicas(masters);
        wait::until("all nodes of the cluster agree", PATIENCE, || {
            let agreed = |node: &Server| agrees(node, masters, 1 + replicas_per_master);
            cluster.nodes.iter().all(agreed).then_some(())
        });
        cluster
    }

    /// All nodes: first the masters, in the order of their slots, then the
    /// replicas, where replica `i` follows master `i % masters`.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The master that serves a key by the first node's word, which changes with a
    /// failover.
    #[track_caller]
    pub fn master_of(&self, key: &str) -> &Server {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).int();
        let holds =
            |range: &&Vec<Reply>| (range[0].clone().int()..=range[1].clone().int()).contains(&slot);
        let map = slot_map(&self.nodes[0]);
        let range = map.iter().find(holds).expect("every slot has a master");
        let port = range[2].clone().list()[1].clone().int();
        let master = self
            .nodes
            .iter()
            .find(|node| i64::from(node.port()) == port);
        master.expect("the master is a node of this cluster")
    }

    #[track_caller]
    fn assign_slots(&self, masters: usize) {
        for (index, node) in self.nodes.iter().enumerate() {
            // Equal epochs would be settled later, one node at a time.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])
                .ok();
            if index < masters {
                let first = index * SLOTS / masters;
                let last = (index + 1) * SLOTS / masters - 1;
                node.command(&[
                    "CLUSTER",
                    "ADDSLOTSRANGE",
                    &first.to_string(),
                    &last.to_string(),
                ])
                .ok();
            }
        }
    }

    /// Each meets each: waiting for gossip to spread takes longer.
    #[track_caller]
    fn join(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[index + 1..] {
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()])
                    .ok();
            }
        }
    }

    #[track_caller]
    fn assign_replicas(&self, masters: usize) {
        let (masters_, replicas) = self.nodes.split_at(masters);
        let ids: Vec<_> = masters_
            .iter()
            .map(|node| node.command(&["CLUSTER", "MYID"]).text())
            .collect();
        for (replica, id) in replicas.iter().zip(ids.iter().cycle()) {
            wait::until("a node knows the master it is to follow", PATIENCE, || {
                let reply = replica.command(&["CLUSTER", "REPLICATE", id]);
                (reply == Reply::Text("OK".into())).then_some(())
            });
        }
    }
}

/// Whether a node serves, and knows every master with its replicas.
#[track_caller]
fn agrees(node: &Server, masters: usize, nodes_per_master: usize) -> bool {
    let state = node.command(&["CLUSTER", "INFO"]).text();
    let map = slot_map(node);
    state.contains("cluster_state:ok")
        && map.len() == masters
        && map.iter().all(|range| range.len() == 2 + nodes_per_master)
        && node
            .info("replication", "master_link_status")
            .is_none_or(|link| link == "up")
}

/// `CLUSTER SLOTS`: each range is its first slot, last slot, master and replicas.
#[track_caller]
fn slot_map(node: &Server) -> Vec<Vec<Reply>> {
    node.command(&["CLUSTER", "SLOTS"])
        .list()
        .into_iter()
        .map(Reply::list)
        .collect()
}
