//! `cargo xtask test`: the steps, in their order.

mod results;
pub(crate) mod server;

use std::path::Path;
use std::thread;
use std::time::Instant;

use self::results::{Results, TIMED, TIMED_PROGRAM};
use crate::run::{Outcome, cargo, command, metadata, succeed};
use crate::{fuzz, soak, tools, tree};

/// The library's package. The others depend on it.
const PACKAGE: &str = "tollgate";

/// How many of the slowest tests are listed.
const SLOWEST: usize = 10;

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: fn(&Path) -> Outcome,
}

pub(crate) static STEPS: [Step; 10] = [
    Step {
        name: "tools",
        about: "the programs the tests need, installed where apt-get can",
        run: programs,
    },
    Step {
        name: "fmt",
        about: "the formatting of every crate",
        run: fmt,
    },
    Step {
        name: "tree",
        about: "sources without foreign paths, unsafe code or ignored tests",
        run: tree::check,
    },
    Step {
        name: "lua",
        about: "every Lua file parses by itself, and luacheck finds nothing in it",
        run: lua,
    },
    Step {
        name: "clippy",
        about: "lints, with all features, the default ones and none",
        run: clippy,
    },
    Step {
        name: "features",
        about: "the library compiles with each feature alone",
        run: features,
    },
    Step {
        name: "tests",
        about: "tests, documentation tests and examples, with all features; some of them with few features",
        run: tests,
    },
    Step {
        name: "soak",
        about: "15 seconds of load on stores that fail in every way",
        run: soak::short,
    },
    Step {
        name: "docs",
        about: "the documentation, without a warning",
        run: docs,
    },
    Step {
        name: "fuzz",
        about: "every fuzz target compiles",
        run: fuzz::check,
    },
];

/// The steps the options ask for, always in the order of [`STEPS`].
pub(crate) fn select(options: &[&str]) -> Outcome<Vec<&'static Step>> {
    select_of(&STEPS, |step| step.name, options)
}

/// The steps the options ask for, in the order of `steps`.
pub(crate) fn select_of<'a, S>(
    steps: &'a [S],
    name: fn(&S) -> &str,
    options: &[&str],
) -> Outcome<Vec<&'a S>> {
    let list = match options {
        [] => return Ok(steps.iter().collect()),
        ["--only", list] => list,
        [option] => option
            .strip_prefix("--only=")
            .ok_or_else(|| format!("no such option, or not a whole one: {option}"))?,
        [..] => return Err(format!("no such options: {}", options.join(" "))),
    };
    let names: Vec<&str> = list.split(',').collect();
    for wanted in &names {
        if !steps.iter().any(|step| name(step) == *wanted) {
            return Err(format!("no such step: {wanted}"));
        }
    }
    let selected = steps.iter().filter(|step| names.contains(&name(step)));
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

fn programs(root: &Path) -> Outcome {
    tools::ready(root)?;
    tools::python::ready(root)
}

/// What `.luacheckrc` sets holds everywhere.
fn lua(root: &Path) -> Outcome {
    succeed(command("luacheck", &["--no-color", "--quiet", "."]).current_dir(root))
}

fn fmt(root: &Path) -> Outcome {
    succeed(&mut cargo(root, &["fmt", "--all", "--check"]))
}

fn clippy(root: &Path) -> Outcome {
    let everything = ["clippy", "--workspace", "--all-targets", "--all-features"];
    succeed(cargo(root, &everything).args(["--", "-D", "warnings"]))?;
    // The library and the examples, as most users build them.
    let default = ["clippy", "--all-targets"];
    succeed(cargo(root, &default).args(["--", "-D", "warnings"]))?;
    bare_clippy(root)
}

fn features(root: &Path) -> Outcome {
    for feature in feature_names(root)? {
        println!("    {feature}");
        let words = [
            "check",
            "--package",
            PACKAGE,
            "--lib",
            "--no-default-features",
        ];
        succeed(cargo(root, &words).args(["--features", &feature]))?;
    }
    Ok(())
}

/// Code that only one feature uses is dead without it, which a build of everything cannot see. The library only: development dependencies would turn features of shared dependencies on
/// and hide that one is missing.
fn bare_clippy(root: &Path) -> Outcome {
    let bare = ["clippy", "-p", PACKAGE, "--lib", "--no-default-features"];
    succeed(cargo(root, &bare).args(["--", "-D", "warnings"]))
}

fn feature_names(root: &Path) -> Outcome<Vec<String>> {
    let metadata = metadata(root, &["--no-deps"])?;
    let features = metadata["packages"]
        .as_array()
        .and_then(|packages| packages.iter().find(|package| package["name"] == PACKAGE))
        .and_then(|package| package["features"].as_object())
        .ok_or_else(|| format!("`cargo metadata` tells no features of {PACKAGE}"))?;
    Ok(features
        .keys()
        .filter(|name| *name != "default")
        .cloned()
        .collect())
}

fn tests(root: &Path) -> Outcome {
    let everything = ["--workspace", "--all-features"];
    // Tests start the examples and the programs.
    let all_targets = ["build", "--tests", "--bins", "--examples"];
    succeed(cargo(root, &all_targets).args(everything))?;

    let mut results = Results::default();
    let mut test = cargo(root, &["test", "--tests", "--no-fail-fast"]);
    test.args(everything)
        .args(TIMED)
        .arg("--")
        .args(TIMED_PROGRAM);
    // Most tests wait for a server or a program.
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        test.env("RUST_TEST_THREADS", (2 * cores).to_string());
    }
    let outcome = results.run(&mut test);
    print!("==> the slowest tests\n{}", results.slowest(SLOWEST));
    outcome?;
    succeed(cargo(root, &["test", "--doc"]).args(everything))?;

    // Where it counts in process alone. Cargo takes --doc only alone.
    let bare = ["test", "--package", PACKAGE, "--no-default-features"];
    succeed(cargo(root, &bare).args(["--features", "axum", "--test", "smoke"]))?;
    succeed(cargo(root, &bare).args(["--features", "axum", "--doc"]))
}

fn docs(root: &Path) -> Outcome {
    let everything = ["doc", "--workspace", "--all-features", "--no-deps"];
    succeed(cargo(root, &everything).env("RUSTDOCFLAGS", "-D warnings"))
}
