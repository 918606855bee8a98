//! A document and a log to replay.

use std::{fs, process::Command};

use serde_json::Value;
use testkit::TempDir;

use crate::program::{Run, command, run};

/// A document and a log, and the program that replays them.
pub(super) struct Scene {
    folder: TempDir,
}

impl Scene {
    pub(super) fn new(document: &str, log: &str) -> Self {
        let scene = Self {
            folder: testkit::folder(),
        };
        scene.write("limits.toml", document);
        scene.write("access.log", log);
        scene
    }

    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.folder.path().join(name), content).expect("a file");
    }

    /// The program in the scene's folder.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(&[&["replay", "limits.toml"], arguments].concat());
        command.current_dir(self.folder.path());
        command
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Run {
        run(self.command(arguments))
    }

    pub(super) fn report(&self, arguments: &[&str]) -> Value {
        let run = self.run(&[&["--json"], arguments].concat());
        assert_eq!((run.code, &*run.stderr), (Some(0), ""));
        serde_json::from_str(&run.stdout).expect("JSON")
    }
}

/// A line of JSON: when the request arrived in milliseconds, how long it took, and the rest.
pub(super) fn line(arrived_ms: u64, took_ms: u64, path: &str, status: u16) -> String {
    let arrived = 1_800_000_000_000 + arrived_ms;
    format!(
        "{{\"start_time\":{arrived},\"duration_ms\":{took_ms},\"peer\":\"192.0.2.1\",\"method\":\"GET\",\"path\":\"{path}\",\"status\":{status}}}\n"
    )
}

/// A line of the common format, so many seconds after the first.
pub(super) fn common(second: u64, peer: &str) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!("{peer} - - [15/Jan/2027:08:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n")
}
