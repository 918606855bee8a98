//! `cargo xtask test`: the steps, in their order.

pub(crate) mod server;

use std::path::Path;
use std::time::Instant;

use crate::run::{Outcome, cargo, command, metadata, succeed};
use crate::{folders, fuzz, guide, imports, soak, tools, tree, words};

/// The library's package. The others depend on it.
pub(crate) const PACKAGE: &str = "tollgate";

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: fn(&Path) -> Outcome,
}

pub(crate) static STEPS: [Step; 13] = [
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
        name: "clippy",
        about: "lints, with all features and with none",
        run: clippy,
    },
    Step {
        name: "lua",
        about: "every Lua file parses by itself, and luacheck finds nothing in it",
        run: lua,
    },
    Step {
        name: "features",
        about: "lints, with each feature alone",
        run: features,
    },
    Step {
        name: "tests",
        about: "tests and documentation tests, with all features, with few and with none",
        run: tests,
    },
    Step {
        name: "soak",
        about: "a minute of load on stores that fail in every way",
        run: soak::short,
    },
    Step {
        name: "docs",
        about: "the documentation, without a warning",
        run: docs,
    },
    Step {
        name: "examples",
        about: "every example builds",
        run: examples,
    },
    Step {
        name: "fuzz",
        about: "every fuzz target compiles",
        run: fuzz::check,
    },
    Step {
        name: "tree",
        about: "the sources stand alone and keep the house rules",
        run: tree::check,
    },
    Step {
        name: "layout",
        about: "no imports in a circle, no crowded folders, and no guide to what is gone",
        run: layout,
    },
    Step {
        name: "words",
        about: "no words in comments, messages and guides that the project does without",
        run: words::check,
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
    let start = Instant::now();
    let elapsed = || format!("{:.1} s", start.elapsed().as_secs_f64());
    let count = steps.len();
    for (index, Step { name, about, run }) in steps.iter().enumerate() {
        println!(
            "==> [{}/{count}] {name}: {about} ({})",
            index + 1,
            elapsed()
        );
        run(root).map_err(|reason| format!("step {name}, after {}: {reason}", elapsed()))?;
    }
    println!("cargo xtask test: passed, {count} steps in {}", elapsed());
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

fn layout(root: &Path) -> Outcome {
    let cycles = imports::check(root);
    let folders = folders::check(root);
    guide::check(root).and(folders).and(cycles)
}

/// Takes off the lists of known faults what is gone.
pub(crate) fn shorten(root: &Path) -> Outcome {
    imports::shorten(root)?;
    folders::shorten(root)?;
    words::shorten(root)
}

fn fmt(root: &Path) -> Outcome {
    succeed(&mut cargo(root, &["fmt", "--all", "--check"]))
}

fn clippy(root: &Path) -> Outcome {
    let everything = ["clippy", "--workspace", "--all-targets", "--all-features"];
    succeed(cargo(root, &everything).args(["--", "-D", "warnings"]))?;
    bare_clippy(root, &[])
}

/// Code that only one feature uses is dead without it, which a build of everything cannot see.
pub(crate) fn features(root: &Path) -> Outcome {
    for feature in feature_names(root)? {
        println!("    {feature}");
        bare_clippy(root, &["--features", &feature])?;
    }
    Ok(())
}

/// The library only: development dependencies would turn features of shared dependencies on
/// and hide that one is missing.
pub(crate) fn bare_clippy(root: &Path, selection: &[&str]) -> Outcome {
    let bare = ["clippy", "-p", PACKAGE, "--lib", "--no-default-features"];
    succeed(
        cargo(root, &bare)
            .args(selection)
            .args(["--", "-D", "warnings"]),
    )
}

pub(crate) fn feature_names(root: &Path) -> Outcome<Vec<String>> {
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
    let everything = ["test", "--workspace", "--all-features", "--no-fail-fast"];
    succeed(&mut cargo(root, &everything))?;
    // The layer as most users build it, and where it counts in process alone.
    let layer = ["test", "-p", PACKAGE, "--test", "http"];
    succeed(&mut cargo(root, &layer))?;
    let in_process = ["--no-default-features", "--features", "axum"];
    succeed(cargo(root, &layer).args(in_process))?;
    // Cargo takes --lib and --doc only one at a time.
    for target in ["--lib", "--doc"] {
        let bare = ["test", "-p", PACKAGE, "--no-default-features", target];
        succeed(&mut cargo(root, &bare))?;
    }
    Ok(())
}

pub(crate) fn docs(root: &Path) -> Outcome {
    let everything = ["doc", "--workspace", "--all-features", "--no-deps"];
    succeed(cargo(root, &everything).env("RUSTDOCFLAGS", "-D warnings"))
}

fn examples(root: &Path) -> Outcome {
    succeed(&mut cargo(root, &["build", "--examples", "--all-features"]))
}
