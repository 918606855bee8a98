//! A master that sentinels watch.

use crate::{Builder, Reply, Server, wait};

const NAME: &str = "tollgate";
const SENTINELS: usize = 3;
const REPLICAS: usize = 2;

/// A master with two replicas, and three sentinels of which two must agree that
/// it is down. That takes half a minute, since on a busy machine a master may be silent for seconds: tests
/// [have it replaced](Self::begin_failover).
#[derive(Debug)]
pub struct Sentinel {
    sentinels: Vec<Server>,
    servers: Vec<Server>,
}

impl Sentinel {
    /// Starts all servers and waits until the sentinels know each other and the
    /// replicas. This takes some seconds.
    ///
    /// # Panics
    /// If they do not.
    #[track_caller]
    pub fn start() -> Self {
        let master = Server::start();
        let replicas: Vec<_> = (0..REPLICAS)
            .map(|_| Server::builder().replica_of(&master).start())
            .collect();
        let monitor = format!("monitor {NAME} 127.0.0.1 {} 2", master.port());
        let sentinels = (0..SENTINELS).map(|_| {
            Builder::sentinel()
                .arg("sentinel", &monitor)
                .arg("sentinel", &format!("down-after-milliseconds {NAME} 30000"))
                .arg("sentinel", &format!("failover-timeout {NAME} 15000"))
                .start()
        });
        let group = Self {
            sentinels: sentinels.collect(),
            servers: std::iter::once(master).chain(replicas).collect(),
        };
        let settled = |sentinel: &Server| {
            field(sentinel, "num-other-sentinels") == (SENTINELS - 1).to_string()
                && field(sentinel, "num-slaves") == REPLICAS.to_string()
                && field(sentinel, "flags") == "master"
        };
        wait::until("the sentinels find each other and the replicas", || {
            group.sentinels.iter().all(settled).then_some(())
        });
        group
    }

    /// The name under which the sentinels know the master.
    pub fn master_name(&self) -> &str {
        NAME
    }

    /// The URLs of the sentinels.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The servers with data: the first master, then the first replicas.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The master as reported by the first sentinel that replies. After a master
    /// has failed this is the old one until another is promoted.
    ///
    /// # Panics
    /// If no sentinel replies.
    #[track_caller]
    pub fn master(&self) -> &Server {
        let ask = |sentinel: &Server| {
            sentinel
                .try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])
                .ok()
        };
        let address = self
            .sentinels
            .iter()
            .find_map(ask)
            .expect("a sentinel replies")
            .list();
        let port = address[1].clone().text();
        let master = self
            .servers
            .iter()
            .find(|server| server.port().to_string() == port);
        master.expect("the master is a server of this group")
    }

    /// Kills the master and has a replica promoted, which is returned.
    ///
    /// # Panics
    /// If no replica is promoted.
    #[track_caller]
    pub fn fail_over(&self) -> &Server {
        let old = self.master();
        old.kill();
        self.begin_failover();
        self.replaced(old)
    }

    /// Has a replica promoted, also if the master serves.
    ///
    /// # Panics
    /// If no replica is fit for it.
    #[track_caller]
    pub fn begin_failover(&self) {
        let sentinel = self.running().next().expect("a sentinel runs");
        let failover = ["SENTINEL", "FAILOVER", NAME];
        wait::until("a failover begins", || {
            (sentinel.command(&failover) == Reply::Text("OK".into())).then_some(())
        });
    }

    /// Waits until all sentinels that run name another master than `old`, which is returned.
    ///
    /// # Panics
    /// If they do not.
    #[track_caller]
    pub fn replaced(&self, old: &Server) -> &Server {
        wait::until("a replica is promoted", || {
            let new = self.master();
            let named = |sentinel: &Server| field(sentinel, "port") == new.port().to_string();
            let agreed = new.port() != old.port() && self.running().all(named);
            (agreed && new.info("replication", "role")? == "master").then_some(new)
        })
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        let sentinels = self.sentinels.iter();
        sentinels.filter(|sentinel| sentinel.pid().is_some())
    }
}

/// A field of a sentinel's entry of the master.
#[track_caller]
fn field(sentinel: &Server, name: &str) -> String {
    let fields = sentinel.command(&["SENTINEL", "MASTER", NAME]).list();
    let texts: Vec<_> = fields.into_iter().map(Reply::text).collect();
    let pair = texts.chunks(2).find(|pair| pair[0] == name);
    pair.unwrap_or_else(|| panic!("SENTINEL MASTER has no field {name}"))[1].clone()
}
