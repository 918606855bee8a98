//! In process: many keys, and one.

use tollgate::{Policy, RateLimitHeaders, RateLimitLayer};
use tollgate_bench::{
    contenders::governor::{Governor, bare_layer, header_layer},
    contenders::layers::{Bare, Layered},
    contenders::tollgate::{TollgateLimiter, in_process},
    keys::{Callers, Rule},
    load::Load,
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};
use tower::Layer;

pub(crate) async fn direct(plan: Plan) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for keys in [plan.keys, 1] {
        let rule = Rule::ample(keys);
        let ours = TollgateLimiter::one(in_process(), rule, Callers::kept(keys));
        let governor = Governor::new(rule, Callers::kept(keys));
        let entrants = vec![
            Entrant::new("tollgate", ours),
            Entrant::new("governor", governor),
        ];
        outcomes.push(turns(&plan, "memory", "called directly", keys, entrants).await);
    }
    outcomes
}

pub(crate) async fn layer(plan: Plan) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for keys in [plan.keys, 1] {
        let rule = Rule::ample(keys);
        let ours = |headers| {
            let layer = RateLimitLayer::builder().policy(Policy::new("peer", rule.quota()));
            let layer = layer.build().expect("a layer").headers(headers);
            Layered::new(layer.layer(Bare), keys)
        };
        let bare = bare_layer(rule).layer(Bare);
        let headers = header_layer(rule).layer(Bare);
        let entrants = vec![
            Entrant::new("tollgate", ours(RateLimitHeaders::none())),
            Entrant::new("tower_governor", Layered::new(bare, keys)),
            Entrant::new("tollgate, headers", ours(RateLimitHeaders::draft())),
            Entrant::new("tower_governor, headers", Layered::new(headers, keys)),
        ];
        outcomes.push(turns(&plan, "layer", "through the layer", keys, entrants).await);
    }
    outcomes
}

async fn turns(
    plan: &Plan,
    case: &'static str,
    how: &str,
    keys: usize,
    entrants: Vec<Entrant>,
) -> Outcome {
    let load = Load {
        tasks: 64,
        time: plan.time,
        stint: 256,
    };
    let contenders = entrants.len();
    let turns = run_comparison(plan, load, Expect::Admitted, entrants).await;
    let keys = match keys {
        1 => "one hot key".to_owned(),
        keys => format!("{keys} keys"),
    };
    let outcome = Outcome::of(case, format!("{how}, 64 tasks, {keys}"), &turns);
    // Ours stands before each of the others.
    (0..contenders).step_by(2).fold(outcome, |outcome, ours| {
        outcome.compare_two(&turns, Measure::Rate, [ours, ours + 1], Target::None)
    })
}
