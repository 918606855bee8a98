//! In process, through the layer.

use tollgate::{Policy, RateLimitHeaders, RateLimitLayer, layer::RateLimit};
use tower::Layer;

use super::{busy, keys};
use crate::{
    contenders::governor::{bare_layer, header_layer},
    contenders::layers::{Bare, Layered},
    keys::Rule,
    outcome::{Outcome, Row, Target, Unit},
    plan::Plan,
    runner::{Comparison, Entrant, Expect, Measure, run_comparison},
};

/// What the lines say of headers: in equal work both have them, or neither has.
const OFF: &str = "headers off on both";
const ON: &str = "headers on both";

/// Indices of the contenders in a comparison.
const WITHOUT: [usize; 2] = [0, 1];
const WITH: [usize; 2] = [2, 3];

/// The same policy as the others': by the socket's peer, in process.
fn ours(rule: Rule, headers: RateLimitHeaders) -> RateLimit<Bare> {
    let layer = RateLimitLayer::builder().policy(Policy::new("peer", rule.quota()));
    let layer = layer.build().expect("a layer").headers(headers);
    layer.layer(Bare)
}

pub(super) async fn admitting(plan: Plan) -> Vec<Outcome> {
    let rule = Rule::ample(plan.keys);
    let entrants = entrants(&plan, rule, false).await;
    let turns = run_comparison(&plan, busy(&plan, 64), Expect::Admitted, entrants).await;
    vec![compared("admitting", &plan, &turns, Target::AtLeast(1.2))]
}

pub(super) async fn refusing(plan: Plan) -> Vec<Outcome> {
    let entrants = entrants(&plan, Rule::scarce(), true).await;
    let turns = run_comparison(&plan, busy(&plan, 64), Expect::Rejected, entrants).await;
    vec![compared("refusing", &plan, &turns, Target::AtLeast(20.0))]
}

/// Both layers, without headers and with. If all requests are to be rejected, each client has sent one before.
async fn entrants(plan: &Plan, rule: Rule, rejected: bool) -> Vec<Entrant> {
    let n = plan.keys;
    let ours = [RateLimitHeaders::none(), RateLimitHeaders::draft()].map(|headers| {
        let service = ours(rule, headers);
        Layered::new(service, n)
    });
    let bare = Layered::new(bare_layer(rule).layer(Bare), n);
    let headers = Layered::new(header_layer(rule).layer(Bare), n);
    if rejected {
        for ours in &ours {
            ours.call_each().await;
        }
        bare.call_each().await;
        headers.call_each().await;
    }
    let [ours_bare, ours_headers] = ours;
    vec![
        Entrant::new("tollgate", ours_bare),
        Entrant::new("tower_governor", bare),
        Entrant::new("tollgate, headers", ours_headers),
        Entrant::new("tower_governor, headers", headers),
    ]
}

fn compared(case: &'static str, plan: &Plan, turns: &Comparison, target: Target) -> Outcome {
    let keys = keys(plan.keys);
    Outcome::of(
        case,
        format!("through the layer, {case}, 64 tasks, {keys}"),
        turns,
    )
    .compare_two(turns, Measure::Rate, WITHOUT, target)
    .noting(OFF)
    .compare_two(turns, Measure::Rate, WITH, target)
    .noting(ON)
}

/// By so many clients as elsewhere, and by so few that the processor's caches hold them all.
pub(super) async fn added(plan: Plan) -> Vec<Outcome> {
    vec![
        added_by(
            &plan,
            plan.keys,
            Rule::ample(plan.keys),
            Target::AtMost(500.0),
        )
        .await,
        // As much for each as for all together.
        added_by(&plan, plan.keys.div_ceil(100), Rule::ample(1), Target::None).await,
    ]
}

async fn added_by(plan: &Plan, n: usize, rule: Rule, target: Target) -> Outcome {
    let layered = Layered::new(ours(rule, RateLimitHeaders::draft()), n);
    let entrants = vec![
        Entrant::new("behind the layer", layered),
        Entrant::new("bare service", Layered::new(Bare, n)),
    ];
    let turns = run_comparison(plan, busy(plan, 1), Expect::Admitted, entrants).await;
    let rounds = turns.added_ns(0, 1);
    let mut row = Row::number(
        "added time per request, headers included",
        crate::runner::median(rounds.iter().copied()),
        Unit::Nanoseconds,
        target,
    );
    row.rounds = rounds;
    let title = format!("layer around a bare service, 1 task, {}", keys(n));
    Outcome::of("added", title, &turns).row(row)
}
