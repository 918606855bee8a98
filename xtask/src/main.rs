//! The project's chores, run as `cargo xtask COMMAND`: the command line.

mod bench;
mod fuzz;
mod run;
mod soak;
mod test;
mod tools;
mod tree;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::run::Outcome;

fn main() -> ExitCode {
    let words: Vec<String> = env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();

    match words.as_slice() {
        ["help" | "--help" | "-h"] | ["test" | "bench" | "fuzz" | "soak", "--help" | "-h"] => {
            println!("{}", usage());
            ExitCode::SUCCESS
        }
        ["test", "--server"] => conclude("test", test::server::list()),
        ["test", "--server", program] => conclude(
            "test",
            root().and_then(|root| test::server::run(&root, program)),
        ),
        ["test", options @ ..] => match test::select(options) {
            Ok(steps) => conclude("test", root().and_then(|root| test::run(&root, &steps))),
            Err(mistake) => misused(&mistake),
        },
        ["bench", options @ ..] => match bench::read(options) {
            Ok(bench) => conclude("bench", root().and_then(|root| bench::run(&root, &bench))),
            Err(mistake) => misused(&mistake),
        },
        ["fuzz", options @ ..] => match fuzz::read(options) {
            Ok(fuzz) => conclude("fuzz", root().and_then(|root| fuzz::run(&root, &fuzz))),
            Err(mistake) => misused(&mistake),
        },
        ["soak", options @ ..] => match soak::read(options) {
            Ok(soak) => conclude("soak", root().and_then(|root| soak::run(&root, &soak))),
            Err(mistake) => misused(&mistake),
        },
        [] => misused("a command is needed"),
        [other, ..] => misused(&format!("no such command: {other}")),
    }
}

fn usage() -> String {
    let mut text = String::from(
        "usage: cargo xtask COMMAND\n\n\
         commands:\n  \
         test [--only STEP[,STEP]]  every check a change must pass, in this order:\n",
    );
    for test::Step { name, about, .. } in &test::STEPS {
        text += &format!("      {name:<10} {about}\n");
    }
    text += "      on another server, if TOLLGATE_TEST_SERVER names its program\n";
    text += &format!("  {}\n", test::server::USAGE);
    for usage in [bench::USAGE, fuzz::USAGE, soak::USAGE] {
        text += &format!("  {usage}\n");
    }
    text + "  help                       this text"
}

fn misused(mistake: &str) -> ExitCode {
    eprintln!("{}\n\ncargo xtask: {mistake}", usage());
    ExitCode::from(2)
}

fn conclude(command: &str, outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("cargo xtask {command}: FAILED: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Asked at run time first: a checkout that was moved keeps its built binary, but not its path.
fn root() -> Outcome<PathBuf> {
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent()
        .map(Path::to_path_buf)
        .ok_or_else(|| format!("{} has no parent directory", here.display()))
}
