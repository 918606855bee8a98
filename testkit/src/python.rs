//! Implementations in Python, for the project's to meet.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a script of `tests/peers` with the packages that `cargo xtask test` installs,
/// and returns its output, with `input` on its standard input.
///
/// # Panics
/// If the packages are not there, or the script fails, with its output.
pub fn python(script: &str, arguments: &[&str], input: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/peers");
    let mut python = Command::new(interpreter())
        .arg(tests.join(script))
        .args(arguments)
        // Nothing is written beside the sources.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut stdin = python.stdin.take().expect("its input is piped");
    // Fails only if the script has ended before it read all, and its status shows why.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = python.wait_with_output().expect("Python ends");
    assert!(
        output.status.success(),
        "{script} {arguments:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("scripts print UTF-8")
}

/// The environment is in the target directory, as is the running test.
fn interpreter() -> PathBuf {
    let test = env::current_exe().expect("this test's own path");
    let mut above = test
        .ancestors()
        .map(|folder| folder.join("peers-venv/bin/python"));
    above.find(|python| python.exists()).unwrap_or_else(|| {
        panic!("no peers-venv in the target directory: run `cargo xtask test --only tools`")
    })
}
