//! A shell that runs the commands of a session one after the other, and keeps its variables.

use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
};
use tollgate_tests::prelude::*;

/// A running bash, killed on drop with all that it has started.
pub(crate) struct Shell {
    child: Child,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
}

impl Shell {
    /// Starts a shell in this folder, whose `bin` is searched for programs first.
    pub(crate) fn start(folder: &Path) -> Self {
        let bin = folder.join("bin");
        let path = std::env::var("PATH").expect("a search path");
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc"]).current_dir(folder);
        command.env("PATH", format!("{}:{path}", bin.display()));
        for variable in ["REDIS_URL", "ADMIN_TOKEN", "TOLLGATE_ADMIN_TOKEN"] {
            command.env_remove(variable);
        }
        command.env("NO_COLOR", "1").env("LC_ALL", "C.UTF-8");
        // A group of its own, so that all that it has started can be killed.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("bash");
        let input = child.stdin.take().expect("a pipe");
        let mut stdout = child.stdout.take().expect("a pipe");
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stdout.read(&mut buffer) {
                // The receiver is gone once the test is over.
                let _ = sender.send(buffer[..read].to_vec());
            }
        });
        let mut shell = Self {
            child,
            input,
            output,
        };
        // What is started ends with the test also if that is killed.
        shell.run("exec 2>&1; trap 'kill -- -$$' EXIT");
        shell
    }

    /// Runs a command, and returns what it has printed.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let line = format!("{{ {command}\n}} </dev/null\nprintf '\\0'\n");
        self.input.write_all(line.as_bytes()).expect("bash reads");
        let mut printed = Vec::new();
        while printed.last() != Some(&0) {
            let more = self.output.recv_timeout(TEST_TIMEOUT);
            printed.extend(more.unwrap_or_else(|error| {
                let printed = String::from_utf8_lossy(&printed);
                panic!("{command} does not end: {error}; it has printed {printed:?}")
            }));
        }
        printed.pop();
        String::from_utf8(printed).expect("text")
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("kill -s KILL -- -{}", self.child.id());
        // Fails only if all of them are gone already.
        let _ = Command::new("sh")
            .args(["-c", &group])
            .stderr(Stdio::null())
            .status();
        let _ = self.child.wait();
    }
}
