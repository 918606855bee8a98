//! Programs that are no Redis servers.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use tempfile::TempDir;

use crate::folder;
use crate::process::{self, Process};

/// A program with a folder of its own, killed on drop with all that it has started, and on Linux also when the
/// test process itself is killed.
#[derive(Debug)]
pub struct Program {
    name: String,
    process: Process,
    folder: TempDir,
}

impl Program {
    /// Starts the first of `names` that is installed. `prepare` gets the command, which has no arguments yet, and
    /// the folder to put files into.
    ///
    /// # Panics
    /// If none is installed, or the program can't be started.
    #[track_caller]
    pub fn start(names: &[&str], prepare: impl FnOnce(&mut Command, &Path)) -> Self {
        let found = names.iter().find_map(|name| process::find(name));
        let names = names.join(" or ");
        let found = found
            .unwrap_or_else(|| panic!("{names} is not installed; `cargo xtask test` installs it"));
        let folder = folder();
        let log = File::create(folder.path().join("log")).expect("the program's log can be made");
        let errors = log.try_clone().expect("the program's log can be shared");
        let process = Process::spawn(&found, |command| {
            // A group of its own, so that its children can be killed with it.
            command.process_group(0).stdin(Stdio::null());
            // What it puts aside goes with it.
            command.env("TMPDIR", folder.path());
            command.stdout(log).stderr(errors);
            prepare(command, folder.path());
        });
        Self {
            process: process.unwrap_or_else(|error| panic!("{names} can't be started: {error}")),
            name: names,
            folder,
        }
    }

    /// The program's folder. What it prints is in the file `log` there.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the program has printed.
    pub fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Sends SIGINT to the program itself.
    pub fn interrupt(&self) {
        self.process.signal("INT");
    }

    /// How the program has ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = format!("kill -s KILL -- -{}", self.process.id());
        // Fails only if all of them are gone already.
        let _ = Command::new("sh")
            .args(["-c", &group])
            .stderr(Stdio::null())
            .status();
        if std::thread::panicking() {
            eprintln!("what {} has printed:\n{}", self.name, self.log());
        }
    }
}
