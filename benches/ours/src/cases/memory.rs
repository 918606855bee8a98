//! In process, called directly.

use super::{busy, keys};
use crate::{
    contenders::governor::{Alone, Governor},
    contenders::tollgate::{TollgateLimiter, in_process},
    keys::{Callers, Rule},
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

pub(super) async fn direct(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let rule = Rule::ample(n);
    let entrants = vec![
        Entrant::new(
            "tollgate",
            TollgateLimiter::one(in_process(), rule, Callers::kept(n)),
        ),
        Entrant::new("governor", Governor::new(rule, Callers::kept(n))),
        Entrant::new(
            "governor, reading the clock after each",
            Alone(Governor::new(rule, Callers::kept(n))),
        ),
    ];
    let turns = run_comparison(&plan, busy(&plan, 64), Expect::Admitted, entrants).await;
    let title = format!("in process, 64 tasks, {}", keys(n));
    let outcome = Outcome::of("memory", title, &turns);
    let outcome = outcome.compare(&turns, Measure::Rate, 1, Target::AtLeast(0.7));
    vec![outcome.compare(&turns, Measure::Rate, 2, Target::None)]
}
