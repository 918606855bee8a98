//! What each mode charges, by what becomes of a request.

use tollgate::outcome::{self, Outcome};
use tollgate_tests::prelude::*;

use crate::charging::support::*;

pub(crate) type OutcomeFn = fn(&Outcome<'_>) -> bool;

/// The policy under both modes that go by the outcome.
pub(crate) fn both_modes(
    policy: &Policy,
    outcome: impl Fn(&Outcome<'_>) -> bool + Clone + Send + Sync + 'static,
) -> [Policy; 2] {
    let charges = policy.clone().charge_after(outcome.clone());
    [charges, policy.clone().refund_unless(outcome)]
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
            pass_all(&layer, [200; 5]).await;
            let handler = |_| async { unreachable!("a rejected request has a handler") };
            let Ok(rejected) = call::<_, _, Infallible>(&layer, request(), handler).await;
            assert_eq!(rejected.status(), 429);
            assert!(rejected.headers().contains_key("retry-after"));
            read(rejected).await.expect("a body");
            assert_eq!(charged(&layer).await, 5);
        }
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
            assert_eq!(limiter.check(KEY).times(11).await.admitted(), 10);
            forget(&layer).await;
        }
    }
}

#[tokio::test]
async fn an_even_rate_is_refunded_a_whole_burst_less_what_has_refilled() {
    for world in World::both() {
        let layer = world.layer([even("p", "10/min").refund_unless(outcome::success)]);
        let under_way = join_all((0..10).map(|_| respond(&layer, text(500)))).await;
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
        pass_all(&layer, [200, 429, 429, 429]).await;
        let names = ["response", "reserve", "full"];
        assert_eq!(all_used(layer.limiter(), names).await, [1, 1, 1]);
    }
}

#[tokio::test]
async fn a_requests_cost_is_charged_and_refunded() {
    for world in World::both() {
        for policy in both_modes(&window("p", "10/min").cost(4), outcome::success) {
            let layer = world.layer([policy]);
            forget(&layer).await;
            pass_all(&layer, [500]).await;
            assert_eq!(charged(&layer).await, 0);
            pass_all(&layer, [200, 200, 429]).await;
            assert_eq!(charged(&layer).await, 8);
        }
    }
}
