//! One policy on Redis, against one script call for each request.

use testkit::Server;

use super::{keys, waiting};
use crate::{
    bout::{Bout, Entrant, Expect, Measure, bout},
    house::{House, on_redis},
    keys::{Callers, Rule},
    outcome::{Outcome, Target},
    plan::Plan,
    redis::{Mux, Pooled},
};

/// Connections of the pool: more make it no faster.
const POOL: usize = 64;

/// Where the baselines stand in a bout.
const MUX: usize = 1;
const POOLED: usize = 2;

pub(super) async fn cold(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let turns = turns(&plan, 512, n).await;
    let outcome = Outcome::of("cold", format!("512 tasks, {}", keys(n)), &turns)
        .compare(&turns, Measure::Rate, MUX, Target::AtLeast(1.8))
        .compare(&turns, Measure::Rate, POOLED, Target::AtLeast(5.5));
    vec![outcome]
}

pub(super) async fn hot(plan: Plan) -> Vec<Outcome> {
    let turns = turns(&plan, 512, 1).await;
    let outcome = Outcome::of("hot", "512 tasks, one hot key", &turns)
        .compare(&turns, Measure::Rate, MUX, Target::AtLeast(10.0))
        .compare(&turns, Measure::Rate, POOLED, Target::AtLeast(30.0));
    vec![outcome]
}

pub(super) async fn some(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let turns = turns(&plan, 64, n).await;
    let outcome = Outcome::of("some", format!("64 tasks, {}", keys(n)), &turns)
        .compare(&turns, Measure::Rate, MUX, Target::AtLeast(1.5))
        .compare(&turns, Measure::P99, MUX, Target::AtMost(1.0))
        .compare(&turns, Measure::Rate, POOLED, Target::None);
    vec![outcome]
}

pub(super) async fn single(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let turns = turns(&plan, 1, n).await;
    let outcome = Outcome::of("single", format!("1 task, {}", keys(n)), &turns)
        .compare(&turns, Measure::P50, POOLED, Target::AtMost(0.65))
        .compare(&turns, Measure::P50, MUX, Target::AtMost(1.1));
    vec![outcome]
}

/// All three, on one server.
async fn turns(plan: &Plan, tasks: usize, keys: usize) -> Bout {
    let server = Server::start();
    let url = server.url();
    let rule = Rule::ample(keys);
    let ours = House::one(on_redis(&url), rule, Callers::kept(keys));
    let entrants = vec![
        Entrant::new("tollgate", ours),
        Entrant::new("mux", Mux::open(&url, rule, keys).await),
        Entrant::new("pool", Pooled::open(&url, POOL, rule, keys)),
    ];
    bout(plan, waiting(plan, tasks), Expect::Admitted, entrants).await
}
