//! In process, through the layer.

use tollgate::{Policy, RateLimit, RateLimitLayer};
use tower::Layer;

use super::{busy, keys};
use crate::{
    bout::{Entrant, Expect, Measure, bout},
    governor::{bare_layer, header_layer},
    keys::Rule,
    layered::{Bare, Layered},
    outcome::{Outcome, Row, Target, Unit},
    plan::Plan,
};

/// Our layer can't leave its headers off yet, so that it does more here.
const OURS_ONLY: &str = "headers on ours only";
const BOTH: &str = "headers on both";

/// The same policy as the others': by the socket's peer, in process.
fn ours(rule: Rule) -> RateLimit<Bare> {
    let layer = RateLimitLayer::builder().policy(Policy::new("peer", rule.quota()));
    layer.build().expect("a layer").layer(Bare)
}

pub(super) async fn admitting(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let rule = Rule::ample(n);
    let entrants = vec![
        Entrant::new("tollgate", Layered::new(ours(rule), n)),
        Entrant::new(
            "tower_governor",
            Layered::new(bare_layer(rule).layer(Bare), n),
        ),
        Entrant::new(
            "tower_governor",
            Layered::new(header_layer(rule).layer(Bare), n),
        ),
    ];
    let turns = bout(&plan, busy(&plan, 64), Expect::Admitted, entrants).await;
    let title = format!("through the layer, 64 tasks, {}, admitted", keys(n));
    vec![
        Outcome::of("admitting", title, &turns)
            .compare(&turns, Measure::Rate, 1, Target::AtLeast(1.2))
            .noting(OURS_ONLY)
            .compare(&turns, Measure::Rate, 2, Target::AtLeast(1.2))
            .noting(BOTH),
    ]
}

pub(super) async fn refusing(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let rule = Rule::scarce();
    let ours = Layered::new(ours(rule), n);
    let bare = Layered::new(bare_layer(rule).layer(Bare), n);
    let headers = Layered::new(header_layer(rule).layer(Bare), n);
    ours.ask_each().await;
    bare.ask_each().await;
    headers.ask_each().await;
    let entrants = vec![
        Entrant::new("tollgate", ours),
        Entrant::new("tower_governor", bare),
        Entrant::new("tower_governor", headers),
    ];
    let turns = bout(&plan, busy(&plan, 64), Expect::Refused, entrants).await;
    let title = format!("through the layer, 64 tasks, {}, refused", keys(n));
    vec![
        Outcome::of("refusing", title, &turns)
            .compare(&turns, Measure::Rate, 1, Target::AtLeast(20.0))
            .noting(OURS_ONLY)
            .compare(&turns, Measure::Rate, 2, Target::AtLeast(20.0))
            .noting(BOTH),
    ]
}

pub(super) async fn added(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let rule = Rule::ample(n);
    let entrants = vec![
        Entrant::new("behind the layer", Layered::new(ours(rule), n)),
        Entrant::new("bare service", Layered::new(Bare, n)),
    ];
    let turns = bout(&plan, busy(&plan, 1), Expect::Admitted, entrants).await;
    let rounds = turns.added_ns(0, 1);
    let mut row = Row::number(
        "added time per request, headers included",
        crate::bout::median(rounds.iter().copied()),
        Unit::Nanoseconds,
        Target::AtMost(500.0),
    );
    row.rounds = rounds;
    let title = format!("layer around a bare service, 1 task, {}", keys(n));
    vec![Outcome::of("added", title, &turns).row(row)]
}
