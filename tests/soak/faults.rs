//! The ways in which a store, or the network before it, fails or changes.

use std::{fs, time::Duration};

use testkit::{Proxy, Server};

use crate::{rng::Dice, topology::Ground};

/// What happens to the server. One at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Strike {
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
    Forgetful,
    /// Its connections are closed: others are let in at once.
    Rude,
}

/// What becomes of a group of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// A master dies, and a replica takes its place.
    FailOver,
    /// A slot moves from one master to another.
    Move,
}

/// One fault, of one kind or two.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fault {
    pub(crate) strike: Option<Strike>,
    pub(crate) weather: Option<Weather>,
    pub(crate) change: Option<Change>,
}

/// What happens to the network, for servers that are reached through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Weather {
    /// Everything is swallowed.
    Held,
    /// Connections are closed.
    Cut,
    /// Replies are cut in half.
    Halved,
    /// Replies are late, more or less.
    Slow(Duration),
}

pub(crate) const STRIKES: [Strike; 8] = [
    Strike::Killed,
    Strike::Emptied,
    Strike::Stopped,
    Strike::ReadOnly,
    Strike::Paused,
    Strike::Full,
    Strike::Forgetful,
    Strike::Rude,
];

/// Those that leave a group's master a master.
pub(crate) const SHORT_STRIKES: [Strike; 5] = [
    Strike::Stopped,
    Strike::Paused,
    Strike::Full,
    Strike::Forgetful,
    Strike::Rude,
];

pub(crate) const WEATHERS: [Weather; 5] = [
    Weather::Held,
    Weather::Cut,
    Weather::Halved,
    Weather::Slow(Duration::from_millis(20)),
    Weather::Slow(Duration::from_secs(1)),
];

impl Strike {
    pub(crate) fn strike(self, server: &Server) {
        match self {
            Self::Killed | Self::Emptied => server.kill(),
            Self::Stopped => server.pause(),
            Self::ReadOnly => {
                let nowhere = testkit::free_port().to_string();
                order(server, &["REPLICAOF", "127.0.0.1", &nowhere]);
            }
            Self::Paused => order(server, &["CLIENT", "PAUSE", "600000", "WRITE"]),
            Self::Full => order(server, &["CONFIG", "SET", "maxmemory", "1"]),
            Self::Forgetful => order(server, &["SCRIPT", "FLUSH"]),
            Self::Rude => {
                drop(server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]))
            }
        }
    }

    pub(crate) fn mend(self, server: &Server) {
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
            Self::Forgetful | Self::Rude => {}
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
            Self::Forgetful => "scripts flushed",
            Self::Rude => "connections killed",
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
    pub(crate) fn choose(ground: &Ground, dice: &mut Dice) -> Self {
        let (mut fault, what) = (Self::default(), dice.below(4));
        match ground {
            Ground::One(..) => {
                fault.strike = (what != 0).then(|| dice.one_of(&STRIKES));
                fault.weather = (what != 1 && what != 2).then(|| dice.one_of(&WEATHERS));
            }
            Ground::Cluster(..) => match what {
                0 => fault.change = Some(Change::FailOver),
                1 => fault.change = Some(Change::Move),
                2 => fault.weather = Some(dice.one_of(&WEATHERS)),
                _ => fault.strike = Some(dice.one_of(&SHORT_STRIKES)),
            },
            Ground::Watched(_) => match what {
                0 | 1 => fault.change = Some(Change::FailOver),
                _ => fault.strike = Some(dice.one_of(&SHORT_STRIKES)),
            },
        }
        fault
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let names = [
            self.strike.map(Strike::name),
            self.weather.map(Weather::name),
            self.change.map(Change::name),
        ];
        names.into_iter().flatten()
    }

    /// How often the store may forget what it counted: a replica knows what its master sent it.
    pub(crate) fn forgets(self) -> u64 {
        let forgets = self.strike == Some(Strike::Emptied) || self.change == Some(Change::FailOver);
        forgets.into()
    }
}

impl Weather {
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
            Self::Slow(by) if by < crate::DEADLINE => "network delays a little",
            Self::Slow(_) => "network delays by a second",
        }
    }
}

fn order(server: &Server, command: &[&str]) {
    server.command(command).ok();
}
