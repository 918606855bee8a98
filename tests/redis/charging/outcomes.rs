//! What an outcome is decided by, and when.

use tollgate::outcome::{self, RequestEnd};
use tollgate_tests::prelude::*;

use crate::charging::{
    modes::{OutcomeFn, both_modes, charged, cost, layers},
    request_ends::disconnect_half_way,
    support::*,
};

#[tokio::test]
async fn a_grpc_calls_outcome_is_in_its_trailers() {
    for world in World::both() {
        for (trailer, success) in [("0", 1), ("14", 0), ("16", 0)] {
            for layer in layers(&world, outcome::success) {
                for frames in [vec![data(), code(trailer)], vec![code(trailer)]] {
                    let cost = cost(&layer, grpc(frames)).await;
                    assert_eq!(cost, success, "{trailer}");
                }
            }
            for layer in layers(&world, outcome::failure) {
                let cost = cost(&layer, grpc(vec![data(), data(), code(trailer)])).await;
                assert_eq!(cost, 1 - success, "{trailer}");
            }
        }
    }
}

#[tokio::test]
async fn the_outcome_of_a_grpc_call_that_fails_at_once_is_in_its_head() {
    for world in World::both() {
        for (head, success) in [("0", 1), ("7", 0)] {
            for layer in layers(&world, outcome::success) {
                let mut response = grpc(Vec::new());
                let code = head.parse().expect("a value");
                response.headers_mut().insert("grpc-status", code);
                assert_eq!(cost(&layer, response).await, success);
            }
        }
    }
}

#[tokio::test]
async fn a_grpc_call_that_ends_without_a_code_has_failed() {
    for world in World::both() {
        for layer in layers(&world, outcome::success) {
            assert_eq!(cost(&layer, grpc(vec![data()])).await, 0);
            assert_eq!(cost(&layer, grpc(vec![data(), broken()])).await, 0);
        }
    }
}

#[tokio::test]
async fn a_grpc_call_whose_client_disconnects_before_the_trailers_is_dropped() {
    for world in World::both() {
        for (dropped, expected) in [(true, 1), (false, 0)] {
            for outcome in [outcome::success as OutcomeFn, outcome::failure] {
                for policy in both_modes(&window("p", "5/min"), outcome) {
                    let layer = world.layer([policy.charge_dropped(dropped)]);
                    forget(&layer).await;
                    disconnect_half_way(&layer, grpc(vec![data(), data(), code("0")])).await;
                    assert_eq!(charged(&layer).await, expected);
                }
            }
        }
    }
}

#[tokio::test]
async fn an_outcome_is_evaluated_only_when_the_stream_ends_and_only_once() {
    use std::sync::{Arc, Mutex};
    for world in World::both() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = seen.clone();
        let layer = world.layer([window("p", "5/min").charge_after(move |outcome| {
            let status = outcome.status().map(|status| status.as_u16());
            let seen = (outcome.end(), status, outcome.grpc_status());
            sees.lock().expect("a lock").push(seen);
            true
        })]);
        let mut body = respond(&layer, grpc(vec![data(), data(), code("5")]))
            .await
            .into_body();
        for _ in 0..3 {
            assert_eq!(*seen.lock().expect("a lock"), []);
            assert_eq!(charged(&layer).await, 0);
            body.frame().await.expect("a frame").expect("no error");
        }
        assert!(body.frame().await.is_none());
        assert_eq!(charged(&layer).await, 1);
        drop(body);
        assert_eq!(charged(&layer).await, 1);
        let expected = [(RequestEnd::Completed, Some(200), Some(5))];
        assert_eq!(*seen.lock().expect("a lock"), expected);
    }
}

#[tokio::test]
async fn an_outcome_closure_sees_the_responses_headers() {
    for world in World::both() {
        let cached: OutcomeFn = |outcome| {
            outcome
                .headers()
                .is_none_or(|h| !h.contains_key("x-cached"))
        };
        for layer in layers(&world, cached) {
            let mut response = text(200);
            let value = "1".parse().expect("a value");
            response.headers_mut().insert("x-cached", value);
            assert_eq!(cost(&layer, response).await, 0);
            assert_eq!(cost(&layer, text(200)).await, 1);
        }
    }
}

#[tokio::test]
async fn policies_of_every_mode_in_one_layer_settle_separately() {
    for world in World::both() {
        let layer = world.layer([
            window("arrival", "9/min"),
            window("reserve", "9/min").refund_unless(outcome::success),
            even("even", "9/min").refund_unless(outcome::success),
            window("success", "9/min").charge_after(outcome::success),
            window("failure", "9/min").charge_after(outcome::failure),
        ]);
        for status in [200, 500, 200, 500, 500] {
            assert_eq!(pass(&layer, text(status)).await, status);
        }
        for (policy, expected) in [
            ("arrival", 5),
            ("reserve", 2),
            ("even", 2),
            ("success", 2),
            ("failure", 3),
        ] {
            let used = used(layer.limiter(), policy).await;
            assert_eq!(used, expected, "{policy}");
        }
    }
}
