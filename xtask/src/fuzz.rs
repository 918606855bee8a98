//! `cargo xtask fuzz`: feeds every parser that sees the outside, and what counts costs, with what libFuzzer thinks of.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run::{Outcome, capture, cargo, succeed};

const SECONDS: &str = "60";

const FOLDER: &str = "fuzz";

/// What a target begins with, beside what its earlier runs have found: files that are shipped.
const SEEDS: [(&str, &str); 1] = [("document", "examples/configured")];

/// Runs the targets that the options name, or all of them, also after one that failed.
pub(crate) fn run(root: &Path, options: &[&str]) -> Outcome {
    let (seconds, named) = match options {
        ["--seconds", seconds, named @ ..] => (*seconds, named),
        named => (SECONDS, named),
    };
    let known = targets(root)?;
    if let Some(unknown) = named
        .iter()
        .find(|name| !known.iter().any(|it| it == *name))
    {
        let known = known.join(", ");
        return Err(format!("no such target: {unknown}; there are {known}"));
    }
    install(root)?;
    // All are built first, so that what is said of one is said of its run.
    succeed(&mut cargo_fuzz(root, "build", &[]))?;
    let chosen = known.iter().map(String::as_str);
    let chosen = chosen.filter(|name| named.is_empty() || named.contains(name));
    let failed: Vec<&str> = chosen
        .filter(|name| one(root, name, seconds).is_err())
        .collect();
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(format!("inputs that fail: {}", failed.join(", "))),
    }
}

fn one(root: &Path, name: &str, seconds: &str) -> Outcome {
    println!("==> {name}, {seconds} s");
    let limit = format!("-max_total_time={seconds}");
    // The first folder gets what is found.
    let found = format!("{FOLDER}/corpus/{name}");
    let mut words = vec![name];
    if let Some((_, seeds)) = SEEDS.iter().find(|(target, _)| *target == name) {
        // Without other folders cargo-fuzz makes it.
        fs::create_dir_all(root.join(&found)).map_err(|error| error.to_string())?;
        words.extend([&*found, seeds]);
    }
    words.extend(["--", &limit, "-print_final_stats=1", "-verbosity=0"]);
    words.extend(["-timeout=10", "-max_len=4096"]);
    succeed(&mut cargo_fuzz(root, "run", &words))
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
