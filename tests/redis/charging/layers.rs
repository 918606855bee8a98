//! Layers around each other: each settles for itself, and once.

use std::pin::pin;

use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// Sends a request through two layers.
async fn stacked(outer: &RateLimitLayer, inner: &RateLimitLayer, status: u16) -> u16 {
    let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(text(status)));
    let Ok(response) = outer.layer(inner.layer(handler)).oneshot(request()).await;
    let status = response.status().as_u16();
    let mut body = pin!(response.into_body());
    while let Some(frame) = body.frame().await {
        frame.expect("no error");
    }
    status
}

#[tokio::test]
async fn stacked_layers_settle_separately() {
    for world in World::both() {
        let outer = world.layer([
            window("outer", "9/min").refund_unless(outcome::success),
            window("outer failures", "9/min").charge_after(outcome::failure),
        ]);
        let inner = world.layer([
            window("inner", "9/min").refund_unless(outcome::failure),
            window("inner successes", "9/min").charge_after(outcome::success),
        ]);
        for status in [200, 200, 500] {
            assert_eq!(stacked(&outer, &inner, status).await, status);
        }
        let of_outer = all_used(outer.limiter(), ["outer", "outer failures"]).await;
        let of_inner = all_used(inner.limiter(), ["inner", "inner successes"]).await;
        assert_eq!((of_outer, of_inner), ([2, 1], [1, 2]));
    }
}

#[tokio::test]
async fn a_rejection_by_an_inner_layer_is_refunded_once_and_no_failure_to_the_outer_one() {
    for world in World::both() {
        let outer = world.layer([
            window("arrival", "9/min"),
            window("reserve", "9/min").refund_unless(outcome::success),
            window("failures", "9/min").charge_after(outcome::failure),
            window("reserved failures", "9/min").refund_unless(outcome::failure),
            window("shadow", "9/min").shadow(),
        ]);
        let inner = world.layer([window("full", "1/min")]);
        for expected in [200, 429, 429, 429] {
            assert_eq!(stacked(&outer, &inner, 200).await, expected);
        }
        let names = [
            "arrival",
            "reserve",
            "failures",
            "reserved failures",
            "shadow",
        ];
        assert_eq!(all_used(outer.limiter(), names).await, [1, 1, 0, 0, 1]);
    }
}
