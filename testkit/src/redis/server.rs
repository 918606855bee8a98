//! One server, from start to end.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::{self, Process};
use crate::{Builder, Clock, Connection, Reply, TIMEOUT};

/// A real server on a port and in a folder of its own, killed on drop.
///
/// All methods take `&self`, so a server may be in an `Arc` or a static.
#[derive(Debug)]
pub struct Server {
    // Before the folder, so that the server ends before its folder goes.
    process: Mutex<Option<Process>>,
    admin: Mutex<Option<Connection>>,
    pub(crate) setup: Setup,
    port: u16,
    folder: TempDir,
}

/// What a start and a restart need to know.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) program: String,
    pub(crate) clock: Option<Clock>,
    pub(crate) password: Option<String>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) replica: bool,
    pub(crate) sentinel: bool,
}

/// Why a server did not start.
pub(crate) enum Failure {
    PortTaken,
    Other(String),
}

impl Setup {
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.into(),
            clock: None,
            password: None,
            socket: None,
            replica: false,
            sentinel: false,
        }
    }

    fn connect(&self, port: u16, patience: Duration) -> io::Result<Connection> {
        let mut connection = Connection::open(local(port), patience)?;
        if let Some(password) = &self.password {
            // A wrong password shows in the next command.
            connection.call(&["AUTH", password])?;
        }
        Ok(connection)
    }
}

