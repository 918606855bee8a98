//! Child processes that do not outlive the test process.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use crate::wait;

/// A running program, killed and reaped on drop.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts `program`; on Linux the system kills it when this process ends.
    pub(crate) fn spawn(program: &Path, prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let mut command = match death_signal() {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        prepare(&mut command);
        spawn_from_lasting_thread(command).map(Self)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.0
            .try_wait()
            .expect("the state of a child process can be read")
    }

    /// Stops the process, and returns when it is stopped.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.id());
        if !Path::new(&stat).exists() {
            return thread::sleep(Duration::from_millis(50));
        }
        wait::until("a server stops on SIGSTOP", || {
            let stat = fs::read_to_string(&stat).ok()?;
            stat.rsplit(") ").next()?.starts_with('T').then_some(())
        });
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// Terminates the process and waits for it.
    pub(crate) fn terminate(mut self) {
        self.signal("TERM");
        self.resume();
        wait::until("a server ends on SIGTERM", || self.exited());
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.id(), name);
    }
}

/// Sends a process a signal, such as `HUP`, by the shell's own `kill`, since small images lack the program.
///
/// # Panics
/// If it can't be sent.
#[track_caller]
pub fn signal(process: u32, name: &str) {
    let kill = format!("kill -{name} {process}");
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(
        sent.as_ref().is_ok_and(ExitStatus::success),
        "{kill}: {sent:?}"
    );
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file that would run as `program`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    // Where servers are, outside of the `PATH` of users other than root.
    let elsewhere = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    env::split_paths(&env::var_os("PATH")?)
        .chain(elsewhere)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// The version that a server prints: `Redis server v=7.0.15 sha=...`.
pub(crate) fn version(program: &str) -> Option<(u32, u32)> {
    let output = Command::new(find(program)?)
        .arg("--version")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace();
    let version = words.find_map(|word| word.strip_prefix("v="))?;
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// `setpriv`, if it is installed and has the option: busybox's lacks it.
fn death_signal() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            find("setpriv").filter(|setpriv| {
                Command::new(setpriv)
                    .args(["--pdeathsig", "KILL", "true"])
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|status| status.success())
            })
        })
        .as_deref()
}

/// Linux sends the death signal when the parent *thread* ends. A server in a
/// static must outlive the test that happened to start it first, so all children
/// belong to one thread that ends with the process.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static ORDERS: OnceLock<Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        let work = move || {
            for (mut command, reply) in orders {
                // The caller waits for the result, so it is always received.
                let _ = reply.send(command.spawn());
            }
        };
        thread::Builder::new()
            .name("testkit-spawn".into())
            .spawn(work)
            .expect("a thread can be started");
        sender
    });
    let (reply, child) = mpsc::channel();
    orders
        .send((command, reply))
        .expect("the spawning thread never ends");
    child.recv().expect("the spawning thread answers")
}
