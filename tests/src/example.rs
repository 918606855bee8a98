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
    time::Duration,
};

use tokio::{net::TcpSocket, runtime::Builder};

/// How long an example may take to start, and to respond.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// Starts an example on a free port, and waits until it listens.
    pub fn start(name: &str, variables: &[(&str, &str)]) -> Self {
        let program = program(name);
        let mut child = Command::new(&program)
            .env_remove("REDIS_URL")
            .env("PORT", "0")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{}: {error}; `cargo build --examples` makes it",
                    program.display()
                )
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

    /// Sends it a signal, such as `HUP`.
    #[allow(dead_code, reason = "the tests of the other examples send none")]
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status();
        assert!(sent.expect("a shell").success(), "{kill}");
    }

    /// What it has printed, at least to the line that has `text` in it.
    pub fn output_until(&self, text: &str) -> String {
        let mut output = self.output.lock().expect("the output");
        while !output.contains(text) {
            let line = self
                .lines
                .lock()
                .expect("no panic")
                .recv_timeout(TEST_TIMEOUT);
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
        let length = form.len().to_string();
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("content-length", &length),
        ];
        self.ask("POST", path, &headers, form)
    }

    /// Posts a form from another address of this machine.
    pub fn post_from(&self, from: [u8; 4], path: &str, form: &str) -> HttpResponse {
        let connect = async {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind((from, 0).into()).expect("a local address");
            let stream = socket.connect(self.address).await.expect("a server");
            stream.into_std().expect("a stream")
        };
        let runtime = Builder::new_current_thread().enable_io().build();
        let stream = runtime.expect("a runtime").block_on(connect);
        stream.set_nonblocking(false).expect("a stream");
        let length = form.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\
             content-type: application/x-www-form-urlencoded\r\n\r\n{form}"
        );
        HttpResponse::to(stream, request.as_bytes())
    }

    pub fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> HttpResponse {
        Address(self.address).ask(method, path, headers, body)
    }

    /// Another address that it listens on.
    pub fn at(&self, address: &str) -> Address {
        Address(address.parse().expect("an address and a port"))
    }
}

/// An address that an example listens on.
pub struct Address(SocketAddr);

impl Address {
    /// Sends a GET over a connection of its own.
    pub fn get(&self, path: &str) -> HttpResponse {
        self.ask("GET", path, &[], "")
    }

    /// Sends an empty POST over a connection of its own.
    pub fn post(&self, path: &str) -> HttpResponse {
        self.ask("POST", path, &[("content-length", "0")], "")
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpResponse {
        let stream = TcpStream::connect(self.0).expect("a connection");
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += "\r\n";
        request += body;
        HttpResponse::to(stream, request.as_bytes())
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

/// Cargo builds examples before tests run, into a folder beside that of the tests.
pub fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("this test's own path");
    let profile = test.ancestors().nth(2).expect("a target folder");
    let file = format!("{name}{}", env::consts::EXE_SUFFIX);
    profile.join("examples").join(file)
}