impl Server {
    /// Starts a server with no options.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Options for a server.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn new(process: Process, setup: Setup, port: u16, folder: TempDir) -> Self {
        Self {
            process: Mutex::new(Some(process)),
            admin: Mutex::new(None),
            setup,
            port,
            folder,
        }
    }

    /// Runs the program until it replies.
    pub(crate) fn launch(setup: &Setup, port: u16, folder: &Path) -> Result<Process, Failure> {
        let Some(program) = process::find(&setup.program) else {
            let hint = "`cargo xtask test` installs it";
            return Err(Failure::Other(format!(
                "{} is not installed; {hint}",
                setup.program
            )));
        };
        let log = folder.join("log");
        let seen = fs::metadata(&log).map_or(0, |file| file.len());
        let news = || {
            let text = fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(&text[usize::try_from(seen).unwrap_or(0)..]).into_owned()
        };
        let fail =
            |why: &str| Failure::Other(format!("{} {why}; its log:\n{}", setup.program, news()));
        let mut process = run(setup, &program, folder, &log)
            .map_err(|err| fail(&format!("cannot be started ({err})")))?;
        let start = Instant::now();
        loop {
            if let Some(status) = process.exited() {
                return Err(match news().contains("Address already in use") {
                    true => Failure::PortTaken,
                    false => fail(&format!("ended at once ({status})")),
                });
            }
            match probe(setup, port, process.id()) {
                Ok(true) => return Ok(process),
                _ if start.elapsed() < TIMEOUT => sleep(Duration::from_millis(5)),
                Ok(false) => {
                    return Err(fail(
                        "answers, but is not ready or does not follow its clock",
                    ));
                }
                Err(err) => {
                    return Err(fail(&format!("did not answer within {TIMEOUT:?} ({err})")));
                }
            }
        }
    }

    /// The port, which stays the same after [`restart`](Self::restart).
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address.
    pub fn addr(&self) -> SocketAddr {
        local(self.port)
    }

    /// The process id, or `None` if the server does not run.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::id)
    }

    /// The path of the Unix socket, if it has one.
    pub fn socket(&self) -> Option<&Path> {
        self.setup.socket.as_deref()
    }

    /// The folder in which the server runs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        let text = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Opens another connection, as the default user.
    pub fn connect(&self) -> io::Result<Connection> {
        self.setup.connect(self.port, TIMEOUT)
    }

    /// Sends one command over the helper's own connection, which stays open.
    ///
    /// # Panics
    /// If the server does not reply within [`TIMEOUT`]. A reply that is an error is a
    /// [`Reply::Error`].
    #[track_caller]
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        match self.try_command(args) {
            Ok(reply) => reply,
            Err(err) => {
                let name = args
                    .first()
                    .map(|arg| String::from_utf8_lossy(arg.as_ref()));
                panic!(
                    "no answer to {} on port {}: {err}",
                    name.unwrap_or_default(),
                    self.port
                )
            }
        }
    }

    /// [`command`](Self::command) for a server that may be away.
    pub fn try_command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        let mut admin = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut kept) = admin.take() {
            match kept.call(args) {
                Ok(reply) => {
                    *admin = Some(kept);
                    return Ok(reply);
                }
                Err(err) if !is_closed(&err) => return Err(err),
                // Killed by a test's CLIENT KILL or a restart.
                Err(_) => {}
            }
        }
        let mut fresh = self.connect()?;
        let reply = fresh.call(args)?;
        *admin = Some(fresh);
        Ok(reply)
    }

    /// Kills the server without notice. Its port and folder are kept. Does nothing
    /// if it does not run.
    pub fn kill(&self) {
        self.process().take();
    }

    /// Terminates the server, and waits for it.
    pub fn stop(&self) {
        let process = self.process().take();
        if let Some(process) = process {
            process.terminate();
        }
    }

    /// Starts the server again on its port and in its folder, with no data, and
    /// waits until it replies. A server that runs is killed first.
    ///
    /// # Panics
    /// If it does not reply within [`TIMEOUT`], or another program took its port.
    #[track_caller]
    pub fn restart(&self) {
        let mut process = self.process();
        process.take();
        self.admin
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let start = Instant::now();
        loop {
            match Self::launch(&self.setup, self.port, self.folder.path()) {
                Ok(running) => return *process = Some(running),
                Err(Failure::PortTaken) if start.elapsed() < TIMEOUT => {
                    sleep(Duration::from_millis(50))
                }
                Err(Failure::PortTaken) => panic!("another program took port {}", self.port),
                Err(Failure::Other(reason)) => panic!("{reason}"),
            }
        }
    }

    /// Freezes the server: connections are accepted, but nothing is replied.
    ///
    /// # Panics
    /// If the server does not run.
    #[track_caller]
    pub fn pause(&self) {
        self.process()
            .as_ref()
            .expect("only a running server can be paused")
            .pause();
    }

    /// Ends [`pause`](Self::pause). What was sent meanwhile is replied to now.
    ///
    /// # Panics
    /// If the server does not run.
    #[track_caller]
    pub fn resume(&self) {
        self.process()
            .as_ref()
            .expect("only a running server can be resumed")
            .resume();
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(setup: &Setup, program: &Path, folder: &Path, log: &Path) -> io::Result<Process> {
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let errors = log.try_clone()?;
    Process::spawn(program, |command| {
        command.arg(folder.join("redis.conf")).current_dir(folder);
        if setup.sentinel {
            command.arg("--sentinel");
        }
        match &setup.clock {
            Some(clock) => clock.put_in(command),
            None => Clock::remove_from(command),
        }
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
    })
}

/// Whether the process itself replies on the port, is ready, and has its clock:
/// another server may have been faster to the port.
fn probe(setup: &Setup, port: u16, pid: u32) -> io::Result<bool> {
    let mut connection = setup.connect(port, Duration::from_secs(2))?;
    let info = connection.call(&["INFO", "server"])?;
    let own = format!("process_id:{pid}\r\n");
    let ready = matches!(info, Reply::Text(text) if text.contains(&own))
        && connection.call(&["PING"])? == Reply::Text("PONG".into());
    match setup
        .clock
        .as_ref()
        .filter(|clock| ready && clock.is_frozen())
    {
        None => Ok(ready),
        Some(clock) => {
            let shown = clock.micros();
            let parts = [shown / 1_000_000, shown % 1_000_000];
            let parts = parts.map(|part| Reply::Text(part.to_string()));
            Ok(connection.call(&["TIME"])? == Reply::List(parts.into()))
        }
    }
}

fn is_closed(err: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        err.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
    )
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
