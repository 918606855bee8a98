//! Many policies and conditions, for a usual head of a request and for large ones.

use axum::body::Body;
use http::{
    Method, Request,
    request::{Builder, Parts},
};
use tollgate::{Policy, RateLimitHeaders, RateLimitLayer, extract, layer::RateLimit};
use tower::{Layer, ServiceExt};

use super::busy;
use crate::{
    contenders::layers::Bare,
    keys::Rule,
    load::{Contender, Load, Rng},
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

/// The bytes of a large path, header, cookie or query.
const LARGE: usize = 60_000;

const POLICIES: usize = 10;
const CONDITIONS: usize = 20;

/// Sets what a policy counts by.
type Key = fn(Policy) -> Policy;

/// Sends requests with the same head.
struct OneHead {
    service: RateLimit<Bare>,
    head: Parts,
}

impl Contender for OneHead {
    async fn decide(&self, _: &mut Rng) -> bool {
        let request = Request::from_parts(self.head.clone(), Body::empty());
        let Ok(response) = self.service.clone().oneshot(request).await;
        response.status().is_success()
    }
}

/// A layer of so many policies, each with so many paths to skip. Without an extractor none of them applies in the end, so that
/// the conditions alone are measured.
fn layer(policies: usize, conditions: usize, key: Option<Key>) -> RateLimit<Bare> {
    let mut layer = RateLimitLayer::builder();
    for number in 0..policies {
        let mut policy = Policy::new(format!("p{number}"), Rule::ample(1).quota());
        for condition in 0..conditions {
            policy = policy.skip_path(format!("/static/{number}/{condition}/*"));
        }
        layer = layer.policy(match key {
            Some(key) => key(policy),
            None => policy.only_method(Method::DELETE),
        });
    }
    let layer = layer.build().expect("a layer");
    layer.headers(RateLimitHeaders::none()).layer(Bare)
}

pub(super) async fn large_heads(plan: Plan) -> Vec<Outcome> {
    let plan = Plan { keys: 1, ..plan };
    // A decision takes up to a millisecond, and much longer in a debug build.
    let load = Load {
        stint: 16,
        ..busy(&plan, 1)
    };
    let value = || "x".repeat(LARGE);
    let cookies = || "a=b; ".repeat(LARGE / 5) + "session=c";
    let query = || "/?".to_owned() + &"a&".repeat(LARGE / 2) + "tenant=c";
    let path = |len| "/;".repeat(len / 2);
    let get = |target: &str| Request::get(target);
    let cases: [(&str, Option<Key>, Builder); 6] = [
        ("the path /index.html", None, get("/index.html")),
        // The longest that is decoded.
        ("a path of 8 kB", None, get(&path(8_000))),
        ("a path of 60 kB", None, get(&path(LARGE))),
        (
            "a header of 60 kB",
            Some(|policy| policy.key(extract::header("x-tenant"))),
            get("/").header("x-tenant", value()),
        ),
        (
            "cookies of 60 kB",
            Some(|policy| policy.key(extract::cookie("session"))),
            get("/").header("cookie", cookies()),
        ),
        (
            "a query of 60 kB",
            Some(|policy| policy.key(extract::query("tenant"))),
            get(&query()),
        ),
    ];
    let mut outcomes = Vec::new();
    for (what, key, request) in cases {
        let head = request.body(()).expect("a request").into_parts().0;
        let entrant = |name, policies, conditions| {
            let service = layer(policies, conditions, key);
            let head = head.clone();
            Entrant::new(name, OneHead { service, head })
        };
        let entrants = vec![
            entrant("10 policies of 20 paths to skip", POLICIES, CONDITIONS),
            entrant("one policy of one path", 1, 1),
        ];
        let turns = run_comparison(&plan, load, Expect::Admitted, entrants).await;
        let title = format!("many policies and conditions, {what}, 1 task");
        let outcome = Outcome::of("heads", title, &turns);
        outcomes.push(outcome.compare(&turns, Measure::Rate, 1, Target::AtLeast(1.0 / 1.5)));
    }
    outcomes
}
