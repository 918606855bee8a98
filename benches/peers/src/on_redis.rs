//! On Redis: many keys, and one.

use testkit::Server;
use tollgate_bench::{
    contenders::redis::{Mux, Pooled},
    contenders::tollgate::{TollgateLimiter, on_redis},
    keys::{Callers, Rule},
    load::Load,
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

use crate::peers::{self, Turns};

pub(crate) async fn cold(plan: Plan) -> Vec<Outcome> {
    let title = format!("512 tasks, {} keys", plan.keys);
    vec![turns(&plan, "cold", title, plan.keys).await]
}

pub(crate) async fn hot(plan: Plan) -> Vec<Outcome> {
    vec![turns(&plan, "hot", "512 tasks, one hot key".into(), 1).await]
}

async fn turns(plan: &Plan, case: &'static str, title: String, keys: usize) -> Outcome {
    let server = Server::start();
    let url = server.url();
    let rule = Rule::ample(keys);
    let ours = TollgateLimiter::one(on_redis(&url), rule, Callers::kept(keys));
    let mut entrants = vec![
        Entrant::new("tollgate", ours),
        Entrant::new("mux", Mux::open(&url, rule, keys).await),
        Entrant::new("pool of 4", Pooled::open(&url, 4, rule, keys)),
        Entrant::new("pool of 64", Pooled::open(&url, 64, rule, keys)),
    ];
    let mut guest = Turns {
        url: &url,
        entrants: &mut entrants,
    };
    peers::all(&mut guest, rule, keys).await;
    let others = 1..entrants.len();
    let load = Load {
        tasks: 512,
        time: plan.time,
        stint: 1,
    };
    // Not all of them take a quota that a hot key doesn't use up.
    let expect = if keys == 1 {
        Expect::Either
    } else {
        Expect::Admitted
    };
    let turns = run_comparison(plan, load, expect, entrants).await;
    let outcome = Outcome::of(case, title, &turns);
    others.fold(outcome, |outcome, other| {
        outcome.compare(&turns, Measure::Rate, other, Target::None)
    })
}
