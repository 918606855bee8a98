//! The test programs, with all mutants in them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::{Outcome, capture, cargo, line};
use crate::test::PACKAGE;

/// The variable of the environment with the number of the mutant that is on.
const VARIABLE: &str = "TOLLGATE_MUTANT";

/// The test programs by their names.
pub(super) struct Programs(BTreeMap<String, Program>);

struct Program {
    path: PathBuf,
    package: PathBuf,
}

/// How the tests of a filter ended.
pub(super) enum Tests {
    Passed(usize),
    /// The first that failed.
    Failed(String),
    TimedOut,
}

impl Programs {
    /// Builds the programs that the filters name.
    pub(super) fn build(tree: &Path, target: &Path, filters: &BTreeSet<&str>) -> Outcome<Self> {
        let names: BTreeSet<&str> = filters.iter().map(|filter| parts(filter).0).collect();
        let words = "test --no-run --workspace --all-features --message-format json";
        let mut build = cargo(tree, &words.split(' ').collect::<Vec<_>>());
        build.arg("--target-dir").arg(target);
        build.env("CARGO_INCREMENTAL", "0");
        // Of all packages, by one flag.
        if names.contains("lib") || names.contains("server") {
            build.arg("--lib");
        }
        for name in names {
            match name {
                "lib" | "server" => continue,
                // It runs the programs and the examples.
                "process" => build.args(["--test", name, "--bins", "--examples"]),
                _ => build.args(["--test", name]),
            };
        }
        let (messages, code) = capture(&mut build)?;
        let mut programs = BTreeMap::new();
        for message in messages.lines() {
            let message: Value = serde_json::from_str(message).unwrap_or_default();
            let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str);
            if let (Some("error"), Some(error)) =
                (text("/message/level"), text("/message/rendered"))
            {
                eprint!("{error}");
            }
            let (Some(path), Some(manifest)) = (text("/executable"), text("/manifest_path")) else {
                continue;
            };
            let package = Path::new(manifest).parent().unwrap_or(tree).to_path_buf();
            let name = match (text("/target/kind/0"), text("/target/name")) {
                (Some("lib"), Some(PACKAGE)) => "lib",
                (Some("lib"), Some("tollgate_server")) => "server",
                (Some("test"), Some("service")) => "service",
                // Other packages have programs of these names too.
                (Some("test"), Some(name)) if package.ends_with("tests") => name,
                _ => continue,
            };
            let path = path.into();
            programs.insert(name.to_owned(), Program { path, package });
        }
        match code {
            Some(0) => Ok(Self(programs)),
            _ => Err(format!("`{}` failed", line(&build))),
        }
    }

    /// Runs the tests of a filter until the first fails.
    pub(super) fn run(&self, filter: &str, number: usize, timeout: Duration) -> Outcome<Tests> {
        let (name, part) = parts(filter);
        let program = self.0.get(name).ok_or(format!("no test program {name}"))?;
        let mut command = Command::new(&program.path);
        command.args([part, "--test-threads", "2"]);
        command.current_dir(&program.package);
        // As cargo does it.
        command.env("CARGO_MANIFEST_DIR", &program.package);
        command.env("CARGO_PKG_NAME", package_name(name));
        command.env("CARGO_PKG_VERSION_MAJOR", "0");
        command.env(VARIABLE, number.to_string());
        // A group of its own, so that the processes that tests start can be killed with it.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let shown = line(&command);
        let failed = |error: io::Error| format!("`{shown}`: {error}");
        let mut child = command.spawn().map_err(failed)?;
        let (sender, lines) = mpsc::channel();
        let output = child.stdout.take();
        thread::spawn(move || {
            let lines = output
                .map(BufReader::new)
                .into_iter()
                .flat_map(BufRead::lines);
            lines
                .map_while(Result::ok)
                .try_for_each(|text| sender.send(text))
        });
        let deadline = Instant::now() + timeout;
        let mut passed = 0;
        let tests = loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(text) => match text
                    .strip_prefix("test ")
                    .and_then(|text| text.split_once(" ... "))
                {
                    Some((_, "ok")) => passed += 1,
                    Some((test, "FAILED")) => break Tests::Failed(test.to_owned()),
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) => break Tests::TimedOut,
                Err(RecvTimeoutError::Disconnected) => {
                    let status = child.wait().map_err(failed)?;
                    break match status.success() {
                        true => Tests::Passed(passed),
                        false => Tests::Failed(format!("ended with {status}")),
                    };
                }
            }
        };
        // It fails if all of them have ended.
        let group = format!("kill -s KILL -- -{}", child.id());
        let _ = Command::new("sh")
            .args(["-c", &group])
            .stderr(Stdio::null())
            .status();
        let _ = child.wait();
        Ok(tests)
    }
}

/// The package of a test program.
fn package_name(program: &str) -> &'static str {
    match program {
        "lib" => PACKAGE,
        "server" | "service" => "tollgate-server",
        _ => "tollgate-tests",
    }
}

/// The test program of a filter, and a part of the names of its tests.
pub(super) fn parts(filter: &str) -> (&str, &str) {
    filter.split_once(' ').unwrap_or((filter, ""))
}
