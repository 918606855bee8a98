//! How a server is to be started.

use std::env;
use std::path::Path;

use super::server::{Failure, Setup};
use crate::{Clock, Server, folder, free_port, process, wait};

/// Options of a server that is about to start, from [`Server::builder`].
#[derive(Debug)]
pub struct Builder {
    setup: Setup,
    config: Vec<(String, String)>,
    unix_socket: bool,
}

/// No test keeps data on disk or waits for replication's batching delay. A replica
/// would leave the file it was filled from, and load it after a restart.
const DEFAULTS: [(&str, &str); 7] = [
    ("save", ""),
    ("appendonly", "no"),
    ("daemonize", "no"),
    ("bind", "127.0.0.1"),
    ("protected-mode", "no"),
    ("repl-diskless-sync-delay", "0"),
    ("rdb-del-sync-files", "yes"),
];

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            setup: Setup::new(&program()),
            config: DEFAULTS
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
            unix_socket: false,
        }
    }

    /// A sentinel supports few of the options of other servers.
    pub(crate) fn sentinel() -> Self {
        let mut builder = Self::new();
        builder
            .config
            .retain(|(name, _)| ["daemonize", "bind", "protected-mode"].contains(&name.as_str()));
        builder.setup.sentinel = true;
        builder
    }

    /// A line of the configuration file, such as `maxmemory` and `5mb`. Later
    /// lines win over earlier ones and over the defaults.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.config.push((name.into(), value.into()));
        self
    }

    /// The wall clock that the server follows.
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.setup.clock = Some(clock.clone());
        // To both sides, a step of the clock looks like a link that timed out.
        self.arg("repl-timeout", "2147483647")
    }

    /// The password of the default user.
    pub fn password(mut self, password: &str) -> Self {
        self.setup.password = Some(password.into());
        self.arg("requirepass", &quoted(password))
    }

    /// Makes [`Server::url`] name a Unix socket. The port works as well.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Follows another server; [`start`](Self::start) waits for the first copy.
    pub fn replica_of(mut self, primary: &Server) -> Self {
        self.setup.replica = true;
        if let Some(password) = &primary.setup.password {
            self = self.arg("masterauth", &quoted(password));
        }
        self.arg("replicaof", &format!("127.0.0.1 {}", primary.port()))
    }

    /// Lets clients send `DEBUG`, which servers from 7.0 on reject by default.
    pub fn debug_command(self) -> Self {
        match process::version(&self.setup.program) {
            Some((..7, _)) => self,
            _ => self.arg("enable-debug-command", "local"),
        }
    }

    /// The program to run in place of [`program`]: a name on `PATH` or a path.
    pub fn program(mut self, program: &str) -> Self {
        self.setup.program = program.into();
        self
    }

    /// Starts the server and waits until it replies.
    ///
    /// # Panics
    /// If the program is missing, ends, or does not reply within [`TIMEOUT`](crate::TIMEOUT).
    #[track_caller]
    pub fn start(self) -> Server {
        for _ in 0..20 {
            let port = free_port();
            let folder = folder();
            let mut setup = self.setup.clone();
            setup.socket = self.unix_socket.then(|| folder.path().join("redis.sock"));
            self.configure(port, folder.path(), setup.socket.as_deref());
            match Server::launch(&setup, port, folder.path()) {
                Ok(process) => return started(Server::new(process, setup, port, folder)),
                Err(Failure::PortTaken) => {}
                Err(Failure::Other(reason)) => panic!("{reason}"),
            }
        }
        panic!("20 free ports in a row were taken by others before the server could listen");
    }

    fn configure(&self, port: u16, folder: &Path, socket: Option<&Path>) {
        let mut text = format!("port {port}\ndir {}\n", quoted(&folder.to_string_lossy()));
        if let Some(socket) = socket {
            text += &format!("unixsocket {}\n", quoted(&socket.to_string_lossy()));
        }
        for (name, value) in &self.config {
            let value = if value.is_empty() { "\"\"" } else { value };
            text += &format!("{name} {value}\n");
        }
        std::fs::write(folder.join("redis.conf"), text)
            .expect("the server's configuration can be written");
    }
}

/// The program that servers run: `redis-server`, or what the environment variable `TOLLGATE_TEST_SERVER` names, a name on
/// `PATH` or a path, such as that of Valkey or of another version of Redis.
pub fn program() -> String {
    let named = env::var("TOLLGATE_TEST_SERVER").ok();
    let named = named.filter(|named| !named.is_empty());
    named.unwrap_or_else(|| "redis-server".to_owned())
}

#[track_caller]
fn started(server: Server) -> Server {
    if server.setup.replica {
        wait::until("a replica gets its first copy", || {
            (server.info("replication", "master_link_status")? == "up").then_some(())
        });
    }
    server
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
