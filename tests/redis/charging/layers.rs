//! Layers around each other, and a limiter without one: each settles for itself, and once.

use std::pin::pin;

use http_body_util::BodyExt;
use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// Sends a request through two layers.
async fn stacked(outer: &RateLimitLayer, inner: &RateLimitLayer, status: u16) -> u16 {
    let handler =
        service_fn(move |_: Request<()>| async move { Ok::<_, Infallible>(text(status)) });
    let service = outer.layer(inner.layer(handler));
    let Ok(response) = service.oneshot(request()).await;
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
        assert_eq!(used(outer.limiter(), "outer").await, 2);
        assert_eq!(used(outer.limiter(), "outer failures").await, 1);
        assert_eq!(used(inner.limiter(), "inner").await, 1);
        assert_eq!(used(inner.limiter(), "inner successes").await, 2);
    }
}

#[tokio::test]
async fn a_rejection_by_an_inner_layer_is_refunded_once() {
    for world in World::both() {
        let outer = world.layer([
            window("arrival", "9/min"),
            window("reserve", "9/min").refund_unless(outcome::success),
        ]);
        let inner = world.layer([window("full", "1/min")]);
        for expected in [200, 429, 429, 429] {
            assert_eq!(stacked(&outer, &inner, 200).await, expected);
        }
        for policy in ["arrival", "reserve"] {
            let used = used(outer.limiter(), policy).await;
            assert_eq!(used, 1, "{policy}");
        }
    }
}

#[tokio::test]
async fn a_rejection_by_an_inner_layer_is_no_failure_to_the_outer_one() {
    for world in World::both() {
        let outer = world.layer([
            window("response", "9/min").charge_after(outcome::failure),
            window("reserve", "9/min").refund_unless(outcome::failure),
        ]);
        let inner = world.layer([window("full", "1/min")]);
        for expected in [200, 429, 429, 429] {
            assert_eq!(stacked(&outer, &inner, 200).await, expected);
        }
        for policy in ["reserve", "response"] {
            let used = used(outer.limiter(), policy).await;
            assert_eq!(used, 0, "{policy}");
        }
    }
}

#[tokio::test]
async fn check_without_a_layer_charges_nothing_under_on_response() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "2/min").charge_after(outcome::failure)]);
        for _ in 0..5 {
            assert!(admitted_by_store(&limiter.check(KEY).await));
        }
        assert_eq!(used(&limiter, "p").await, 0);
        for _ in 0..2 {
            assert!(admitted_by_store(
                &limiter.charge(KEY, 1).await.expect("a response")
            ));
        }
        assert!(!admitted_by_store(&limiter.check(KEY).await));
        assert_eq!(used(&limiter, "p").await, 2);
    }
}
