//! A soak: a steady load from three processes' worth of limiters on a Redis server that fails in every way, at random
//! moments, for as long as is wished. What must hold is counted throughout.
//!
//! `cargo xtask soak --seconds 600 --seed 7`

mod books;
mod dice;
mod epoch;
mod faults;
mod house;
mod load;
mod report;
mod soak;

use std::{
    env,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Limiters with stores and connections of their own.
const PROCESSES: usize = 3;
/// Longer than the default: the machine may be busy.
const DEADLINE: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    let (mut seconds, mut seed) = (600, now());
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().and_then(|value| value.parse().ok());
        match (word.as_str(), value) {
            ("--seconds", Some(value)) => seconds = value,
            ("--seed", Some(value)) => seed = value,
            _ => {
                eprintln!("usage: [--seconds N] [--seed N]; not understood: {word}");
                return ExitCode::from(2);
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    println!("soak: {seconds} s, --seed {seed}");
    let report = runtime.block_on(soak::soak(Duration::from_secs(seconds), seed));
    print!("{report}");
    match report.is_well() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
