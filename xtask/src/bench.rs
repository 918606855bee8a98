//! `cargo xtask bench`: measures, in a release build, and leaves the results under `target`.

use std::path::Path;

use crate::run::{Outcome, cargo, succeed, target_directory};

/// What the measuring programs take besides `--peers`, and whether a value follows.
const OPTIONS: [(&str, bool); 4] = [
    ("--only", true),
    ("--rounds", true),
    ("--seconds", true),
    ("--quick", false),
];

pub(crate) const USAGE: &str = "\
bench [--peers] [--only CASE[,CASE]] [--rounds N] [--seconds S] [--quick]
                             measures speed, against baselines or other rate limiters";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bench {
    peers: bool,
    passed_on: Vec<String>,
}

/// What the options ask for. The measuring program checks their values.
pub(crate) fn read(options: &[&str]) -> Outcome<Bench> {
    let mut bench = Bench {
        peers: false,
        passed_on: Vec::new(),
    };
    let mut words = options.iter();
    while let Some(word) = words.next() {
        if *word == "--peers" {
            bench.peers = true;
            continue;
        }
        let Some((_, takes_value)) = OPTIONS.iter().find(|(name, _)| name == word) else {
            return Err(format!("no such option: {word}"));
        };
        bench.passed_on.push((*word).to_owned());
        if *takes_value {
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            bench.passed_on.push((*value).to_owned());
        }
    }
    Ok(bench)
}

pub(crate) fn run(root: &Path, bench: &Bench) -> Outcome {
    let target = target_directory(root)?;
    let out = target.join("bench");
    let mut command = cargo(root, &["run", "--quiet", "--release"]);
    if bench.peers {
        // Outside of the workspace, and so without its target directory.
        command
            .args(["--manifest-path", "benches/peers/Cargo.toml"])
            .arg("--target-dir")
            .arg(&target);
    } else {
        command.args(["--package", "tollgate-bench"]);
    }
    command.arg("--").args(&bench.passed_on);
    succeed(command.arg("--out").arg(&out))?;
    println!("\nwritten to {}", out.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_passed_on_and_mistakes_are_reported() {
        let bench = read(&["--peers", "--only", "cold,hot", "--quick"]).expect("options");
        assert!(bench.peers);
        assert_eq!(bench.passed_on, ["--only", "cold,hot", "--quick"]);
        assert!(read(&["--only"]).is_err());
        assert!(read(&["cold"]).is_err());
    }
}
