//! `cargo xtask bench`: measures, in a release build, and leaves the results under `target`.

use std::path::Path;

use crate::run::{Outcome, cargo, succeed, target_directory};

/// Passes the options on to the measuring program, all but `--peers`.
pub(crate) fn run(root: &Path, options: &[&str]) -> Outcome {
    let target = target_directory(root)?;
    let out = target.join("bench");
    let mut command = cargo(root, &["run", "--quiet", "--release"]);
    if options.contains(&"--peers") {
        // Outside of the workspace, and so without its target directory.
        command
            .args(["--manifest-path", "benches/peers/Cargo.toml"])
            .arg("--target-dir")
            .arg(&target);
    } else {
        command.args(["--package", "tollgate-bench"]);
    }
    let options = options.iter().filter(|option| **option != "--peers");
    command.arg("--").args(options).arg("--out").arg(&out);
    succeed(&mut command)?;
    println!("\nwritten to {}", out.display());
    Ok(())
}
