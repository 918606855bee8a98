//! The program, as its users start it.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use testkit::TempDir;

use crate::{
    client::{Client, cost, descriptor, limit_of},
    scene::{TEST_TIMEOUT, program, redis, until, without_settings},
};

/// A program that runs, with a folder of documents.
pub(crate) struct Program {
    child: Child,
    pub(crate) grpc: SocketAddr,
    folder: TempDir,
}

pub(crate) const RULES: &str = "
domain: test
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 5 }
";

impl Program {
    /// With a timeout of Redis that a busy machine does not reach.
    pub(crate) fn start(redis: &testkit::Server, flags: &[&str]) -> Self {
        let program = program();
        let flags = [&["--redis-timeout", "300000"], flags].concat();
        Self::start_as(program, RULES, redis, &flags)
    }

    /// `program` runs the program with the arguments that are added.
    pub(crate) fn start_as(
        program: Command,
        rules: &str,
        redis: &testkit::Server,
        flags: &[&str],
    ) -> Self {
        let folder = testkit::folder();
        write(folder.path(), rules);
        let log = fs::File::create(folder.path().join("log")).expect("a file");
        let mut child = without_settings(program)
            .arg("--config")
            .arg(folder.path())
            .args(["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(["--redis-url", &redis.url()])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program");
        let mut lines = BufReader::new(child.stdout.as_mut().expect("its output")).lines();
        let line = lines.next().expect("a line").expect("text");
        let grpc = line.strip_prefix("gRPC: ").expect("an address").parse();
        Self {
            child,
            grpc: grpc.expect("an address"),
            folder,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::to(&format!("http://{}", self.grpc))
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("its log")
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .expect("a shell")
                .success()
        );
    }

    async fn end(&mut self) -> ExitStatus {
        until("the program ends", || {
            self.child.try_wait().expect("its state")
        })
        .await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Replaces the document at once, so that it is never read in part.
fn write(folder: &Path, text: &str) {
    let new = folder.join("new");
    fs::write(&new, text).expect("a file");
    fs::rename(new, folder.join("rules.yaml")).expect("a file");
}

/// Waits until the limit of a user is this.
async fn until_limit(client: &Client, expected: u32) {
    let is_reached = async || {
        let response = client.ask([cost(descriptor([("user", "b")]), 0)]).await;
        limit_of(&response).requests_per_unit == expected
    };
    let reached = async {
        while !is_reached().await {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let reached = tokio::time::timeout(TEST_TIMEOUT, reached).await;
    reached.expect("the limit is reached");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_read_again_on_sighup_and_when_they_change_and_bad_ones_change_nothing() {
    let (_clock, redis) = redis();
    let by_signal = Program::start(&redis, &["--config-interval", "0"]);
    let by_change = Program::start(&redis, &["--config-interval", "0.01"]);
    let clients = [by_signal.client(), by_change.client()];
    for client in &clients {
        until_limit(client, 5).await;
        assert!(client.passes(cost(descriptor([("user", "a")]), 2)).await);
    }
    for (text, expected) in [
        ("requests_per_unit: 7", 7),
        ("requests_per_unit: x", 7),
        ("requests_per_unit: 9", 9),
    ] {
        let rules = RULES.replace("requests_per_unit: 5", text);
        for program in [&by_signal, &by_change] {
            write(program.folder.path(), &rules);
        }
        by_signal.signal("HUP");
        if text.ends_with('x') {
            for program in [&by_signal, &by_change] {
                let kept = "rules not reloaded, the previous ones stay in force";
                until("it is reported", || {
                    program.log().contains(kept).then_some(())
                })
                .await;
            }
        }
        for client in &clients {
            until_limit(client, expected).await;
        }
    }
    for client in &clients {
        assert_eq!(client.left(descriptor([("user", "a")])).await, 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_and_sigint_end_the_program_with_0() {
    let (_clock, redis) = redis();
    for signal in ["TERM", "INT"] {
        let mut program = Program::start(&redis, &[]);
        let client = program.client();
        assert!(client.passes(descriptor([("user", "a")])).await);
        program.signal(signal);
        assert_eq!(program.end().await.code(), Some(0), "{signal}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_with_mistakes_and_missing_arguments_end_it_with_2() {
    let run = |arguments: &[&str]| {
        let output = program().args(arguments).output();
        let output = output.expect("the program");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let folder = testkit::folder();
    write(folder.path(), "domain: test\ndescriptors: 5");
    let (code, text) = run(&["--config", &folder.path().display().to_string()]);
    assert_eq!(code, Some(2));
    assert!(text.contains("rules.yaml:2:14: expected a list"), "{text}");
    assert_eq!(run(&[]).0, Some(2));
    assert_eq!(run(&["--config", "x", "--tls-cert", "x"]).0, Some(2));
}

#[test]
fn the_example_is_valid() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ratelimit.yaml");
    let checked = program().args(["check", example]).output();
    let checked = checked.expect("the program");
    assert!(checked.status.success(), "{checked:?}");
}
