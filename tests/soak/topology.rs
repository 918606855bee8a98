//! What a soak runs on: one server, a cluster, or a master that sentinels watch.

use testkit::{Reply, Sentinel};
use tollgate::redis::RedisStoreBuilder;

use crate::PROCESSES;
use tollgate_tests::prelude::*;

pub(crate) enum Topology {
    /// A server, and the network before it.
    One(Server, Proxy),
    /// Three masters with a replica each. The network is before the first one.
    Cluster(Cluster, Proxy),
    Watched(Sentinel),
}

impl Topology {
    pub(crate) fn one() -> Self {
        // A killed server has written what it replied. It doesn't wait for the disk, which others use, too.
        let server = Server::builder().arg("appendonly", "yes");
        let server = server.arg("appendfsync", "no").start();
        let proxy = Proxy::to(server.addr());
        Self::One(server, proxy)
    }

    pub(crate) fn cluster() -> Self {
        let cluster =
            Cluster::start_with(3, 1, |node| node.arg("cluster-require-full-coverage", "no"));
        let first = &cluster.nodes()[0];
        let proxy = Proxy::to(first.addr());
        // The others, and all clients, take the proxy for the node.
        let port = proxy.addr().port().to_string();
        let announce = ["CONFIG", "SET", "cluster-announce-port", &port];
        first.command(&announce).ok();
        until("all nodes tell of the proxy", || {
            let agrees = |node: &Server| {
                let nodes = node.command(&["CLUSTER", "NODES"]).text();
                nodes.contains(&format!(":{port}@"))
            };
            cluster.nodes().iter().all(agrees)
        });
        Self::Cluster(cluster, proxy)
    }

