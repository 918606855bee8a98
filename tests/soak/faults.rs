//! The ways in which a store, or the network before it, fails or changes.

use crate::{rng::Rng, topology::Topology};
use tollgate_tests::prelude::*;

/// What happens to the server. One at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServerFault {
    /// Killed, and restarted with what it had.
    Killed,
    /// Killed, and restarted with nothing.
    Emptied,
    /// Stopped, and continued.
    Stopped,
    /// Made a replica of a server that is not there.
    ReadOnly,
    /// Paused for clients that write.
    Paused,
    /// Out of memory.
    Full,
    /// Its scripts are flushed: it goes on at once.
    ScriptsFlushed,
    /// Its connections are closed: others are accepted at once.
    ConnectionsKilled,
}

/// What becomes of a group of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// A master fails, and a replica replaces it.
    FailOver,
    /// A slot moves from one master to another.
    Move,
}

/// One fault, of one kind or two.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fault {
    pub(crate) server: Option<ServerFault>,
    pub(crate) network: Option<NetworkFault>,
    pub(crate) change: Option<Change>,
}

/// What happens to the network, for servers that are reached through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NetworkFault {
    /// Everything is swallowed.
    Held,
    /// Connections are closed.
    Cut,
    /// Replies are cut in half.
    Halved,
    /// Replies are late, more or less.
    Slow(Duration),
}

pub(crate) const SERVER_FAULTS: [ServerFault; 8] = [
    ServerFault::Killed,
    ServerFault::Emptied,
    ServerFault::Stopped,
    ServerFault::ReadOnly,
    ServerFault::Paused,
    ServerFault::Full,
    ServerFault::ScriptsFlushed,
    ServerFault::ConnectionsKilled,
];

/// Those that leave a group's master a master.
pub(crate) const SHORT_SERVER_FAULTS: [ServerFault; 5] = [
    ServerFault::Stopped,
    ServerFault::Paused,
    ServerFault::Full,
    ServerFault::ScriptsFlushed,
    ServerFault::ConnectionsKilled,
];

pub(crate) const NETWORK_FAULTS: [NetworkFault; 5] = [
    NetworkFault::Held,
    NetworkFault::Cut,
    NetworkFault::Halved,
    NetworkFault::Slow(ms(20)),
    NetworkFault::Slow(secs(1)),
];

impl ServerFault {
    pub(crate) fn inject(self, server: &Server) {
        match self {
            Self::Killed | Self::Emptied => server.kill(),
            Self::Stopped => server.pause(),
            Self::ReadOnly => {
                // A port where nothing listens.
                order(server, &["REPLICAOF", "127.0.0.1", "1"]);
            }
            Self::Paused => order(server, &["CLIENT", "PAUSE", "600000", "WRITE"]),
            Self::Full => order(server, &["CONFIG", "SET", "maxmemory", "1"]),
            Self::ScriptsFlushed => order(server, &["SCRIPT", "FLUSH"]),
            Self::ConnectionsKilled => {
                drop(server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]))
            }
        }
    }

    pub(crate) fn repair(self, server: &Server) {
        match self {
            Self::Killed => server.restart(),
            Self::Emptied => {
                fs::remove_dir_all(server.folder().join("appendonlydir"))
                    .expect("what the server wrote can be removed");
                server.restart();
            }
            Self::Stopped => server.resume(),
            Self::ReadOnly => order(server, &["REPLICAOF", "NO", "ONE"]),
            Self::Paused => order(server, &["CLIENT", "UNPAUSE"]),
            Self::Full => order(server, &["CONFIG", "SET", "maxmemory", "0"]),
            Self::ScriptsFlushed | Self::ConnectionsKilled => {}
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Emptied => "killed, restarted empty",
            Self::Stopped => "stopped",
            Self::ReadOnly => "read-only",
            Self::Paused => "paused",
            Self::Full => "full",
            Self::ScriptsFlushed => "scripts flushed",
            Self::ConnectionsKilled => "connections killed",
        }
    }
}

impl Change {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FailOver => "master dies, replica follows",
            Self::Move => "slot moves",
        }
    }
}

impl Fault {
    /// One that this ground can have.
    pub(crate) fn choose(topology: &Topology, rng: &mut Rng) -> Self {
        let (mut fault, what) = (Self::default(), rng.below(4));
        match topology {
            Topology::One(..) => {
                fault.server = (what != 0).then(|| rng.one_of(&SERVER_FAULTS));
                fault.network = (what != 1 && what != 2).then(|| rng.one_of(&NETWORK_FAULTS));
            }
            Topology::Cluster(..) => match what {
                0 => fault.change = Some(Change::FailOver),
                1 => fault.change = Some(Change::Move),
                2 => fault.network = Some(rng.one_of(&NETWORK_FAULTS)),
                _ => fault.server = Some(rng.one_of(&SHORT_SERVER_FAULTS)),
            },
            Topology::Watched(_) => match what {
                0 | 1 => fault.change = Some(Change::FailOver),
                _ => fault.server = Some(rng.one_of(&SHORT_SERVER_FAULTS)),
            },
        }
        fault
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let names = [
            self.server.map(ServerFault::name),
            self.network.map(NetworkFault::name),
            self.change.map(Change::name),
        ];
        names.into_iter().flatten()
    }

    /// How often the store may lose its counts: a replica has what its master sent it.
    pub(crate) fn max_losses(self) -> u64 {
        let max_losses =
            self.server == Some(ServerFault::Emptied) || self.change == Some(Change::FailOver);
        max_losses.into()
    }
}

impl NetworkFault {
    pub(crate) fn set(self, proxy: &Proxy) {
        match self {
            Self::Held => proxy.hold(),
            Self::Cut => proxy.cut(),
            Self::Halved => proxy.halve(),
            Self::Slow(by) => proxy.delay(by),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Held => "network swallows",
            Self::Cut => "network cuts",
            Self::Halved => "network halves replies",
            Self::Slow(by) if by < crate::TIMEOUT => "network delays a little",
            Self::Slow(_) => "network delays by a second",
        }
    }
}

fn order(server: &Server, command: &[&str]) {
    server.command(command).ok();
}
