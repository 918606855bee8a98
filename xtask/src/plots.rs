//! `cargo xtask plots`: draws the pictures of the documentation, or compares them with their files.

use std::path::Path;

use crate::run::{Outcome, cargo, succeed};

pub(crate) const USAGE: &str = "\
plots [--check]            draws the pictures of docs/images from runs of the strategies, or names
                             those that are no longer what the code draws; the tests check it, too";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plots {
    Write,
    Check,
}

/// What the options ask for.
pub(crate) fn read(options: &[&str]) -> Outcome<Plots> {
    match options {
        [] => Ok(Plots::Write),
        ["--check"] => Ok(Plots::Check),
        _ => Err(format!("no such options: {}", options.join(" "))),
    }
}

/// By a program of its own, since it uses the library.
pub(crate) fn run(root: &Path, plots: Plots) -> Outcome {
    let mut command = cargo(
        root,
        &["run", "--quiet", "--package", "tollgate-plots", "--"],
    );
    if plots == Plots::Check {
        command.arg("--check");
    }
    succeed(&mut command)
}
