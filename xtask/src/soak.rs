//! `cargo xtask soak`: a steady load on servers that fail in every way, for as long as is wished.

use std::path::Path;

use crate::run::{Outcome, cargo, succeed};

/// Passes the options on to the program, by what the tests have built: their profile overflows nothing silently.
pub(crate) fn run(root: &Path, options: &[&str]) -> Outcome {
    let words = "test --quiet --workspace --exclude tollgate-fuzz --all-features --test soak --";
    let mut command = cargo(root, &words.split(' ').collect::<Vec<_>>());
    succeed(command.args(options))
}
