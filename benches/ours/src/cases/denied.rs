//! A key that is known to be denied: Redis should hear nothing of it.

use testkit::Server;

use super::busy;
use crate::{
    bout::{Entrant, Expect, Measure, bout},
    drive::{Contender, Dice},
    house::{House, in_process, on_redis},
    keys::{Callers, Rule},
    outcome::{Outcome, Row, Target, Unit},
    plan::Plan,
};

pub(super) async fn known(plan: Plan) -> Vec<Outcome> {
    let server = Server::start();
    let ours = House::one(on_redis(&server.url()), Rule::scarce(), Callers::kept(1)).cached();
    let memory = House::one(in_process(), Rule::scarce(), Callers::kept(1));
    // The one request that is admitted, and the one that makes the denial known.
    for house in [&ours, &memory] {
        let mut dice = Dice::new(0);
        assert!(house.decide(&mut dice).await);
        assert!(!house.decide(&mut dice).await);
    }
    server.reset_stats();
    let entrants = vec![
        Entrant::new("on Redis, denied", ours),
        Entrant::new("in process, denied", memory),
    ];
    let turns = bout(&plan, busy(&plan, 64), Expect::Refused, entrants).await;
    let heard = commands(&server);
    let title = "64 tasks, a key known to be denied";
    let outcome = Outcome::of("denied", title, &turns)
        .compare(&turns, Measure::Rate, 1, Target::AtLeast(0.5))
        .row(Row::number(
            "commands Redis saw",
            heard as f64,
            Unit::Count,
            Target::Exactly(0.0),
        ));
    vec![outcome]
}

/// Commands of clients and in scripts, without those of the benchmark itself.
fn commands(server: &Server) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let commands = stats.lines().filter_map(|line| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = stats.strip_prefix("calls=")?.split(',').next()?;
        (!["info", "config|resetstat"].contains(&name)).then(|| calls.parse::<u64>().ok())?
    });
    commands.sum()
}
