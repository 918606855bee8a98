//! The project's chores, run as `cargo xtask COMMAND`: the command line.

mod bench;
mod fuzz;
mod imports;
mod python;
mod run;
mod server;
mod soak;
mod test;
mod tools;
mod tree;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::run::Outcome;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match root().and_then(|root| run(&root, &words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("cargo xtask {}: FAILED: {reason}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, words: &[&str]) -> Outcome {
    match words {
        ["test", "--server", program] => server::test(root, program),
        ["test"] => test::run(root, &test::STEPS.each_ref()),
        ["test", "--only", steps] => test::run(root, &test::select(steps)?),
        ["bench", options @ ..] => bench::run(root, options),
        ["fuzz", options @ ..] => fuzz::run(root, options),
        ["soak", options @ ..] => soak::run(root, options),
        ["help" | "--help" | "-h"] => {
            println!("{}", usage());
            Ok(())
        }
        _ => Err(format!("not understood\n\n{}", usage())),
    }
}

fn usage() -> String {
    let steps = test::STEPS.iter();
    let steps: String = steps
        .map(|step| format!("\n      {:<10} {}", step.name, step.about))
        .collect();
    format!(
        "\
usage: cargo xtask COMMAND

commands:
  test [--only STEP[,STEP]]  every check a change must pass, in this order:{steps}
      on another server, if TOLLGATE_TEST_SERVER names its program
  test --server PROGRAM      the tests whose outcome a server decides, on PROGRAM, a name on PATH or a path
  bench [--peers] [--only CASE[,CASE]] [--rounds N] [--seconds S] [--quick]
                             measures speed, against baselines or other rate limiters
  fuzz [--seconds S] [TARGET ..]
                             runs fuzz targets, for a minute each unless said otherwise
  soak [--seconds S] [--seed N] [--on one|cluster|sentinel]
                             loads limiters for ten minutes, while their store fails in every way
  help                       this text"
    )
}

/// Asked at run time first: a checkout that was moved keeps its built binary, but not its path.
fn root() -> Outcome<PathBuf> {
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent()
        .map(Path::to_path_buf)
        .ok_or_else(|| format!("{} has no parent directory", here.display()))
}
