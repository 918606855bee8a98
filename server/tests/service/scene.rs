//! Rules, servers and Redis servers of the tests.

use std::{
    ops::Deref,
    process::Command,
    time::{Duration, Instant},
};

use clap::{CommandFactory, FromArgMatches, Parser};
use testkit::Clock;
use tollgate::{CalendarWindow, Policy};
use tollgate_server::{
    options::Options,
    rules::{CountedBy, Limit, Rule, Rules, Unit},
    serve::Server,
};

use crate::client::Client;

/// How long a test waits before it is taken for hung. No outcome depends on it: the machine may be busy.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// 400.1 seconds after a full hour, and 40.1 after a minute.
pub(crate) const START: u64 = 1_750_000_000_123_457;

/// A Redis server whose clock only moves when it is set: no window ends amid a test.
pub(crate) fn redis() -> (Clock, testkit::Server) {
    let clock = Clock::at(START);
    let server = testkit::Server::builder().clock(&clock).start();
    (clock, server)
}

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

/// The settings by these flags, on any free ports.
pub(crate) fn options(flags: &[&str]) -> Options {
    let ports = [
        "--grpc",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    let program = ["tollgate-server", "--config", "none"];
    let arguments = program.iter().chain(&ports).chain(flags);
    // By the flags alone, whatever is in the environment.
    let command = Arguments::command().mut_args(|argument| argument.env(None));
    let matches = command.get_matches_from(arguments);
    let arguments = Arguments::from_arg_matches(&matches).expect("flags");
    arguments.options
}

/// The program, which takes no setting from the environment of the tests.
pub(crate) fn program() -> Command {
    without_settings(Command::new(env!("CARGO_BIN_EXE_tollgate-server")))
}

pub(crate) fn without_settings(mut program: Command) -> Command {
    for argument in Arguments::command().get_arguments() {
        if let Some(variable) = argument.get_env() {
            program.env_remove(variable);
        }
    }
    program
}

/// A server with these rules and flags, and a timeout that a busy machine does not reach.
pub(crate) async fn server(redis: &testkit::Server, rules: &Rules, flags: &[&str]) -> Server {
    let (url, timeout) = (redis.url(), TEST_TIMEOUT.as_millis().to_string());
    let flags = ["--redis-url", &url, "--redis-timeout", &timeout]
        .into_iter()
        .chain(flags.iter().copied());
    let flags: Vec<&str> = flags.collect();
    Server::start(&options(&flags), rules)
        .await
        .expect("a server")
}

/// A client of a server of its own, on a Redis server of its own.
pub(crate) struct Served {
    client: Client,
    pub(crate) server: Server,
    pub(crate) redis: testkit::Server,
    _clock: Clock,
}

impl Deref for Served {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// A client of a server with these rules.
pub(crate) async fn served(rules: Rules) -> Served {
    served_with(&[], rules).await
}

/// A client of a server with these flags and rules.
pub(crate) async fn served_with(flags: &[&str], rules: Rules) -> Served {
    let (clock, redis) = redis();
    let server = server(&redis, &rules, flags).await;
    Served {
        client: Client::of(&server),
        server,
        redis,
        _clock: clock,
    }
}

/// Waits until `probe` returns a value.
pub(crate) async fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(
            start.elapsed() < TEST_TIMEOUT,
            "not within {TEST_TIMEOUT:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Rules of the domain `test`.
pub(crate) fn rules<const N: usize>(rules: [Rule; N]) -> Rules {
    Rules {
        domains: [("test".to_owned(), rules.to_vec())].into(),
    }
}

/// A rule without a limit.
pub(crate) fn rule(key: &str, value: &str) -> Rule {
    Rule {
        key: key.to_owned(),
        value: (!value.is_empty()).then(|| value.to_owned()),
        limits: Vec::new(),
        shadow_mode: false,
        quota_mode: false,
        detailed_metric: false,
        value_to_metric: false,
        share_threshold: false,
        metadata: None,
        descriptors: Vec::new(),
    }
}

/// The name of a rule's policy.
pub(crate) fn policy(key: &str, value: &str) -> String {
    format!("test/{key}={value}")
}

/// A rule as the reference server counts it: by itself, and also what it rejects.
pub(crate) fn limit(key: &str, value: &str, n: u64, unit: Unit) -> Rule {
    let policy = Policy::new(policy(key, value), unit.quota(n.max(1)))
        .strategy(CalendarWindow::from_epoch())
        .charge_rejected(true)
        .by_hand();
    counted(rule(key, value), n, unit, policy, true)
}

/// A rule that is charged together with others or not at all.
pub(crate) fn limit_together(key: &str, value: &str, n: u64, unit: Unit) -> Rule {
    let policy = Policy::new(policy(key, value), unit.quota(n))
        .strategy(CalendarWindow::from_epoch())
        .by_hand();
    counted(rule(key, value), n, unit, policy, false)
}

fn counted(rule: Rule, n: u64, unit: Unit, policy: Policy, independent: bool) -> Rule {
    let counted = CountedBy {
        requests_per_unit: n,
        unit: Some(unit),
        policy,
        independent,
    };
    limited(rule, Some(counted))
}

/// A rule under which requests pass uncounted.
pub(crate) fn unlimited(key: &str, value: &str) -> Rule {
    limited(rule(key, value), None)
}

fn limited(rule: Rule, counted: Option<CountedBy>) -> Rule {
    let limit = Limit {
        name: None,
        replaces: Vec::new(),
        counted,
    };
    Rule {
        limits: vec![limit],
        ..rule
    }
}

/// The rule, whose limit has a name, and replaces others.
pub(crate) fn named(mut rule: Rule, limit: &str, replaced: &[&str]) -> Rule {
    for one in &mut rule.limits {
        one.name = Some(limit.to_owned()).filter(|name| !name.is_empty());
        one.replaces = replaced.iter().map(|&name| name.to_owned()).collect();
    }
    rule
}

/// The rule, with others below.
pub(crate) fn with<const N: usize>(rule: Rule, below: [Rule; N]) -> Rule {
    Rule {
        descriptors: below.to_vec(),
        ..rule
    }
}

/// The rule in shadow mode.
pub(crate) fn shadow(rule: Rule) -> Rule {
    Rule {
        shadow_mode: true,
        ..rule
    }
}

/// The rule in quota mode.
pub(crate) fn quota(rule: Rule) -> Rule {
    Rule {
        quota_mode: true,
        ..rule
    }
}
