//! Child processes: without input, and named by their whole command line when they fail.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a command ends with: the error is one line, the last one printed.
pub(crate) type Outcome<T = ()> = Result<T, String>;

pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The cargo that runs this, in the workspace's root.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    // The very binary, not a name on PATH, which could resolve to another toolchain.
    let program = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = command(&program, arguments);
    command.current_dir(root);
    // These describe xtask. A build script that watches one of them would run again each time
    // `cargo test` and `cargo xtask test` alternate.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    // Incremental state only pays off on a second build, which a clean checkout never sees.
    if env::var("CI").is_ok_and(|value| value == "true") {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// A search through the project's own files, binary ones aside.
pub(crate) fn grep(root: &Path) -> Command {
    // The owner of the checkout may be another user, as in containers, which git rejects.
    let mut grep = command("git", &["-c", "safe.directory=*", "grep", "-I"]);
    grep.current_dir(root);
    // An unpacked archive has nothing tracked; all of it but ignored files is then the project.
    if !root.join(".git").exists() {
        grep.args(["--no-index", "--exclude-standard"]);
    }
    grep
}

pub(crate) fn succeed(command: &mut Command) -> Outcome {
    let status = command
        .status()
        .map_err(|error| format!("`{}` did not start: {error}", line(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{}`: {status}", line(command)))
    }
}

/// What the command wrote to its standard output, and its exit code.
pub(crate) fn capture(command: &mut Command) -> Outcome<(String, Option<i32>)> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("`{}` did not start: {error}", line(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((text, output.status.code()))
}

/// Where cargo builds.
pub(crate) fn target_directory(root: &Path) -> Outcome<PathBuf> {
    let metadata = metadata(root, &["--no-deps"])?;
    let target = metadata["target_directory"].as_str().map(PathBuf::from);
    target.ok_or_else(|| "`cargo metadata` tells no target directory".into())
}

/// What cargo knows of the workspace.
pub(crate) fn metadata(root: &Path, options: &[&str]) -> Outcome<Value> {
    let mut command = cargo(root, &["metadata", "--format-version", "1"]);
    let (text, code) = capture(command.args(options))?;
    if code != Some(0) {
        return Err(format!("`{}` failed", line(&command)));
    }
    serde_json::from_str(&text)
        .map_err(|error| format!("`{}` is not understood: {error}", line(&command)))
}

/// The command as one would type it, so that a failed one can be pasted and run again.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_stem().unwrap_or(program.as_os_str());
    let settings = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value)))
    });
    settings
        .chain([program.to_string_lossy().into_owned()])
        .chain(
            command
                .get_args()
                .map(|word| quoted(&word.to_string_lossy())),
        )
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