    pub(crate) fn watched() -> Self {
        Self::Watched(Sentinel::start())
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::One(..) => "one server",
            Self::Cluster(..) => "a cluster of three masters with replicas",
            Self::Watched(_) => "a master with two replicas and three sentinels",
        }
    }

    /// A process's way there. On one server the last one is on the server itself, the others behind the proxy.
    pub(crate) fn store(&self, process: usize) -> RedisStoreBuilder {
        let builder = RedisStore::builder();
        match self {
            Self::One(server, _) if process + 1 == PROCESSES => builder.url(server.url()),
            Self::One(_, proxy) => builder.url(format!("redis://{}", proxy.addr())),
            Self::Cluster(cluster, _) => builder.cluster(cluster.urls()),
            Self::Watched(group) => builder.sentinel(group.master_name(), group.sentinel_urls()),
        }
    }

    pub(crate) fn proxy(&self) -> Option<&Proxy> {
        match self {
            Self::One(_, proxy) | Self::Cluster(_, proxy) => Some(proxy),
            Self::Watched(_) => None,
        }
    }

    /// All servers with data.
    pub(crate) fn servers(&self) -> &[Server] {
        match self {
            Self::One(server, _) => std::slice::from_ref(server),
            Self::Cluster(cluster, _) => cluster.nodes(),
            Self::Watched(group) => group.servers(),
        }
    }

    /// Those that are written to, but for the one behind a cluster's proxy.
    pub(crate) fn masters(&self) -> Vec<&Server> {
        let all = match self {
            Self::Cluster(cluster, _) => &cluster.nodes()[1..],
            Self::One(..) => self.servers(),
            Self::Watched(group) => std::slice::from_ref(group.master()),
        };
        all.iter().filter(|server| is(server, "master")).collect()
    }

    /// The ports of all masters. Where servers are silent for long, as on a busy machine, replicas replace them unasked.
    pub(crate) fn master_ports(&self) -> Vec<u16> {
        let masters = self.servers().iter().filter(|server| is(server, "master"));
        masters.map(Server::port).collect()
    }

    /// Has a master replaced by its replica: it dies. Returns when its successor serves.
    pub(crate) fn fail_over(&self, master: &Server) {
        match self {
            Self::One(..) => {}
            Self::Cluster(cluster, _) => {
                let masters = || self.masters().len();
                let before = masters();
                master.kill();
                until("a replica takes over", || {
                    let nodes = cluster.nodes()[1..].iter();
                    nodes.filter(|node| is(node, "master")).count() == before && self.serves()
                });
            }
            Self::Watched(group) => drop(group.fail_over()),
        }
    }

    /// Brings back the servers that were killed, as replicas, and waits until all is as it was.
    pub(crate) fn repair(&self) {
        for server in self.servers().iter().filter(|it| it.pid().is_none()) {
            server.restart();
            if let Self::Watched(group) = self {
                // The sentinels would do so, in their own time.
                let port = group.master().port().to_string();
                server.command(&["REPLICAOF", "127.0.0.1", &port]).ok();
            }
        }
        until("all is as it was", || {
            let linked = |server: &Server| {
                let link = server.info("replication", "master_link_status");
                link.is_none_or(|link| link == "up")
            };
            let masters = self.servers().iter().filter(|server| is(server, "master"));
            let due = match self {
                Self::Cluster(..) => 3,
                _ => 1,
            };
            masters.count() == due && self.servers().iter().all(linked) && self.serves()
        });
    }

    fn serves(&self) -> bool {
        let cluster = match self {
            Self::One(..) => return true,
            Self::Cluster(cluster, _) => cluster,
            Self::Watched(group) => return group.sentinels().iter().all(|one| is_calm(one, group)),
        };
        let live = cluster.nodes().iter().filter(|node| node.pid().is_some());
        let serves = |node: &Server| {
            let info = node.command(&["CLUSTER", "INFO"]).text();
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        };
        live.into_iter().all(serves)
    }

    /// Moves a slot that holds keys from one master of a cluster to another.
    pub(crate) fn move_slot(&self) {
        let Self::Cluster(cluster, _) = self else {
            return;
        };
        let masters = self.masters();
        let [from, to] = masters[..] else {
            return;
        };
        let keys = from.keys();
        let Some(key) = keys.first() else {
            return;
        };
        let slot = from.command(&["CLUSTER", "KEYSLOT", key]).int();
        let mut nodes = cluster.nodes().iter();
        let to = nodes.position(|node| node.port() == to.port());
        let moving = cluster.begin_move(slot, to.expect("a node"));
        while moving.keys(20) > 0 {
            std::thread::sleep(ms(5));
        }
        moving.end();
    }

    /// How many clients are connected through the proxy, a replica aside.
    pub(crate) fn proxy_connections(&self) -> usize {
        let replicas = match self {
            Self::Cluster(cluster, _) => {
                let replicas = cluster.nodes()[0].info("replication", "connected_slaves");
                replicas.and_then(|many| many.parse().ok()).unwrap_or(0)
            }
            _ => 0,
        };
        let proxy_connections = self.proxy().map_or(0, Proxy::connections);
        proxy_connections.saturating_sub(replicas)
    }

    /// How many clients are connected, the servers' own and this helper's aside.
    pub(crate) fn clients(&self) -> usize {
        let clients = |server: &Server| {
            let list = server.command(&["CLIENT", "LIST", "TYPE", "normal"]).text();
            let clients = list.lines();
            let clients = clients.filter(|line| !line.contains(" name=sentinel-"));
            clients.count() - 1
        };
        self.servers().iter().map(clients).sum()
    }
}

/// Whether a sentinel has nothing to change any more: both replicas are such by its word, and well.
fn is_calm(sentinel: &Server, group: &Sentinel) -> bool {
    let replicas = sentinel.command(&["SENTINEL", "REPLICAS", group.master_name()]);
    let flags = replicas.list().into_iter().filter_map(|replica| {
        let fields: Vec<_> = replica.list().into_iter().map(Reply::text).collect();
        let pair = fields.chunks(2).find(|pair| pair[0] == "flags")?;
        Some(pair[1].clone())
    });
    let flags: Vec<_> = flags.collect();
    flags == ["slave", "slave"]
}

fn is(server: &Server, role: &str) -> bool {
    server.pid().is_some() && server.info("replication", "role").as_deref() == Some(role)
}

#[track_caller]
pub(crate) fn until(what: &str, mut probe: impl FnMut() -> bool) {
    let start = Instant::now();
    while !probe() {
        let in_time = start.elapsed() < TEST_TIMEOUT;
        assert!(in_time, "did not happen in time: {what}");
        std::thread::sleep(ms(10));
    }
}
