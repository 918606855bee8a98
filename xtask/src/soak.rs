//! `cargo xtask soak`: a steady load on a server that fails in every way, for as long as is wished.

use std::path::Path;

use crate::run::{Outcome, cargo, succeed};

/// How long it takes unless said otherwise, and as one of the checks of every change.
const SECONDS: u64 = 600;
const SHORT: u64 = 15;

pub(crate) const USAGE: &str = "\
soak [--seconds S] [--seed N] [--on one|cluster|sentinel]
                             loads limiters for ten minutes, while their store fails in every way";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Soak {
    seconds: u64,
    seed: Option<u64>,
    /// On one kind of store, in place of all.
    on: Option<String>,
}

/// What the options ask for.
pub(crate) fn read(options: &[&str]) -> Outcome<Soak> {
    let (mut seconds, mut seed, mut on) = (SECONDS, None, None);
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let value = words.next().copied().unwrap_or_default();
        match (*word, value.parse()) {
            ("--seconds", Ok(value)) => seconds = value,
            ("--seed", Ok(value)) => seed = Some(value),
            ("--seconds" | "--seed", Err(_)) => return Err(format!("{word} needs a number")),
            ("--on", _) if ["one", "cluster", "sentinel"].contains(&value) => {
                on = Some(value.to_owned());
            }
            ("--on", _) => return Err("--on needs one, cluster or sentinel".into()),
            _ => return Err(format!("no such option: {word}")),
        }
    }
    Ok(Soak { seconds, seed, on })
}

/// In the profile of tests, which overflows nothing silently, and by what the tests have built.
pub(crate) fn run(root: &Path, soak: &Soak) -> Outcome {
    let words = "test --quiet --workspace --all-features --test soak --";
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = cargo(root, &words);
    command.args(["--seconds", &soak.seconds.to_string()]);
    if let Some(seed) = soak.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if let Some(on) = &soak.on {
        command.args(["--on", on]);
    }
    succeed(&mut command)
}

/// A part of it for every change.
pub(crate) fn short(root: &Path) -> Outcome {
    of(root, SHORT)
}

fn of(root: &Path, seconds: u64) -> Outcome {
    let soak = Soak {
        seconds,
        seed: None,
        on: None,
    };
    run(root, &soak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_mistakes_are_reported() {
        let soak = read(&["--seed", "7", "--seconds", "5"]).expect("options");
        assert_eq!((soak.seconds, soak.seed), (5, Some(7)));
        assert_eq!(read(&[]).expect("options").seconds, SECONDS);
        let on = read(&["--on", "cluster"]).expect("options").on;
        assert_eq!(on.as_deref(), Some("cluster"));
        for wrong in [
            &["--seconds"][..],
            &["--seed", "x"],
            &["5"],
            &["--on", "two"],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
