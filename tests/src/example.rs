//! An example as a process of its own.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        mpsc::{self, Receiver},
    },
    thread,
};

use testkit::{Clock, Server, Timers};
use tokio::{net::TcpSocket, runtime::Builder};

use crate::{until::TEST_TIMEOUT, world::START};

/// Where examples run: on a clock that stands still until it is set. No unit comes back by itself, and no call of the store
/// times out, however slow the machine is.
pub struct Stage {
    pub clock: Clock,
    /// The server that they count on, unless they count in process. It is on the same clock.
    server: Option<Server>,
}

impl Stage {
    pub fn in_process() -> Self {
        let clock = Clock::at(START);
        Self {
            clock,
            server: None,
        }
    }

    pub fn on_redis() -> Self {
        let mut stage = Self::in_process();
        stage.server = Some(Server::builder().clock(&stage.clock).start());
        stage
    }

    pub fn both() -> [Self; 2] {
        [Self::in_process(), Self::on_redis()]
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("a stage on Redis")
    }

    /// Starts an example whose timers expire only once the clock was set.
    pub fn start(&self, name: &str, variables: &[(&str, &str)]) -> Example {
        self.start_with(Timers::Stopped, name, variables)
    }

    pub fn start_with(&self, timers: Timers, name: &str, variables: &[(&str, &str)]) -> Example {
        Example::of(self.command(timers, name, variables))
    }

    /// Runs an example that ends by itself; returns what it has printed.
    pub fn run(&self, name: &str, variables: &[(&str, &str)]) -> String {
        let output = self.command(Timers::Stopped, name, variables).output();
        let output = output.expect("it runs");
        let [text, errors] = [output.stdout, output.stderr];
        let errors = String::from_utf8_lossy(&errors);
        assert!(output.status.success(), "{}: {errors}", output.status);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn command(&self, timers: Timers, name: &str, variables: &[(&str, &str)]) -> Command {
        let mut command = command(name);
        command.envs(self.clock.variables(timers));
        if let Some(server) = &self.server {
            command.env("REDIS_URL", server.url());
        }
        command.envs(variables.iter().copied());
        command
    }
}

/// A running example, killed on drop.
pub struct Example {
    child: Child,
    lines: Mutex<Receiver<String>>,
    output: Mutex<String>,
    address: SocketAddr,
}

/// A response over HTTP/1.1.
#[derive(Debug, Default)]
pub struct HttpResponse {
    pub status: u16,
    pub body: String,
    head: String,
}

impl Example {
    /// Starts an example in real time, on a free port, and waits until it listens.
    pub fn start(name: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = command(name);
        command.envs(variables.iter().copied());
        Self::of(command)
    }

    /// Starts a program that prints where it listens, as examples do, and waits until it does.
    pub fn of(mut command: Command) -> Self {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap_or_else(|error| {
            panic!("{command:?}: {error}; `cargo build --workspace --exclude tollgate-fuzz --all-features --examples` makes examples")
        });
        let stdout = child.stdout.take().expect("its output is piped");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The receiver is gone once the test is over.
                let _ = sender.send(line);
            }
        });
        let mut example = Self {
            child,
            lines: Mutex::new(lines),
            output: Mutex::default(),
            address: ([127, 0, 0, 1], 0).into(),
        };
        let output = example.output_until("Listening on http://");
        let (_, address) = output.split_once("http://").expect("an address");
        let end = address.find(|c: char| !c.is_ascii_digit() && !".:".contains(c));
        let address = address[..end.unwrap_or(address.len())].trim_end_matches('.');
        example.address = address.parse().expect("an address and a port");
        example
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Wakes the program, which looks at the clock only when something happens.
    pub fn wake(&self) {
        drop(TcpStream::connect(self.address));
    }

    /// Sends it a signal, such as `HUP`.
    pub fn signal(&self, name: &str) {
        testkit::signal(self.child.id(), name);
    }

    /// What it has printed, at least to the line that has `text` in it.
    pub fn output_until(&self, text: &str) -> String {
        let mut output = self.output.lock().expect("the output");
        while !output.contains(text) {
            let lines = self.lines.lock().expect("no panic");
            let line = lines.recv_timeout(TEST_TIMEOUT);
            let line = line.unwrap_or_else(|error| panic!("no {text:?} in {output:?}: {error}"));
            *output += &line;
            output.push('\n');
        }
        output.clone()
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        let mut output = self.output.lock().expect("the output");
        for line in self.lines.lock().expect("no panic").try_iter() {
            *output += &line;
            output.push('\n');
        }
        output.clone()
    }

    /// Sends a GET over a connection of its own.
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> HttpResponse {
        self.ask("GET", path, headers, "")
    }

    /// Posts a form over a connection of its own.
    pub fn post(&self, path: &str, form: &str) -> HttpResponse {
        let form_type = ("content-type", "application/x-www-form-urlencoded");
        self.ask("POST", path, &[form_type], form)
    }

    pub fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> HttpResponse {
        ask(self.address, method, path, headers, body)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request over a connection of its own.
pub fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> HttpResponse {
    let length = body.len();
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n"
    );
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("\r\n{body}");
    let stream = TcpStream::connect(address).expect("a connection");
    HttpResponse::to(stream, request.as_bytes())
}

/// Connects from another address of this machine.
pub fn connect_from(from: impl Into<std::net::IpAddr>, to: SocketAddr) -> TcpStream {
    let connect = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from.into(), 0).into())?;
        socket.connect(to).await?.into_std()
    };
    let runtime = Builder::new_current_thread().enable_io().build();
    let stream = runtime.expect("a runtime").block_on(connect);
    let stream = stream.expect("a connection");
    stream.set_nonblocking(false).expect("a stream that waits");
    stream
}

impl HttpResponse {
    /// The response to a request that is the only one on its connection.
    pub fn to(mut stream: TcpStream, request: &[u8]) -> Self {
        stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        stream.write_all(request).expect("sent");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("a response");
        // A body may be compressed.
        let response = String::from_utf8_lossy(&response);
        let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Self {
            status: status.expect("a status"),
            body: body.into(),
            head: head.into(),
        }
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields(name).next()
    }

    /// All lines of a field.
    pub fn fields(&self, name: &str) -> impl Iterator<Item = &str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        let fields = fields.filter(move |(field, _)| field.eq_ignore_ascii_case(name));
        fields.map(|(_, value)| value)
    }
}

/// Of an example that counts in process, on a free port.
fn command(name: &str) -> Command {
    let mut command = Command::new(program(name));
    command.env_remove("REDIS_URL").env("PORT", "0");
    command
}

/// Cargo builds examples before tests run, into a folder beside that of the tests.
pub fn program(name: &str) -> PathBuf {
    target().join("examples").join(with_suffix(name))
}

/// The command line, which `cargo build --package tollgate-cli --bins` makes.
pub fn command_line() -> PathBuf {
    target().join(with_suffix("tollgate"))
}

fn target() -> PathBuf {
    let test = env::current_exe().expect("this test's own path");
    test.ancestors().nth(2).expect("a target folder").to_owned()
}

fn with_suffix(name: &str) -> String {
    format!("{name}{}", env::consts::EXE_SUFFIX)
}
