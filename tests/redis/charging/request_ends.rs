//! How a request ends, and what that is charged.

use std::{future::pending, io};

use http_body::Body as _;
use http_body_util::Empty;
use tollgate::{
    layer::ResponseBody,
    outcome::{self, RequestEnd},
};
use tollgate_tests::prelude::*;

use crate::charging::{
    modes::{OutcomeFn, both_modes, charged, cost, layers},
    support::*,
};

/// Drops a request while its handler waits.
async fn disconnect(layer: &RateLimitLayer) {
    let (started, starts) = tokio::sync::mpsc::channel::<()>(1);
    let handler = move |_| {
        let started = started.clone();
        async move {
            started.send(()).await.expect("a test");
            pending::<Result<Response<PiecesBody>, Infallible>>().await
        }
    };
    let mut starts = starts;
    let mut asking = Box::pin(call(layer, request(), handler));
    tokio::select! {
        _ = &mut asking => panic!("a response"),
        started = starts.recv() => started.expect("a handler"),
    }
    drop(asking);
}

#[tokio::test]
async fn a_request_that_is_dropped_before_its_response_is_charged() {
    for world in World::both() {
        // Whatever the outcome would have been: it is not known.
        for outcome in [outcome::success, outcome::failure] {
            for layer in layers(&world, outcome) {
                forget(&layer).await;
                disconnect(&layer).await;
                assert_eq!(charged(&layer).await, 1, "{layer:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_before_its_response_is_free_where_configured() {
    for world in World::both() {
        for outcome in [outcome::success as OutcomeFn, outcome::failure] {
            for policy in both_modes(&window("p", "5/min"), outcome) {
                let layer = world.layer([policy.charge_dropped(false)]);
                disconnect(&layer).await;
                assert_eq!(charged(&layer).await, 0, "{layer:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_evade_a_limit_on_failures() {
    for world in World::both() {
        let layer = world.layer([window("login", "3/min").charge_after(outcome::failure)]);
        for _ in 0..3 {
            disconnect(&layer).await;
        }
        assert_eq!(pass(&layer, text(200)).await, 429);
    }
}

#[tokio::test]
async fn a_service_error_is_a_failure() {
    for world in World::both() {
        for (outcome, expected) in [
            (outcome::success as OutcomeFn, 0),
            (outcome::failure, 1),
            (outcome::server_error, 1),
            (outcome::client_error, 0),
            (|outcome| outcome.end() == RequestEnd::ServiceFailed, 1),
            (|outcome| outcome.status().is_some(), 0),
        ] {
            for layer in layers(&world, outcome) {
                forget(&layer).await;
                let handler = |_| async { Err(io::Error::other("down")) };
                let failed = call(&layer, request(), handler).await;
                assert_eq!(failed.expect_err("an error").to_string(), "down");
                assert_eq!(charged(&layer).await, expected);
            }
        }
    }
}

#[tokio::test]
async fn a_service_error_is_no_dropped_request() {
    for world in World::both() {
        let layer = world.layer([window("p", "5/min")
            .charge_after(outcome::failure)
            .charge_dropped(false)]);
        let handler = |_| async { Err(io::Error::other("down")) };
        assert!(call(&layer, request(), handler).await.is_err());
        assert_eq!(charged(&layer).await, 1);
    }
}

#[tokio::test]
async fn a_handler_that_panics_is_charged_like_a_dropped_request() {
    for world in World::both() {
        for (dropped, expected) in [(true, 1), (false, 0)] {
            for policy in both_modes(&window("p", "5/min"), outcome::success) {
                let layer = world.layer([policy.charge_dropped(dropped)]);
                forget(&layer).await;
                let pending = layer.clone();
                let handler = |_| async { panic!("a handler that panics, on purpose") };
                let sent =
                    async move { call::<_, _, Infallible>(&pending, request(), handler).await };
                assert!(tokio::spawn(sent).await.is_err_and(|e| e.is_panic()));
                assert_eq!(charged(&layer).await, expected);
            }
        }
    }
}

#[tokio::test]
async fn a_service_that_panics_in_call_is_charged_too() {
    for world in World::both() {
        for layer in layers(&world, outcome::success) {
            let panics = service_fn(
                |_: Request<()>| -> std::future::Ready<Result<Response<PiecesBody>, Infallible>> {
                    panic!("a service that panics, on purpose")
                },
            );
            let sent = layer.layer(panics).oneshot(request());
            assert!(tokio::spawn(sent).await.is_err_and(|e| e.is_panic()));
            assert_eq!(charged(&layer).await, 1);
        }
    }
}

#[tokio::test]
async fn a_body_that_fails_half_way_is_a_failed_response() {
    for world in World::both() {
        for (outcome, expected) in [
            (outcome::success as OutcomeFn, 0),
            (outcome::failure, 1),
            (|outcome| outcome.end() == RequestEnd::BodyFailed, 1),
            // The status was sent, and it was none of an error.
            (outcome::server_error, 0),
        ] {
            for layer in layers(&world, outcome) {
                let cost = cost(&layer, streamed(vec![data(), broken(), data()])).await;
                assert_eq!(cost, expected, "{layer:?}");
            }
        }
    }
}

/// Reads one frame, and goes.
pub(crate) async fn disconnect_half_way(layer: &RateLimitLayer, response: Response<PiecesBody>) {
    let mut body = respond(layer, response).await.into_body();
    assert!(!body.is_end_stream());
    let frame = body.frame().await.expect("a frame").expect("no error");
    assert!(frame.is_data());
    drop(body);
}

#[tokio::test]
async fn a_success_whose_client_disconnects_half_way_stays_charged() {
    for world in World::both() {
        for (outcome, expected) in [
            (outcome::success as OutcomeFn, 1),
            (outcome::failure, 0),
            (|outcome| outcome.end() == RequestEnd::BodyDropped, 1),
        ] {
            for layer in layers(&world, outcome) {
                forget(&layer).await;
                disconnect_half_way(&layer, streamed(vec![data(), data()])).await;
                assert_eq!(charged(&layer).await, expected);
                // Nor before the first frame.
                forget(&layer).await;
                drop(respond(&layer, streamed(vec![data(), data()])).await);
                assert_eq!(charged(&layer).await, expected);
            }
        }
    }
}

/// HTTP/2 servers read no further than to the trailers, whatever the body reports of its end.
#[tokio::test]
async fn a_response_whose_trailers_were_sent_is_completed() {
    for world in World::both() {
        for layer in layers(&world, |outcome| outcome.end() == RequestEnd::Completed) {
            forget(&layer).await;
            let response = streamed(vec![data(), code("0")]);
            let mut body = respond(&layer, response).await.into_body();
            while let Some(frame) = body.frame().await {
                if frame.expect("no error").is_trailers() {
                    break;
                }
            }
            assert!(!body.is_end_stream());
            drop(body);
            assert_eq!(charged(&layer).await, 1);
        }
    }
}

/// What a plain HTTP server does with a response that has no body: it checks whether it is at its end, and drops it.
async fn drop_bodyless(response: Response<ResponseBody<PiecesBody>>) {
    assert!(response.body().is_end_stream());
    drop(response);
}

#[tokio::test]
async fn responses_without_a_body_are_completed() {
    let empty = |status: u16| {
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        let response = Response::builder().status(status);
        response.body(body).expect("a response")
    };
    for world in World::both() {
        for layer in layers(&world, |outcome| outcome.end() == RequestEnd::Completed) {
            for status in [200, 204, 304, 404] {
                forget(&layer).await;
                drop_bodyless(respond(&layer, empty(status)).await).await;
                assert_eq!(charged(&layer).await, 1, "{status}");
                assert_eq!(cost(&layer, empty(status)).await, 1, "{status}");
            }
            // These never have one, so the body is never polled.
            for status in [204, 304] {
                forget(&layer).await;
                drop(respond(&layer, streamed_with(status)).await);
                assert_eq!(charged(&layer).await, 1, "{status}");
            }
        }
    }
}

fn streamed_with(status: u16) -> Response<PiecesBody> {
    let mut response = streamed(Vec::new());
    *response.status_mut() = status.try_into().expect("a status");
    response
}

#[tokio::test]
async fn the_response_to_a_head_request_is_completed_though_its_body_is_never_sent() {
    for world in World::both() {
        for layer in layers(&world, |outcome| outcome.end() == RequestEnd::Completed) {
            let mut head = request();
            *head.method_mut() = Method::HEAD;
            let handler = |_| async { Ok::<_, Infallible>(streamed(vec![data()])) };
            let Ok(response) = call(&layer, head, handler).await;
            drop(response);
            assert_eq!(charged(&layer).await, 1);
        }
    }
}

#[tokio::test]
async fn an_accepted_connect_request_is_completed_though_its_response_has_no_body() {
    for world in World::both() {
        for layer in layers(&world, |outcome| outcome.end() == RequestEnd::Completed) {
            // A tunnel, or a WebSocket over HTTP/2; one that is rejected may have a body.
            for (status, expected) in [(200, 1), (403, 0)] {
                forget(&layer).await;
                let mut connect = request();
                *connect.method_mut() = Method::CONNECT;
                let handler = |_| async move { Ok::<_, Infallible>(streamed_with(status)) };
                let Ok(response) = call(&layer, connect, handler).await;
                drop(response);
                assert_eq!(charged(&layer).await, expected, "{status}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_is_never_sent_keeps_its_permit_until_it_is_dropped() {
    for world in World::both() {
        for charges in [false, true] {
            let place = Policy::new("place", Quota::concurrent(1)).key(extract::global());
            let settled = window("p", "5/min").refund_unless(outcome::success);
            let policies = [place, settled].into_iter();
            let layer = world.layer(policies.take(1 + usize::from(charges)));
            let mut head = request();
            *head.method_mut() = Method::HEAD;
            let handler = |_| async { Ok::<_, Infallible>(streamed(vec![data()])) };
            let Ok(response) = call(&layer, head, handler).await;
            let _case = Case(format!("charges {charges}"));
            assert_eq!(used(layer.limiter(), "place").await, 1);
            drop(response);
            assert_eq!(used(layer.limiter(), "place").await, 0);
        }
    }
}

#[tokio::test]
async fn axum_handlers_that_return_only_a_status_are_charged_by_it() {
    use axum::{Router, routing::get};
    for world in World::both() {
        for layer in layers(&world, outcome::failure) {
            let app = Router::new()
                .route("/bad", get(async || http::StatusCode::BAD_GATEWAY))
                .route("/good", get(async || http::StatusCode::OK))
                .layer(layer.clone());
            for (uri, method, expected) in [
                ("/good", "GET", 0),
                ("/bad", "GET", 1),
                ("/good", "HEAD", 1),
                ("/bad", "HEAD", 2),
            ] {
                let request = Request::builder().uri(uri).method(method);
                let request = request.body(axum::body::Body::empty()).expect("a request");
                let response = app.clone().oneshot(request).await.expect("no error");
                drop(response);
                assert_eq!(charged(&layer).await, expected, "{method} {uri}");
            }
        }
    }
}
