//! One policy on a cluster, against one script call for each request over the same connections.

use testkit::Cluster;

use super::{keys, waiting};
use crate::{
    contenders::redis::Muxes,
    contenders::tollgate::{TollgateLimiter, on_cluster},
    keys::{Callers, Rule},
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

pub(super) async fn cold(plan: Plan) -> Vec<Outcome> {
    let (n, cluster) = (plan.keys, Cluster::start(3, 0));
    let (urls, rule) = (cluster.urls(), Rule::ample(plan.keys));
    let ours = TollgateLimiter::one(on_cluster(&urls), rule, Callers::kept(n));
    let entrants = vec![
        Entrant::new("tollgate", ours),
        Entrant::new("mux", Muxes::open(&urls, rule, n).await),
    ];
    let turns = run_comparison(&plan, waiting(&plan, 512), Expect::Admitted, entrants).await;
    let title = format!("512 tasks, {}, three masters", keys(n));
    let outcome = Outcome::of("cluster", title, &turns)
        .compare(&turns, Measure::Rate, 1, Target::AtLeast(1.3))
        .compare(&turns, Measure::P99, 1, Target::None);
    vec![outcome]
}
