//! Three policies at once, all or nothing, against one.

use testkit::Server;

use super::{keys, waiting};
use crate::{
    contenders::tollgate::{TollgateLimiter, on_redis},
    keys::{Callers, Rule},
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

pub(super) async fn three(plan: Plan) -> Vec<Outcome> {
    vec![
        many_keys(&plan, true, "a key of its own for each", 0.30).await,
        many_keys(&plan, false, "the same key for all", 0.45).await,
        hot(&plan).await,
    ]
}

async fn many_keys(plan: &Plan, apart: bool, by: &str, least: f64) -> Outcome {
    let title = format!("512 tasks, {}, three policies, {by}", keys(plan.keys));
    against_one(plan, plan.keys, apart, title, Target::AtLeast(least)).await
}

/// Where all requests are merged, what more policies cost lies hardly in Redis.
async fn hot(plan: &Plan) -> Outcome {
    let title = "512 tasks, one hot key, three policies".into();
    against_one(plan, 1, false, title, Target::None).await
}

async fn against_one(
    plan: &Plan,
    keys: usize,
    apart: bool,
    title: String,
    target: Target,
) -> Outcome {
    let server = Server::start();
    let on = || on_redis(&server.url());
    let rule = Rule::ample(keys);
    let mut three = TollgateLimiter::three(on(), rule, Callers::kept(keys));
    if apart {
        three = three.apart();
    }
    // A server of its own, or the two would count under the same policy.
    let other = Server::start();
    let one = TollgateLimiter::one(on_redis(&other.url()), rule, Callers::kept(keys));
    let entrants = vec![
        Entrant::new("three policies", three),
        Entrant::new("one policy", one),
    ];
    let turns = run_comparison(plan, waiting(plan, 512), Expect::Admitted, entrants).await;
    Outcome::of("policies", title, &turns).compare(&turns, Measure::Rate, 1, target)
}
