//! Changes by operators hold in two processes on one Redis, once the cached rejections of both are stale: by the admin API of one of
//! them, and by the program in both of its ways.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write, read_to_string, stdin},
    net::TcpStream,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::Instant,
};

use crate::{
    changes::succeeded,
    program::{Run, TEST_TIMEOUT, run},
    served::{API_KEY, STALENESS, Service, TOKEN, World, admin_command},
};

/// The port of the Redis that a process of its own counts on.
const PORT: &str = "TOLLGATE_TEST_PORT";

/// What a process prints before its URL.
const SERVES: &str = "serves ";

/// Three requests a day for each API key.
fn document(port: u16) -> String {
    format!(
        "[store]\nurl = 'redis://127.0.0.1:{port}'\ntimeout = '300s'\n\
         [policies.api]\nquota = '3/day'\nkey = 'header:x-api-key'\n\
         [policies.blocked]\nblock_list = true\nkey = 'header:x-api-key'\n"
    )
}

/// Runs as a process of its own, below, until its input ends. It does nothing in a plain run of the tests.
#[test]
fn service_process() {
    let Ok(port) = env::var(PORT) else { return };
    let port = port.parse().expect("a port");
    let service = Service::start(&document(port), port);
    println!("{SERVES}{}", service.url);
    read_to_string(stdin()).expect("the end of the input");
}

/// A service in a process of its own, which ends with this test.
struct ServiceProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Of its admin API.
    url: String,
}

impl ServiceProcess {
    fn start(world: &World) -> Self {
        let mut child = Command::new(env::current_exe().expect("this test's program"))
            .args(["--exact", "processes::service_process", "--nocapture"])
            .env(PORT, world.redis.port().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut lines = BufReader::new(stdout.expect("its output")).lines();
        let url = lines.find_map(|line| {
            let line = line.expect("text");
            Some(line.split_once(SERVES)?.1.to_owned())
        });
        // The rest is what the test harness prints.
        thread::spawn(move || lines.count());
        Self {
            child,
            stdin,
            url: url.expect("a service"),
        }
    }

    /// Whether it serves a request with the API key, or rejects it.
    fn admits(&self) -> bool {
        let request = format!("GET / HTTP/1.1\r\nx-api-key: {API_KEY}\r\n");
        match self.status(&request) {
            200 => true,
            429 => false,
            status => panic!("status {status}"),
        }
    }

    /// Posts to the admin API.
    #[track_caller]
    fn post(&self, route: &str, body: &str) {
        let length = body.len();
        let status = self.status(&format!(
            "POST /admin{route} HTTP/1.1\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        assert_eq!(status, 200, "{route} {body}");
    }

    /// The status of the response to a request, whose head may lack its end.
    fn status(&self, request: &str) -> u16 {
        let address = self.url.trim_start_matches("http://");
        let address = address.split('/').next().expect("an address");
        let mut stream = TcpStream::connect(address).expect("a connection");
        let timeout = stream.set_read_timeout(Some(TEST_TIMEOUT));
        timeout.expect("a timeout");
        let (line, rest) = request.split_once("\r\n").expect("a line");
        let is_whole = rest.contains("\r\n\r\n");
        let end = if is_whole { "" } else { "\r\n" };
        let request = format!("{line}\r\nhost: a\r\nconnection: close\r\n{rest}{end}");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let status = response.split(' ').nth(1).map(str::parse);
        status.expect("a status").expect("a number")
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It fails only if the process has ended.
        let _ = self.child.wait();
    }
}

/// Two processes, whose first requests after a change are those that the change is about.
struct Processes<'a> {
    world: &'a World,
    both: [ServiceProcess; 2],
}

impl<'a> Processes<'a> {
    fn start(world: &'a World) -> Self {
        let both = [(); 2].map(|()| ServiceProcess::start(world));
        Self { world, both }
    }

    /// Sends requests until each process rejects the key without a call of the store.
    fn until_both_cache_a_rejection(&self) {
        for process in &self.both {
            let start = Instant::now();
            loop {
                let calls = self.world.redis.calls("evalsha");
                if !process.admits() && self.world.redis.calls("evalsha") == calls {
                    break;
                }
                assert!(start.elapsed() < TEST_TIMEOUT, "no rejection is cached");
            }
        }
    }

    /// Whether each process admits its next request.
    #[track_caller]
    fn assert_next_admitted(&self, admitted: bool, after: &str) {
        for (process, number) in self.both.iter().zip(1..) {
            assert_eq!(process.admits(), admitted, "process {number}, {after}");
        }
    }

    /// Makes each change, and asserts that the first request in each process follows: of a key that is admitted again once the cached
    /// rejections are as old as they can be, and of one that is blocked at once.
    #[track_caller]
    fn assert_follow(&self, change: impl Fn(&Change, &ServiceProcess)) {
        let kinds = [Change::Reset, Change::Credit, Change::Unblock];
        for (index, kind) in kinds.iter().enumerate() {
            // Each change is made by the process that the one before was not made by.
            let by = &self.both[index % 2];
            if let Change::Unblock = kind {
                change(&Change::Reset, by);
                change(&Change::Block, by);
                self.assert_next_admitted(false, "blocked");
            } else {
                self.until_both_cache_a_rejection();
            }
            change(kind, by);
            thread::sleep(STALENESS);
            self.assert_next_admitted(true, &format!("{kind:?}"));
        }
    }
}

/// What operators do.
#[derive(Debug)]
enum Change {
    Reset,
    /// Of two units, one for each process.
    Credit,
    Block,
    Unblock,
}

impl Change {
    /// The arguments of the program.
    fn arguments(&self) -> &'static [&'static str] {
        match self {
            Self::Reset => &["reset", API_KEY, "-y"],
            Self::Credit => &["credit", "api", API_KEY, "--units", "2", "-y"],
            Self::Block => &["block", API_KEY, "--for", "1h", "-y"],
            Self::Unblock => &["unblock", API_KEY, "-y"],
        }
    }

    /// Asserts that the program has made it, and shows what is left.
    #[track_caller]
    fn assert_shown(&self, run: &Run) {
        let shown = match self {
            Self::Reset => "  0            3            3\n",
            Self::Credit => "credited 2 units\n",
            Self::Block | Self::Unblock => "blocked  hash:",
        };
        assert!(succeeded(run).contains(shown), "{}", run.stdout);
    }

    /// The route of the admin API, and the body.
    fn request(&self) -> (&'static str, String) {
        let (route, rest) = match self {
            Self::Reset => ("/reset", ""),
            Self::Credit => ("/credit", r#","policy":"api","units":2"#),
            Self::Block => ("/block", r#","seconds":3600"#),
            Self::Unblock => ("/unblock", ""),
        };
        (route, format!(r#"{{"key":"{API_KEY}"{rest}}}"#))
    }
}

#[test]
fn changes_by_the_admin_api_of_one_process_hold_in_both_once_cached_rejections_are_stale() {
    let world = World::with(document);
    Processes::start(&world).assert_follow(|change, by| {
        let (route, body) = change.request();
        by.post(route, &body);
    });
}

#[test]
fn changes_by_the_program_on_the_store_hold_in_both_once_cached_rejections_are_stale() {
    let world = World::with(document);
    Processes::start(&world).assert_follow(|change, _| {
        change.assert_shown(&world.direct(change.arguments()));
    });
}

#[test]
fn changes_by_the_program_at_one_process_hold_in_both_once_cached_rejections_are_stale() {
    let world = World::with(document);
    Processes::start(&world).assert_follow(|change, by| {
        change.assert_shown(&run(admin_command(&by.url, change.arguments())));
    });
}
