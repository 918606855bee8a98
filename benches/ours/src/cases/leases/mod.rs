//! Leases of hot keys, against the same policies without leases.

use std::sync::Arc;

use testkit::Server;
use tollgate::{FixedWindow, Lease, Policy, Quota};

use super::{busy, keys, waiting};
use crate::{
    contenders::tollgate::{TollgateLimiter, on_redis},
    keys::{Callers, Rule},
    load::{Load, run_load},
    outcome::{Outcome, Row, Target, Unit, grouped},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

mod fleet;
mod held;
pub mod over;

pub(super) use fleet::cpu_of_redis as fleet;
pub use fleet::{ARGUMENT as FLEET_ARGUMENT, process as fleet_process};
pub(super) use held::mixed_costs as held;

/// The most units of a lease.
const MAX_UNITS: u64 = 8_192;

/// The contenders of a comparison.
const NAMES: [&str; 2] = ["with leases", "without leases"];

/// One hot key, under a window that is never used up, and under GCRA.
pub(super) async fn hot(plan: Plan) -> Vec<Outcome> {
    let gcra = |name| Policy::new(name, Quota::requests(1_000_000).per_second());
    let mut outcomes = Vec::new();
    for tasks in [64, 512] {
        let under = format!("{tasks} tasks, one hot key, 10^12 per hour");
        outcomes.push(hot_key(&plan, tasks, under, ample_window, Expect::Admitted).await);
    }
    for tasks in [64, 512] {
        let under = format!("{tasks} tasks, one hot key, GCRA, 1,000,000 per second");
        outcomes.push(hot_key(&plan, tasks, under, gcra, Expect::Either).await);
    }
    outcomes
}

/// A fixed window that no run uses up.
fn ample_window(name: &'static str) -> Policy {
    Policy::new(name, Quota::requests(1_000_000_000_000).per_hour()).strategy(FixedWindow)
}

async fn hot_key(
    plan: &Plan,
    tasks: usize,
    title: String,
    policy: impl Fn(&'static str) -> Policy,
    expect: Expect,
) -> Outcome {
    let server = Server::start();
    let [leased, single] = contenders(&server, policy, || Callers::kept(1)).map(Arc::new);
    let load = mixed(plan, tasks);
    let entrants = vec![
        Entrant::new(NAMES[0], leased.clone()),
        Entrant::new(NAMES[1], single.clone()),
    ];
    let turns = run_comparison(plan, load, expect, entrants).await;
    // What is admitted of less is up to the quota.
    let is_ample = expect == Expect::Admitted;
    let target = |target| if is_ample { target } else { Target::None };
    let figure = turns.figure(0);
    let rate = Row::number(
        "decisions/s",
        figure.rate,
        Unit::Count,
        target(Target::AtLeast(5e6)),
    );
    let p99 = figure.p99.as_nanos() as f64;
    let p99 = Row::number(
        "p99",
        p99,
        Unit::Nanoseconds,
        target(if tasks == 64 {
            Target::AtMost(5_000.0)
        } else {
            Target::None
        }),
    );
    let mut calls = Row::number(
        "calls of Redis per decision",
        calls_per_decision(&server, leased, load).await,
        Unit::Fraction,
        target(Target::AtMost(0.001)),
    );
    let others = calls_per_decision(&server, single, load).await;
    calls.theirs = format!("{} {others:.5}", NAMES[1]);
    Outcome::of("leases", title, &turns)
        .compare(&turns, Measure::Rate, 1, Target::None)
        .row(rate)
        .row(p99)
        .row(calls)
}

/// The calls of the script that Redis receives under load.
async fn calls_per_decision(server: &Server, limiter: Arc<TollgateLimiter>, load: Load) -> f64 {
    server.reset_stats();
    let decisions = run_load(limiter, load).await.decisions;
    server.calls("evalsha") as f64 / decisions as f64
}

/// Many keys, of which some have most of the requests.
pub(super) async fn zipf(plan: Plan) -> Vec<Outcome> {
    let server = Server::start();
    let n = plan.keys.min(1_000);
    let [leased, single] = contenders(&server, ample_window, || Callers::zipf(n));
    let entrants = vec![
        Entrant::new(NAMES[0], leased),
        Entrant::new(NAMES[1], single),
    ];
    let load = mixed(&plan, 512);
    let turns = run_comparison(&plan, load, Expect::Admitted, entrants).await;
    let title = format!("512 tasks, {} keys by Zipf's law", grouped(n as f64));
    let outcome =
        Outcome::of("zipf", title, &turns).compare(&turns, Measure::Rate, 1, Target::AtLeast(2.0));
    vec![outcome]
}

/// How many rounds are made of one, to compare contenders that differ little.
const SHORTER: u32 = 4;

/// Many keys, none of which is requested often enough for a lease.
pub(super) async fn rare(plan: Plan) -> Vec<Outcome> {
    let server = Server::start();
    let n = plan.keys;
    let policy = |name| Policy::new(name, Rule::ample(n).quota());
    let [leased, single] = contenders(&server, policy, || Callers::kept(n));
    let entrants = vec![
        Entrant::new(NAMES[0], leased),
        Entrant::new(NAMES[1], single),
    ];
    let plan = Plan {
        rounds: plan.rounds * SHORTER as usize,
        time: plan.time / SHORTER,
        ..plan
    };
    let load = waiting(&plan, 512);
    let turns = run_comparison(&plan, load, Expect::Admitted, entrants).await;
    let title = format!("512 tasks, {}, none of them hot", keys(n));
    let outcome =
        Outcome::of("rare", title, &turns).compare(&turns, Measure::Rate, 1, Target::AtLeast(0.95));
    vec![outcome]
}

/// So many tasks of which some wait. They let others run more often than tokio makes them, which would count as a wait.
fn mixed(plan: &Plan, tasks: usize) -> Load {
    Load {
        stint: 16,
        ..busy(plan, tasks)
    }
}

/// Two limiters on one server: under the policy with leases, and without.
fn contenders(
    server: &Server,
    policy: impl Fn(&'static str) -> Policy,
    callers: impl Fn() -> Callers,
) -> [TollgateLimiter; 2] {
    let url = server.url();
    let leased = policy("leased").lease(Lease::max_units(MAX_UNITS));
    // The names of keys are as long.
    let single = policy("single");
    [
        TollgateLimiter::under(on_redis(&url), leased, callers())
            .cached()
            .leased(),
        TollgateLimiter::under(on_redis(&url), single, callers()).cached(),
    ]
}
