//! Runs the program.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;

/// How long a test waits before it is taken for hung. No outcome depends on it: the machine may be busy.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// What a run of the program has printed, and its exit code.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Asserts that it has printed this to its standard output.
    #[track_caller]
    pub(crate) fn assert_stdout(&self, text: &str) {
        assert!(self.stdout.contains(text), "{text} in:\n{}", self.stdout);
    }

    /// Asserts that it has printed this to its standard error.
    #[track_caller]
    pub(crate) fn assert_stderr(&self, text: &str) {
        assert!(self.stderr.contains(text), "{text} in:\n{}", self.stderr);
    }
}

/// Asserts that a JSON object has these fields, besides others.
#[track_caller]
pub(crate) fn assert_fields(found: &Value, fields: Value) {
    for (name, expected) in fields.as_object().expect("fields") {
        assert_eq!(&found[name], expected, "{name} of {found}");
    }
}

/// Runs the program without a terminal and without input.
pub(crate) fn tollgate(arguments: &[&str]) -> Run {
    run(command(arguments))
}

/// The program with these arguments.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program with text as its input.
pub(crate) fn with_input(arguments: &[&str], input: &str) -> Run {
    let folder = testkit::folder();
    let file = write(folder.path(), "input", input);
    let mut command = command(arguments);
    command.stdin(fs::File::open(file).expect("a file"));
    run(command)
}

/// Runs a command until it ends.
pub(crate) fn run(mut command: Command) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Run {
        code: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Writes a file, and returns its path.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path.to_str().expect("text").to_owned()
}
