//! `cargo xtask test`: the steps, in their order.

use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::run::{Outcome, cargo, command, metadata, succeed};
use crate::{imports, soak, tools, tree};

/// The library's package. The others depend on it.
const PACKAGE: &str = "tollgate";

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: fn(&Path) -> Outcome,
}

const fn step(name: &'static str, about: &'static str, run: fn(&Path) -> Outcome) -> Step {
    Step { name, about, run }
}

#[rustfmt::skip]
pub(crate) static STEPS: [Step; 9] = [
    step("tools", "the programs the tests need, installed where apt-get can", tools::ready),
    step("fmt", "the formatting of every crate", fmt),
    step("tree", "no foreign paths, unsafe code or ignored tests; folders of src import in one direction", tree),
    step("lua", "every Lua file parses by itself, and luacheck finds nothing in it", lua),
    step("clippy", "lints, with all features, fuzz targets too", clippy),
    step("features", "lints of the library with few features: none, and each beside one other", features),
    step("tests", "tests, documentation tests and examples, with all features; some of them with few features", tests),
    step("soak", "15 seconds of load on stores that fail in every way", |root| soak::run(root, &["--seconds", "15"])),
    step("docs", "the documentation, without a warning", docs),
];

/// The steps of a list of names, always in the order of [`STEPS`].
pub(crate) fn select(list: &str) -> Outcome<Vec<&'static Step>> {
    let names: Vec<&str> = list.split(',').collect();
    if let Some(unknown) = names
        .iter()
        .find(|name| !STEPS.iter().any(|step| step.name == **name))
    {
        return Err(format!("no such step: {unknown}"));
    }
    let selected = STEPS.iter().filter(|step| names.contains(&step.name));
    Ok(selected.collect())
}

pub(crate) fn run(root: &Path, steps: &[&Step]) -> Outcome {
    let (start, count) = (Instant::now(), steps.len());
    let mut times = String::new();
    for (index, Step { name, about, run }) in steps.iter().enumerate() {
        println!("==> [{}/{count}] {name}: {about}", index + 1);
        let begun = Instant::now();
        let outcome = run(root);
        let seconds = begun.elapsed().as_secs_f64();
        times += &format!("    {seconds:>6.1} s  {name}\n");
        outcome.map_err(|reason| format!("step {name}, after {seconds:.1} s: {reason}"))?;
    }
    print!("==> where the time went\n{times}");
    let seconds = start.elapsed().as_secs_f64();
    println!("cargo xtask test: passed, {count} steps in {seconds:.1} s");
    Ok(())
}

fn fmt(root: &Path) -> Outcome {
    succeed(&mut cargo(root, &["fmt", "--all", "--check"]))
}

fn tree(root: &Path) -> Outcome {
    tree::check(root).and(imports::check(root))
}

/// What `.luacheckrc` sets holds everywhere.
fn lua(root: &Path) -> Outcome {
    succeed(command("luacheck", &["--no-color", "--quiet", "."]).current_dir(root))
}

fn clippy(root: &Path) -> Outcome {
    let words = ["clippy", "--workspace", "--all-targets", "--all-features"];
    let mut clippy = cargo(root, &words);
    // Fuzz targets are checked, not linked: any file stands for libFuzzer, which needn't be built.
    clippy.env("CUSTOM_LIBFUZZER_PATH", root.join("fuzz/Cargo.toml"));
    succeed(clippy.args(["--", "-D", "warnings"]))
}

/// Code that only one feature uses is dead without it, which a build of everything cannot see. The library only: development
/// dependencies would turn features of shared dependencies on and hide that one is missing.
fn features(root: &Path) -> Outcome {
    let metadata = metadata(root, &["--no-deps"])?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let features = packages
        .find(|package| package["name"] == PACKAGE)
        .and_then(|package| package["features"].as_object())
        .ok_or_else(|| format!("`cargo metadata` tells no features of {PACKAGE}"))?;
    let names = features.keys().map(String::as_str);
    let names: Vec<&str> = names.filter(|name| *name != "default").collect();
    // In the order of the alphabet, those that need each other are neighbours: each gets a companion from the other half.
    let (first, second) = names.split_at(names.len().div_ceil(2));
    let companions = second.iter().copied().chain([""]);
    let pairs = first
        .iter()
        .zip(companions)
        .map(|(one, other)| format!("{one} {other}"));
    for few in [String::new()].into_iter().chain(pairs) {
        println!("    {few}");
        let words = "clippy --package tollgate --lib --no-default-features --features";
        let mut clippy = cargo(root, &words.split(' ').collect::<Vec<_>>());
        succeed(clippy.args([few.trim(), "--", "-D", "warnings"]))?;
    }
    // As the README has it started.
    succeed(&mut cargo(root, &["check", "--example", "quickstart"]))
}

fn tests(root: &Path) -> Outcome {
    // What runs: fuzz targets run by `cargo xtask fuzz`.
    let everything = [
        "--workspace",
        "--exclude",
        "tollgate-fuzz",
        "--all-features",
    ];
    // Tests start the examples and the programs.
    let all_targets = ["build", "--tests", "--bins", "--examples"];
    succeed(cargo(root, &all_targets).args(everything))?;

    let mut test = cargo(root, &["test", "--tests", "--no-fail-fast"]);
    // Most tests wait for a server or a program.
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        test.env("RUST_TEST_THREADS", (2 * cores).to_string());
    }
    succeed(test.args(everything))?;
    succeed(cargo(root, &["test", "--doc"]).args(everything))?;

    // Where it counts in process alone.
    let words = "test --package tollgate --no-default-features --features axum --test smoke";
    succeed(&mut cargo(root, &words.split(' ').collect::<Vec<_>>()))
}

fn docs(root: &Path) -> Outcome {
    let everything = ["doc", "--workspace", "--all-features", "--no-deps"];
    succeed(cargo(root, &everything).env("RUSTDOCFLAGS", "-D warnings"))
}
