//! What each mode charges, by what becomes of a request.

use tollgate::outcome::{self, Outcome};
use tollgate_tests::prelude::*;

use crate::charging::support::*;

pub(crate) type OutcomeFn = fn(&Outcome<'_>) -> bool;

/// The ready-made outcomes, and which of 200, 302, 404 and 503 they charge.
const OUTCOMES: [(OutcomeFn, [u64; 4]); 4] = [
    (outcome::success, [1, 1, 0, 0]),
    (outcome::failure, [0, 0, 1, 1]),
    (outcome::client_error, [0, 0, 1, 0]),
    (outcome::server_error, [0, 0, 0, 1]),
];

/// The policy under both modes that go by the outcome.
pub(crate) fn both_modes(policy: &Policy, outcome: OutcomeFn) -> [Policy; 2] {
    let policy = || policy.clone();
    [
        policy().charge_after(outcome),
        policy().refund_unless(outcome),
    ]
}

/// One policy `p` of each mode, with a layer of its own.
pub(crate) fn layers(world: &World, outcome: OutcomeFn) -> [RateLimitLayer; 2] {
    [
        world.layer([window("response", "5/min").charge_after(outcome)]),
        world.layer([window("reserve", "5/min").refund_unless(outcome)]),
    ]
}

pub(crate) async fn charged(layer: &RateLimitLayer) -> u64 {
    let policies = layer.limiter().policies();
    let name = policies.last().expect("a policy").name();
    used(layer.limiter(), name).await
}

/// What a response is charged, when its body has been read as servers do.
pub(crate) async fn cost(layer: &RateLimitLayer, response: Response<PiecesBody>) -> u64 {
    forget(layer).await;
    pass(layer, response).await;
    charged(layer).await
}

#[tokio::test]
async fn both_modes_charge_by_the_outcome_and_nothing_else() {
    for world in World::both() {
        for (outcome, expected) in OUTCOMES {
            for layer in layers(&world, outcome) {
                for (status, expected) in [200, 302, 404, 503].into_iter().zip(expected) {
                    let cost = cost(&layer, text(status)).await;
                    assert_eq!(cost, expected, "{layer:?} {status}");
                }
            }
        }
    }
}

#[tokio::test]
async fn on_response_charges_nothing_on_arrival_and_reserve_charges_at_once() {
    for world in World::both() {
        for (layer, expected) in layers(&world, outcome::success).into_iter().zip([0, 1]) {
            let handled = async |_| assert_eq!(charged(&layer).await, expected);
            let response = serve(&layer, 200, handled).await;
            assert_eq!(charged(&layer).await, expected, "the body is not sent yet");
            read(response).await.expect("a body");
            assert_eq!(charged(&layer).await, 1);
        }
    }
}

#[tokio::test]
async fn a_full_policy_rejects_in_each_mode_without_calling_the_handler() {
    for world in World::both() {
        for layer in layers(&world, outcome::success) {
            for _ in 0..5 {
                assert_eq!(pass(&layer, text(200)).await, 200);
            }
            let handler = |_| async { unreachable!("a rejected request has a handler") };
            let rejected = call::<_, _, Infallible>(&layer, request(), handler).await;
            let Ok(rejected) = rejected;
            assert_eq!(rejected.status(), 429);
            assert!(rejected.headers().contains_key("retry-after"));
            read(rejected).await.expect("a body");
            assert_eq!(charged(&layer).await, 5);
        }
    }
}

#[tokio::test]
async fn a_refunded_reservation_is_available_in_the_same_window() {
    for world in World::both() {
        let layer = world.layer([window("p", "1/min").refund_unless(outcome::success)]);
        for _ in 0..10 {
            assert_eq!(pass(&layer, text(500)).await, 500);
            world.advance(secs(1));
        }
        assert_eq!(pass(&layer, text(200)).await, 200);
        assert_eq!(pass(&layer, text(200)).await, 429);
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn an_even_rate_in_use_is_refunded_a_reservation_to_the_fraction() {
    for world in World::both() {
        let layer = world.layer([even("p", "10/min").refund_unless(outcome::success)]);
        let limiter = layer.limiter();
        for _ in 0..3 {
            // Four of six seconds each are used, and 10 ms pass while a fifth is in flight.
            assert_eq!(limiter.check(KEY).times(4).await.admitted(), 4);
            let under_way = respond(&layer, text(500)).await;
            assert_eq!(waits(limiter, "p").await.1, secs(30));
            world.advance(ms(10));
            read(under_way).await.expect("a body");
            // As if it had never been, except for the 10 ms: they may have refilled part of it, and are not refunded
            // twice.
            let (_, full) = waits(limiter, "p").await;
            assert!((secs(24) - ms(10)..=secs(24)).contains(&full), "{full:?}");
            world.advance(full);
            let admitted = limiter.check(KEY).times(11).await.admitted();
            assert_eq!(admitted, 10);
            forget(&layer).await;
        }
    }
}

#[tokio::test]
async fn an_even_rate_is_refunded_a_whole_burst_less_what_has_refilled() {
    for world in World::both() {
        let layer = world.layer([even("p", "10/min").refund_unless(outcome::success)]);
        let mut under_way = Vec::new();
        for _ in 0..10 {
            under_way.push(respond(&layer, text(500)).await);
        }
        assert_eq!(pass(&layer, text(500)).await, 429);
        world.advance(ms(10));
        for response in under_way {
            read(response).await.expect("a body");
        }
        let (_, full) = waits(layer.limiter(), "p").await;
        assert!(full <= 10 * ms(10), "{full:?}");
        world.advance(full);
        let admitted = layer.limiter().check(KEY).times(11).await.admitted();
        assert_eq!(admitted, 10);
    }
}

#[tokio::test]
async fn a_request_that_one_policy_rejects_is_settled_under_none() {
    for world in World::both() {
        let any: OutcomeFn = |_| true;
        let layer = world.layer([
            window("response", "9/min").charge_after(any),
            window("reserve", "9/min").refund_unless(any),
            window("full", "1/min"),
        ]);
        for expected in [200, 429, 429, 429] {
            assert_eq!(pass(&layer, text(200)).await, expected);
        }
        for policy in ["response", "reserve", "full"] {
            let used = used(layer.limiter(), policy).await;
            assert_eq!(used, 1, "{policy}");
        }
    }
}

#[tokio::test]
async fn a_requests_cost_is_charged_and_refunded() {
    for world in World::both() {
        for policy in both_modes(&window("p", "10/min").cost(4), outcome::success) {
            let layer = world.layer([policy]);
            forget(&layer).await;
            assert_eq!(pass(&layer, text(500)).await, 500);
            assert_eq!(charged(&layer).await, 0);
            assert_eq!(pass(&layer, text(200)).await, 200);
            assert_eq!(pass(&layer, text(200)).await, 200);
            assert_eq!(pass(&layer, text(200)).await, 429);
            assert_eq!(charged(&layer).await, 8);
        }
    }
}
