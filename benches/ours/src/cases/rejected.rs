//! A key whose rejection is cached: hardly a call should reach Redis.

use std::{sync::Arc, time::Duration};

use testkit::Server;

use super::busy;
use crate::{
    contenders::tollgate::{TollgateLimiter, in_process, on_redis},
    keys::{Callers, Rule},
    load::{Contender, Rng, run_load},
    outcome::{Outcome, Row, Target, Unit},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

pub(super) async fn known(plan: Plan) -> Vec<Outcome> {
    let server = Server::start();
    let ours =
        TollgateLimiter::one(on_redis(&server.url()), Rule::scarce(), Callers::kept(1)).cached();
    let memory = TollgateLimiter::one(in_process(), Rule::scarce(), Callers::kept(1));
    // The one request that is admitted, and the one whose rejection is cached.
    for limiter in [&ours, &memory] {
        let mut rng = Rng::new(0);
        assert!(limiter.decide(&mut rng).await);
        assert!(!limiter.decide(&mut rng).await);
    }
    let ours = Arc::new(ours);
    let entrants = vec![
        Entrant::new("on Redis, rejecting", ours.clone()),
        Entrant::new("in process, rejecting", memory),
    ];
    let turns = run_comparison(&plan, busy(&plan, 64), Expect::Rejected, entrants).await;
    let commands_sent = commands_sent(&server, ours, &plan).await;
    let title = "64 tasks, one key whose rejection is cached";
    let outcome = Outcome::of("denied", title, &turns)
        .compare(&turns, Measure::Rate, 1, Target::AtLeast(0.5))
        .row(commands_row(&commands_sent, load_time(&plan)));
    vec![outcome]
}

/// How long the commands are counted.
fn load_time(plan: &Plan) -> Duration {
    plan.time * u32::try_from(plan.rounds).unwrap_or(1)
}

/// The commands that Redis receives while a key is rejected over and over, without the pauses of a comparison, in which a
/// cached rejection becomes too old.
async fn commands_sent(
    server: &Server,
    limiter: Arc<TollgateLimiter>,
    plan: &Plan,
) -> Vec<(String, u64)> {
    let mut load = busy(plan, 64);
    load.time = load_time(plan);
    limiter.decide(&mut Rng::new(0)).await;
    server.reset_stats();
    run_load(limiter, load).await;
    commands(server)
}

/// Calls of the script are compared with the target; other commands are listed beside them.
fn commands_row(commands: &[(String, u64)], time: Duration) -> Row {
    let calls = commands.iter().filter(|(name, _)| name == "evalsha");
    let calls: u64 = calls.map(|(_, calls)| calls).sum();
    let named = commands
        .iter()
        .map(|(name, calls)| format!("{name} {calls}"));
    // One, and one for what was requested before its reply.
    let target = Target::AtMost(2.0);
    let mut row = Row::number(
        "calls of the script per second",
        calls as f64 / time.as_secs_f64(),
        Unit::Count,
        target,
    );
    row.ours = match named.collect::<Vec<_>>().join(", ") {
        named if named.is_empty() => "no command at all".into(),
        named => format!("commands in all: {named}"),
    };
    row
}

/// Commands of clients and in scripts, by name, without those of the benchmark itself.
fn commands(server: &Server) -> Vec<(String, u64)> {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let command = |line: &str| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = stats.strip_prefix("calls=")?.split(',').next()?;
        Some((name.to_owned(), calls.parse().ok()?))
    };
    let mut commands: Vec<_> = stats.lines().filter_map(command).collect();
    commands.retain(|(name, _)| !["info", "config|resetstat"].contains(&name.as_str()));
    commands
}
