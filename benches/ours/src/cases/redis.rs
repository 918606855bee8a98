//! One policy on Redis, against one script call for each request.

use testkit::Server;

use super::{keys, waiting};
use crate::{
    contenders::redis::{Mux, Pooled},
    contenders::tollgate::{TollgateLimiter, on_redis},
    keys::{Callers, Rule},
    outcome::{Outcome, Target, grouped},
    plan::Plan,
    runner::{Comparison, Entrant, Expect, Measure, run_comparison},
};

/// Connections of the pool: more make it no faster.
const POOL: usize = 64;

/// Indices of the baselines in a comparison.
const MUX: usize = 1;
const POOLED: usize = 2;

pub(super) async fn cold(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let turns = turns(&plan, 512, n, Rule::ample(n)).await;
    let outcome = Outcome::of("cold", format!("512 tasks, {}", keys(n)), &turns)
        .compare(&turns, Measure::Rate, MUX, Target::AtLeast(2.8))
        .compare(&turns, Measure::Rate, POOLED, Target::AtLeast(8.0));
    vec![outcome]
}

pub(super) async fn hot(plan: Plan) -> Vec<Outcome> {
    let turns = turns(&plan, 512, 1, Rule::ample(1)).await;
    let outcome = Outcome::of("hot", "512 tasks, one hot key", &turns)
        .compare(&turns, Measure::Rate, MUX, Target::AtLeast(7.0))
        .compare(&turns, Measure::Rate, POOLED, Target::AtLeast(25.0));
    vec![outcome]
}

/// A quota of which one charge in 23 moves the arrival time across a minute.
pub(super) async fn month(plan: Plan) -> Vec<Outcome> {
    monthly(plan, "month", 1_000_000, 2.4).await
}

/// A quota of which each charge does.
pub(super) async fn slow(plan: Plan) -> Vec<Outcome> {
    monthly(plan, "slow", 1_000, 1.8).await
}

async fn monthly(plan: Plan, case: &'static str, requests: u64, target: f64) -> Vec<Outcome> {
    let n = plan.keys;
    let turns = turns(&plan, 512, n, Rule::monthly(requests)).await;
    let requests = grouped(requests as f64);
    let title = format!("512 tasks, {}, {requests} per 30 days", keys(n));
    let outcome = Outcome::of(case, title, &turns)
        .compare(&turns, Measure::Rate, MUX, Target::AtLeast(target))
        .compare(&turns, Measure::Rate, POOLED, Target::None);
    vec![outcome]
}

pub(super) async fn some(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let turns = turns(&plan, 64, n, Rule::ample(n)).await;
    let outcome = Outcome::of("some", format!("64 tasks, {}", keys(n)), &turns)
        .compare(&turns, Measure::Rate, MUX, Target::AtLeast(2.2))
        .compare(&turns, Measure::P99, MUX, Target::AtMost(1.0))
        .compare(&turns, Measure::Rate, POOLED, Target::None);
    vec![outcome]
}

pub(super) async fn single(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let turns = turns(&plan, 1, n, Rule::ample(n)).await;
    let outcome = Outcome::of("single", format!("1 task, {}", keys(n)), &turns)
        .compare(&turns, Measure::P50, POOLED, Target::AtMost(0.8))
        .compare(&turns, Measure::P50, MUX, Target::AtMost(1.4));
    vec![outcome]
}

/// Each contender on a current-thread runtime of its own.
pub(super) async fn lone(plan: Plan) -> Vec<Outcome> {
    let (n, server) = (plan.keys, Server::start());
    let (url, rule) = (server.url(), Rule::ample(n));
    let ours = TollgateLimiter::one(on_redis(&url), rule, Callers::kept(n));
    let entrants = vec![
        Entrant::on_one_thread("tollgate", ours),
        Entrant::on_one_thread("pool", Pooled::open(&url, POOL, rule, n)),
    ];
    let turns = run_comparison(&plan, waiting(&plan, 1), Expect::Admitted, entrants).await;
    let title = format!("1 task on a current-thread runtime, {}", keys(n));
    let outcome = Outcome::of("lone", title, &turns);
    vec![outcome.compare(&turns, Measure::P50, 1, Target::None)]
}

/// All three, on one server.
async fn turns(plan: &Plan, tasks: usize, keys: usize, rule: Rule) -> Comparison {
    let server = Server::start();
    let url = server.url();
    let ours = TollgateLimiter::one(on_redis(&url), rule, Callers::kept(keys));
    let entrants = vec![
        Entrant::new("tollgate", ours),
        Entrant::new("mux", Mux::open(&url, rule, keys).await),
        Entrant::new("pool", Pooled::open(&url, POOL, rule, keys)),
    ];
    run_comparison(plan, waiting(plan, tasks), Expect::Admitted, entrants).await
}
