//! What metrics cost, in process.

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusBuilder;
use tollgate::{
    Policy, RateLimitHeaders, RateLimitLayer, layer::RateLimit, limiter::LimiterBuilder,
    metrics::Metrics,
};
use tower::Layer;

use super::{busy, keys};
use crate::{
    contenders::layers::{Bare, Layered},
    contenders::tollgate::{TollgateLimiter, in_process},
    keys::{Callers, Rule},
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

/// The least ratio of decisions a second with metrics to those without.
const LEAST: Target = Target::AtLeast(0.95);

pub(super) async fn in_process_with_and_without(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let rule = Rule::ample(n);
    let limiter = |builder| TollgateLimiter::one(builder, rule, Callers::kept(n));
    let layer = |builder| Layered::new(layer(builder, rule), n);
    let entrants = vec![
        Entrant::new("check, metrics", limiter(in_process().observe(metrics()))),
        Entrant::new("check", limiter(in_process())),
        Entrant::new("layer, metrics", layer(in_process().observe(metrics()))),
        Entrant::new("layer", layer(in_process())),
    ];
    let turns = run_comparison(&plan, busy(&plan, 64), Expect::Admitted, entrants).await;
    let title = format!(
        "in process, with metrics and without, 64 tasks, {}",
        keys(n)
    );
    let outcome = Outcome::of("metrics", title, &turns)
        .compare_two(&turns, Measure::Rate, [0, 1], LEAST)
        .compare_two(&turns, Measure::Rate, [2, 3], LEAST);
    vec![outcome]
}

/// With a recorder of its own, so that histograms are recorded.
fn metrics() -> Arc<Metrics> {
    let recorder = PrometheusBuilder::new().build_recorder();
    Arc::new(Metrics::with_recorder("bench", recorder))
}

fn layer(builder: LimiterBuilder, rule: Rule) -> RateLimit<Bare> {
    let builder = builder.policy(Policy::new("peer", rule.quota()));
    let layer = RateLimitLayer::new(builder.build().expect("a limiter"));
    layer.headers(RateLimitHeaders::none()).layer(Bare)
}
