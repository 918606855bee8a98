//! `cargo xtask fuzz`: feeds every parser that sees the outside, and what counts costs, with what libFuzzer thinks of.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{Outcome, capture, cargo, line, succeed, target_directory};

const SECONDS: u64 = 60;

const FOLDER: &str = "fuzz";

/// What a target begins with, beside what its earlier runs have found: files that are shipped.
const SEEDS: [(&str, &str); 1] = [("document", "examples/configured")];

pub(crate) const USAGE: &str = "\
fuzz [--only TARGET[,TARGET]] [--seconds S]
                             runs each fuzz target, for a minute unless said otherwise";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fuzz {
    seconds: u64,
    only: Vec<String>,
}

/// What the options ask for.
pub(crate) fn read(options: &[&str]) -> Outcome<Fuzz> {
    let (mut seconds, mut only) = (SECONDS, Vec::new());
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match *word {
            "--seconds" => {
                let value = value()?;
                let number = value.parse().ok().filter(|seconds| *seconds > 0);
                seconds = number.ok_or(format!("no number of seconds: {value}"))?;
            }
            "--only" => only = value()?.split(',').map(str::to_owned).collect(),
            _ => return Err(format!("no such option: {word}")),
        }
    }
    Ok(Fuzz { seconds, only })
}

pub(crate) fn run(root: &Path, fuzz: &Fuzz) -> Outcome {
    let known = targets(root)?;
    if let Some(unknown) = fuzz.only.iter().find(|name| !known.contains(name)) {
        return Err(format!(
            "no such target: {unknown}; there are {}",
            known.join(", ")
        ));
    }
    let chosen = |name: &&String| fuzz.only.is_empty() || fuzz.only.contains(name);
    let chosen: Vec<&String> = known.iter().filter(chosen).collect();
    install(root)?;
    // All are built first, so that what is said of one is said of its run.
    succeed(&mut cargo_fuzz(root, "build", &[]))?;
    let mut found = Vec::new();
    for name in chosen {
        let (executions, ends) = one(root, name, fuzz.seconds)?;
        let verdict = if ends.is_none() {
            "nothing found"
        } else {
            "FOUND"
        };
        println!(
            "    {name:<10} {executions:>12} executions in {} s: {verdict}",
            fuzz.seconds
        );
        if let Some(ends) = ends {
            println!("{ends}");
            found.push(name.as_str());
        }
    }
    match found.as_slice() {
        [] => Ok(()),
        found => Err(format!("inputs that fail: {}", found.join(", "))),
    }
}

/// That all targets compile, with the very dependencies of the workspace. They aren't linked, so libFuzzer needn't be built:
/// any file stands for it.
pub(crate) fn check(root: &Path) -> Outcome {
    let folder = root.join(FOLDER);
    let (ours, theirs) = (root.join("Cargo.lock"), folder.join("Cargo.lock"));
    fs::copy(&ours, &theirs).map_err(|error| format!("{}: {error}", theirs.display()))?;
    let manifest = folder.join("Cargo.toml");
    let mut command = cargo(root, &["check", "--bins", "--manifest-path"]);
    command
        .arg(&manifest)
        .arg("--target-dir")
        .arg(target_directory(root)?.join(FOLDER))
        .env("CUSTOM_LIBFUZZER_PATH", &manifest)
        .env("RUSTFLAGS", "--cfg fuzzing");
    succeed(&mut command)
}

/// How often a target was run, and its last words if it failed.
fn one(root: &Path, name: &str, seconds: u64) -> Outcome<(u64, Option<String>)> {
    let limit = format!("-max_total_time={seconds}");
    let mut words = vec![name];
    // The first folder gets what is found.
    let found = format!("{FOLDER}/corpus/{name}");
    if let Some((_, seeds)) = SEEDS.iter().find(|(target, _)| *target == name) {
        words.extend([&*found, seeds]);
    }
    words.extend([
        "--",
        &limit,
        "-print_final_stats=1",
        "-timeout=10",
        "-max_len=4096",
    ]);
    let mut command = cargo_fuzz(root, "run", &words);
    let output = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("`{}` did not start: {error}", line(&command)))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let executions = text
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0);
    if output.status.success() {
        if executions == 0 {
            return Err(format!("`{}` ran nothing", line(&command)));
        }
        return Ok((executions, None));
    }
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len().saturating_sub(60);
    Ok((executions, Some(lines[last..].join("\n"))))
}

/// Without a sanitizer, which only a nightly toolchain has: what is looked for are panics and overflows. libFuzzer's
/// counters are a switch of the compiler's that stable has, if it is asked like this.
fn cargo_fuzz(root: &Path, subcommand: &str, words: &[&str]) -> Command {
    let mut command = cargo(root, &["fuzz", subcommand, "--sanitizer", "none"]);
    command.args(words).env("RUSTC_BOOTSTRAP", "1");
    command
}

fn install(root: &Path) -> Outcome {
    let (_, code) = capture(&mut cargo(root, &["fuzz", "--version"]))?;
    if code == Some(0) {
        return Ok(());
    }
    println!("    installing cargo-fuzz");
    succeed(&mut cargo(root, &["install", "--locked", "cargo-fuzz"]))
}

fn targets(root: &Path) -> Outcome<Vec<String>> {
    let folder = root.join(FOLDER).join("fuzz_targets");
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = files
        .filter_map(|name| Some(name.strip_suffix(".rs")?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_mistakes_are_reported() {
        let fuzz = read(&["--only", "key,quota", "--seconds", "5"]).expect("options");
        assert_eq!(
            (fuzz.seconds, fuzz.only),
            (5, vec!["key".into(), "quota".into()])
        );
        assert_eq!(read(&[]).expect("options").seconds, SECONDS);
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["key"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn seeds_are_those_of_targets_and_exist() {
        let root = crate::root().expect("the root");
        let targets = targets(&root).expect("targets");
        for (target, seeds) in SEEDS {
            assert!(targets.contains(&target.into()), "{target}");
            assert!(root.join(seeds).is_dir(), "{seeds}");
        }
    }

    #[test]
    fn all_targets_are_found() {
        let root = crate::root().expect("the root");
        assert!(targets(&root).expect("targets").contains(&"script".into()));
    }
}
