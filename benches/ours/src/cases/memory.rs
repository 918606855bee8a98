//! In process, called directly, and without await.

use std::{convert::Infallible, future::ready};

use axum::body::Body;
use http::{HeaderValue, Request, Response};
use tollgate::{Limiter, OutgoingLayer, Policy, provider::Provider};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::{busy, keys};
use crate::{
    contenders::governor::{Alone, Governor},
    contenders::layers::Bare,
    contenders::tollgate::{Now, TollgateLimiter, in_process},
    keys::{Callers, Rule},
    load::{Contender, Rng},
    outcome::{Outcome, Row, Target, Unit},
    plan::Plan,
    runner::{Entrant, Expect, Measure, median, run_comparison},
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

/// A task that never waits keeps its thread.
pub(super) async fn now(plan: Plan) -> Vec<Outcome> {
    let n = plan.keys;
    let rule = Rule::ample(n);
    let mut outcomes = Vec::new();
    for (threads, title) in [(1, "one thread"), (2, "two threads")] {
        let one = || TollgateLimiter::one(in_process(), rule, Callers::kept(n));
        let entrants = vec![
            Entrant::new("tollgate, now()", Now(one())),
            Entrant::new("governor", Governor::new(rule, Callers::kept(n))),
            Entrant::new("tollgate, awaited", one()),
        ];
        let load = busy(&plan, threads);
        let turns = run_comparison(&plan, load, Expect::Admitted, entrants).await;
        let title = format!("in process without await, {title}, {}", keys(n));
        let outcome = Outcome::of("now", title, &turns);
        let outcome = outcome.compare(&turns, Measure::Rate, 1, Target::None);
        outcomes.push(outcome.compare(&turns, Measure::Rate, 2, Target::None));
    }
    outcomes
}

/// Calls of a service that answers at once, which are admitted at once.
struct OutgoingCalls<S>(S);

impl<S> Contender for OutgoingCalls<S>
where
    S: Service<Request<Body>, Future: Send> + Clone + Send + Sync + 'static,
{
    async fn decide(&self, _: &mut Rng) -> bool {
        let request = Request::new(Body::empty());
        self.0.clone().oneshot(request).await.is_ok()
    }
}

pub(super) async fn outgoing(plan: Plan) -> Vec<Outcome> {
    let rule = Rule::ample(1);
    let layer = || {
        let limiter = Limiter::builder().policy(Policy::new("upstream", rule.quota()));
        let limiter = limiter.policy(Policy::block_list("refused"));
        OutgoingLayer::new(limiter.build().expect("a limiter"))
    };
    // An account of which more is left than the limiter counts, so that no response changes a count.
    let answer = |_: Request<Body>| {
        let mut response = Response::new(Body::empty());
        for (name, value) in [
            ("x-ratelimit-limit-requests", "1000000000"),
            ("x-ratelimit-remaining-requests", "999999999"),
            ("x-ratelimit-reset-requests", "6m0s"),
            ("x-ratelimit-limit-tokens", "1000000000"),
            ("x-ratelimit-remaining-tokens", "999999999"),
            ("x-ratelimit-reset-tokens", "1ms"),
        ] {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        ready(Ok::<_, Infallible>(response))
    };
    let openai = Provider::openai().limit("requests", "upstream");
    let obeying = layer().obey(openai).expect("a block list");
    let entrants = vec![
        Entrant::new("tollgate", OutgoingCalls(layer().layer(Bare))),
        Entrant::new(
            "a check",
            TollgateLimiter::one(in_process(), rule, Callers::kept(1)),
        ),
        Entrant::new(
            "tollgate, of a provider whose fields are not read",
            OutgoingCalls(layer().layer(service_fn(answer))),
        ),
        Entrant::new(
            "tollgate, obeying",
            OutgoingCalls(obeying.layer(service_fn(answer))),
        ),
    ];
    let turns = run_comparison(&plan, busy(&plan, 1), Expect::Admitted, entrants).await;
    let title = "outgoing requests that do not wait, 1 task, in process";
    let outcome = Outcome::of("outgoing", title, &turns);
    let outcome = outcome.compare(&turns, Measure::Rate, 1, Target::None);
    // Both have a service that makes the fields.
    let rounds = turns.added_ns(3, 2);
    let median = median(rounds.iter().copied());
    let (unit, target) = (Unit::Nanoseconds, Target::AtMost(1_000.0));
    let mut row = Row::number("added by obeying, no count changed", median, unit, target);
    row.rounds = rounds;
    vec![outcome.row(row)]
}
