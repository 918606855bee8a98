//! A soak: a steady load from three processes' worth of limiters on Redis servers that fail in every way, at random
//! moments, for as long as configured: half of the time on one server, the rest on a cluster and on a master that
//! sentinels watch. What must hold is counted throughout.
//!
//! `cargo xtask soak --seconds 600 --seed 7`

mod faults;
mod interval;
mod ledger;
mod limiters;
mod load;
mod permits;
mod report;
mod soak;
mod sums;
mod topology;

use std::{
    env,
    process::ExitCode,
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::runtime::Runtime;
use tollgate_tests::{prelude::*, rng};

use crate::{report::Report, topology::Topology};

/// Limiters with stores and connections of their own.
const PROCESSES: usize = 3;
/// Longer than the default. On a busy machine a call may time out where nothing fails: then less is known of the counts.
const TIMEOUT: Duration = ms(300);

/// A ground's name, how it is made, and its part of the time.
type TopologyShare = (&'static str, fn() -> Topology, u32);

/// The topologies by name, and the part of the time that each is run for, in percent.
const TOPOLOGIES: [TopologyShare; 3] = [
    ("one", Topology::one, 50),
    ("cluster", Topology::cluster, 30),
    ("sentinel", Topology::watched, 20),
];

fn main() -> ExitCode {
    let (mut seconds, mut seed, mut topologies) = (600, now(), TOPOLOGIES.to_vec());
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_default();
        match (word.as_str(), value.parse()) {
            ("--seconds", Ok(value)) => seconds = value,
            ("--seed", Ok(value)) => seed = value,
            ("--on", _) if TOPOLOGIES.iter().any(|(name, ..)| *name == value) => {
                topologies.retain(|(name, ..)| *name == value);
                topologies[0].2 = 100;
            }
            _ => {
                eprintln!(
                    "usage: [--seconds N] [--seed N] [--on one|cluster|sentinel]; not understood: {word} {value}"
                );
                return ExitCode::from(2);
            }
        }
    }
    let runtime = multi_thread(2);
    println!("soak: {seconds} s, --seed {seed}");
    let mut report = Report::default();
    for (_, topology, share) in topologies {
        let (time, start) = (secs(seconds) * share / 100, Instant::now());
        let topology = topology();
        // What it took to start counts.
        let time = time.saturating_sub(start.elapsed());
        runtime.block_on(soak::soak(topology, time, seed, &mut report));
    }
    report.check();
    print!("{report}");
    match report.is_ok() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The runtime of a process, of one thread: so it can be measured how late its tasks are woken.
fn runtime_of(process: usize) -> &'static Runtime {
    static RUNTIMES: LazyLock<[Runtime; PROCESSES]> =
        LazyLock::new(|| [(); PROCESSES].map(|()| multi_thread(1)));
    &RUNTIMES[process]
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
