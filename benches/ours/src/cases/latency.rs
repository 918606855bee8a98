//! Callers on a server behind a link with latency, against one script call for each request over the same link.

use std::time::Duration;

use testkit::Server;

use super::{keys, waiting};
use crate::{
    contenders::redis::Mux,
    contenders::tollgate::{TollgateLimiter, on_redis},
    delayed_link::DelayedLink,
    keys::{Callers, Rule},
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

/// The round trip is twice this: that between two zones of a cloud.
const DELAY: Duration = Duration::from_micros(375);

pub(super) async fn callers(plan: Plan) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for tasks in [1, 2, 8, 64] {
        outcomes.push(of_tasks(&plan, tasks).await);
    }
    outcomes
}

async fn of_tasks(plan: &Plan, tasks: usize) -> Outcome {
    let (n, server) = (plan.keys, Server::start());
    let (url, rule) = (DelayedLink::to(server.addr(), DELAY).url(), Rule::ample(n));
    let ours = TollgateLimiter::one(on_redis(&url), rule, Callers::kept(n));
    let entrants = vec![
        Entrant::new("tollgate", ours),
        Entrant::new("mux", Mux::open(&url, rule, n).await),
    ];
    // A warm-up of one round: beside the round trip, what a new key costs is little.
    let plan = Plan {
        keys: 0,
        ..plan.clone()
    };
    let turns = run_comparison(&plan, waiting(&plan, tasks), Expect::Admitted, entrants).await;
    let tasks = match tasks {
        1 => "1 task".to_owned(),
        _ => format!("{tasks} tasks"),
    };
    let title = format!("{tasks}, {}, round trip of {:?}", keys(n), 2 * DELAY);
    Outcome::of("latency", title, &turns).compare(&turns, Measure::P50, 1, Target::AtMost(1.15))
}
