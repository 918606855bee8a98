//! A Redis Cluster.

use std::collections::HashSet;

use crate::{Builder, Reply, Server, wait};

const SLOTS: usize = 16_384;

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
    /// If they do not agree.
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
                // Nodes list a replica from its first ping on.
                .arg("repl-ping-replica-period", "1")
                .arg("cluster-announce-ip", "127.0.0.1");
            options(node).start()
        };
        let cluster = Self {
            nodes: (0..count).map(start).collect(),
        };
        cluster.assign_slots(masters);
        cluster.join();
        cluster.assign_replicas(masters);
        wait::until("all nodes of the cluster agree", || {
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
        self.master_of_slot(self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).int())
    }

    /// The master that serves a slot by the first node's word.
    #[track_caller]
    fn master_of_slot(&self, slot: i64) -> &Server {
        let port = master_port(&self.nodes[0], slot).expect("every slot has a master");
        let mut nodes = self.nodes.iter();
        let master = nodes.find(|node| i64::from(node.port()) == port);
        master.expect("the master is a node of this cluster")
    }

    /// Begins to move a slot to the master `to`, as `redis-cli --cluster reshard` does.
    #[track_caller]
    pub fn begin_move(&self, slot: i64, to: usize) -> Move<'_> {
        let (from, to) = (self.master_of_slot(slot), &self.nodes[to]);
        let id = |node: &Server| node.command(&["CLUSTER", "MYID"]).text();
        let moving = Move {
            cluster: self,
            slot: slot.to_string(),
            from,
            to,
        };
        let (from_id, to_id) = (id(from), id(to));
        to.command(&["CLUSTER", "SETSLOT", &moving.slot, "IMPORTING", &from_id])
            .ok();
        from.command(&["CLUSTER", "SETSLOT", &moving.slot, "MIGRATING", &to_id])
            .ok();
        moving
    }

    #[track_caller]
    fn assign_slots(&self, masters: usize) {
        for (index, node) in self.nodes.iter().enumerate() {
            // Equal epochs would be settled later, one node at a time.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])
                .ok();
            if index < masters {
                // Ranges are supported only from 7.0 on.
                let slots = index * SLOTS / masters..(index + 1) * SLOTS / masters;
                let slots = slots.map(|slot| slot.to_string());
                let words = ["CLUSTER", "ADDSLOTS"].map(str::to_owned);
                let command: Vec<_> = words.into_iter().chain(slots).collect();
                node.command(&command).ok();
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
            wait::until("a node knows the master it is to follow", || {
                let reply = replica.command(&["CLUSTER", "REPLICATE", id]);
                (reply == Reply::Text("OK".into())).then_some(())
            });
        }
    }
}

/// A slot on its way from one master to another.
#[derive(Debug)]
pub struct Move<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: &'a Server,
    to: &'a Server,
}

impl Move<'_> {
    /// Moves up to this many of the slot's keys; returns how many there were.
    #[track_caller]
    pub fn keys(&self, most: usize) -> usize {
        let most = most.to_string();
        let keys = self
            .from
            .command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, &most]);
        let keys: Vec<_> = keys.list().into_iter().map(Reply::text).collect();
        if !keys.is_empty() {
            let port = self.to.port().to_string();
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            // They may have expired meanwhile.
            let moved = self.from.command(&migrate).text();
            assert!(["OK", "NOKEY"].contains(&moved.as_str()), "{moved}");
        }
        keys.len()
    }

    /// Moves the rest of the keys, and then the slot, and waits until all nodes agree.
    #[track_caller]
    pub fn end(self) {
        while self.keys(100) > 0 {}
        let id = self.to.command(&["CLUSTER", "MYID"]).text();
        let others = self.cluster.nodes.iter();
        let others = others.filter(|node| node.port() != self.to.port());
        // Its new master first: else no node would serve it for a moment.
        for node in std::iter::once(self.to).chain(others) {
            // A replica has no such command.
            let _ = node.command(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]);
        }
        let slot = self.slot.parse().expect("a slot is a number");
        let port = i64::from(self.to.port());
        wait::until("all nodes know that a slot has moved", || {
            let knows = |node: &Server| master_port(node, slot) == Some(port);
            let nodes = &self.cluster.nodes;
            (nodes.iter().all(knows) && are_of_one_epoch(nodes)).then_some(())
        });
    }
}

/// Whether a node serves, and is connected to every master and its replicas.
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

/// The port of the master that serves a slot, by a node's word.
#[track_caller]
fn master_port(node: &Server, slot: i64) -> Option<i64> {
    let map = slot_map(node);
    let holds =
        |range: &&Vec<Reply>| (range[0].clone().int()..=range[1].clone().int()).contains(&slot);
    let range = map.iter().find(holds)?;
    Some(range[2].clone().list()[1].clone().int())
}

/// Whether all nodes have the last change. One that has not could make the next change under the same number, and then
/// the nodes would redirect clients back and forth.
#[track_caller]
fn are_of_one_epoch(nodes: &[Server]) -> bool {
    let field = |node: &Server, name: &str| {
        let info = node.command(&["CLUSTER", "INFO"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::to_owned)
    };
    let current: HashSet<_> = nodes
        .iter()
        .map(|n| field(n, "cluster_current_epoch:"))
        .collect();
    let masters = nodes
        .iter()
        .filter(|node| node.info("replication", "role").as_deref() == Some("master"));
    let own: Vec<_> = masters
        .map(|node| field(node, "cluster_my_epoch:"))
        .collect();
    current.len() == 1 && own.iter().collect::<HashSet<_>>().len() == own.len()
}
