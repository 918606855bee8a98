//! What each mode charges, by what becomes of a request.

use std::{
    convert::Infallible,
    future::{IntoFuture, pending},
    io,
    pin::pin,
    time::Duration,
};

use http::{Method, Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Empty};
use tokio::sync::oneshot;
use tollgate::{
    Charge, Policy, RateLimitLayer, layer::ResponseBody, outcome, outcome::End, outcome::Outcome,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{
    Body, KEY, World, answer, broken, call, code, counted, data, even, grpc, ms, pass, read,
    request, secs, streamed, text, used, waits, window,
};

type Says = fn(&Outcome<'_>) -> bool;

/// The ready-made judges, and which of 200, 302, 404 and 503 they charge.
const JUDGES: [(Says, [u64; 4]); 4] = [
    (outcome::success, [1, 1, 0, 0]),
    (outcome::failure, [0, 0, 1, 1]),
    (outcome::client_error, [0, 0, 1, 0]),
    (outcome::server_error, [0, 0, 0, 1]),
];

/// Both modes that go by the outcome.
fn both_modes(judge: Says) -> [Charge; 2] {
    [Charge::on_response(judge), Charge::reserve(judge)]
}

/// One policy `p` of each mode, with a layer of its own.
fn layers(world: &World, judge: Says) -> [RateLimitLayer; 2] {
    let [response, reserve] = both_modes(judge);
    [
        world.layer([window("response", "5/min").charge(response)]),
        world.layer([window("reserve", "5/min").charge(reserve)]),
    ]
}

async fn charged(layer: &RateLimitLayer) -> u64 {
    let policies = layer.limiter().policies().map(Policy::name);
    let name = policies.last().expect("a policy").to_owned();
    used(layer.limiter(), &name).await
}

async fn forget(layer: &RateLimitLayer) {
    let _ = layer.limiter().reset(KEY).await;
}

/// What a response is charged, when its body has been read as servers do.
async fn cost(layer: &RateLimitLayer, response: Response<Body>) -> u64 {
    forget(layer).await;
    pass(layer, response).await;
    charged(layer).await
}

#[tokio::test]
async fn both_modes_charge_what_the_outcome_says_and_nothing_else() {
    for world in World::both() {
        for (judge, expected) in JUDGES {
            for layer in layers(&world, judge) {
                for (status, expected) in [200, 302, 404, 503].into_iter().zip(expected) {
                    let cost = cost(&layer, text(status)).await;
                    assert_eq!(cost, expected, "{} {layer:?} {status}", world.name());
                }
            }
        }
    }
}

#[tokio::test]
async fn on_response_charges_nothing_on_arrival_and_reserve_charges_at_once() {
    for world in World::both() {
        for (layer, expected) in layers(&world, outcome::success).into_iter().zip([0, 1]) {
            let (started, starts) = oneshot::channel();
            let (finish, finished) = oneshot::channel::<()>();
            let channels = std::sync::Arc::new(std::sync::Mutex::new(Some((started, finished))));
            let handler = move |_| {
                let channels = channels.lock().expect("a lock").take();
                async move {
                    let (started, finished) = channels.expect("one request");
                    started.send(()).expect("a test");
                    finished.await.expect("a test");
                    Ok::<_, Infallible>(text(200))
                }
            };
            let asking = layer.clone();
            let asked = tokio::spawn(async move { call(&asking, request(), handler).await });
            starts.await.expect("a handler");
            assert_eq!(charged(&layer).await, expected, "{}", world.name());
            finish.send(()).expect("a handler");
            let answer = asked.await.expect("no panic").expect("an answer");
            assert_eq!(charged(&layer).await, expected, "the body is not sent yet");
            read(answer).await.expect("a body");
            assert_eq!(charged(&layer).await, 1, "{}", world.name());
        }
    }
}

#[tokio::test]
async fn a_full_policy_refuses_under_each_mode_and_the_handler_is_not_called() {
    for world in World::both() {
        for layer in layers(&world, outcome::success) {
            for _ in 0..5 {
                assert_eq!(pass(&layer, text(200)).await, 200);
            }
            let handler = |_| async { unreachable!("a refused request has a handler") };
            let refused = call::<_, _, Infallible>(&layer, request(), handler).await;
            let Ok(refused) = refused;
            assert_eq!(refused.status(), 429);
            assert!(refused.headers().contains_key("retry-after"));
            read(refused).await.expect("a body");
            assert_eq!(charged(&layer).await, 5, "{}", world.name());
        }
    }
}

#[tokio::test]
async fn a_reserved_place_that_is_given_back_can_be_had_in_the_same_window() {
    for world in World::both() {
        let reserve = Charge::reserve(outcome::success);
        let layer = world.layer([window("p", "1/min").charge(reserve)]);
        for _ in 0..10 {
            assert_eq!(pass(&layer, text(500)).await, 500, "{}", world.name());
            world.advance(secs(1));
        }
        assert_eq!(pass(&layer, text(200)).await, 200);
        assert_eq!(pass(&layer, text(200)).await, 429);
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn an_even_rate_in_use_gets_back_a_reserved_charge_to_the_fraction() {
    for world in World::both() {
        let reserve = Charge::reserve(outcome::success);
        let layer = world.layer([even("p", "10/min").charge(reserve)]);
        let limiter = layer.limiter();
        for _ in 0..3 {
            // Four of six seconds each are used, and 10 ms pass while a fifth is under way.
            assert_eq!(limiter.check(KEY).times(4).await.admitted(), 4);
            let under_way = answer(&layer, text(500)).await;
            assert_eq!(waits(limiter, "p").await.1, secs(30));
            world.advance(ms(10));
            read(under_way).await.expect("a body");
            // As if it had never been, but for the 10 ms: they may have been its own, and are not given back twice.
            let (_, full) = waits(limiter, "p").await;
            assert!((secs(24) - ms(10)..=secs(24)).contains(&full), "{full:?}");
            world.advance(full);
            let admitted = limiter.check(KEY).times(11).await.admitted();
            assert_eq!(admitted, 10, "{}", world.name());
            forget(&layer).await;
        }
    }
}

#[tokio::test]
async fn an_even_rate_gets_a_whole_burst_back_but_for_the_time_that_passed() {
    for world in World::both() {
        let reserve = Charge::reserve(outcome::success);
        let layer = world.layer([even("p", "10/min").charge(reserve)]);
        let mut under_way = Vec::new();
        for _ in 0..10 {
            under_way.push(answer(&layer, text(500)).await);
        }
        assert_eq!(pass(&layer, text(500)).await, 429);
        world.advance(ms(10));
        for answer in under_way {
            read(answer).await.expect("a body");
        }
        let (_, full) = waits(layer.limiter(), "p").await;
        assert!(full <= 10 * ms(10), "{full:?} on {}", world.name());
        world.advance(full);
        let admitted = layer.limiter().check(KEY).times(11).await.admitted();
        assert_eq!(admitted, 10, "{}", world.name());
    }
}

#[tokio::test]
async fn an_even_rate_that_was_full_is_full_again_10_ms_later() {
    for world in World::both() {
        let reserve = Charge::reserve(outcome::success);
        let layer = world.layer([even("p", "10/min").charge(reserve)]);
        let under_way = answer(&layer, text(500)).await;
        world.advance(ms(10));
        read(under_way).await.expect("a body");
        let (_, full) = waits(layer.limiter(), "p").await;
        assert_eq!(full, Duration::ZERO, "{}", world.name());
        let admitted = layer.limiter().check(KEY).times(11).await.admitted();
        assert_eq!(admitted, 10, "{}", world.name());
    }
}

/// Drops a request while its handler waits.
async fn hang_up(layer: &RateLimitLayer) {
    let (started, starts) = tokio::sync::mpsc::channel::<()>(1);
    let handler = move |_| {
        let started = started.clone();
        async move {
            started.send(()).await.expect("a test");
            pending::<Result<Response<Body>, Infallible>>().await
        }
    };
    let mut starts = starts;
    let mut asking = Box::pin(call(layer, request(), handler));
    tokio::select! {
        _ = &mut asking => panic!("an answer"),
        started = starts.recv() => started.expect("a handler"),
    }
    drop(asking);
}

#[tokio::test]
async fn a_request_that_is_dropped_before_its_response_is_charged() {
    for world in World::both() {
        // Whatever the outcome would have said: nobody knows it.
        for judge in [outcome::success, outcome::failure] {
            for layer in layers(&world, judge) {
                forget(&layer).await;
                hang_up(&layer).await;
                assert_eq!(charged(&layer).await, 1, "{} {layer:?}", world.name());
            }
        }
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_before_its_response_is_free_where_told_so() {
    for world in World::both() {
        for judge in [outcome::success as Says, outcome::failure] {
            for charge in both_modes(judge) {
                let free = window("p", "5/min").charge(charge.when_dropped(false));
                let layer = world.layer([free]);
                hang_up(&layer).await;
                assert_eq!(charged(&layer).await, 0, "{} {layer:?}", world.name());
            }
        }
    }
}

#[tokio::test]
async fn hanging_up_does_not_evade_a_limit_on_failures() {
    for world in World::both() {
        let charge = Charge::on_response(outcome::failure);
        let layer = world.layer([window("login", "3/min").charge(charge)]);
        for _ in 0..3 {
            hang_up(&layer).await;
        }
        assert_eq!(pass(&layer, text(200)).await, 429, "{}", world.name());
    }
}

#[tokio::test]
async fn a_service_that_fails_has_failed() {
    for world in World::both() {
        for (judge, expected) in [
            (outcome::success as Says, 0),
            (outcome::failure, 1),
            (outcome::server_error, 1),
            (outcome::client_error, 0),
            (|outcome| outcome.end() == End::ServiceFailed, 1),
            (|outcome| outcome.status().is_some(), 0),
        ] {
            for layer in layers(&world, judge) {
                forget(&layer).await;
                let handler = |_| async { Err(io::Error::other("down")) };
                let failed = call(&layer, request(), handler).await;
                assert_eq!(failed.expect_err("an error").to_string(), "down");
                assert_eq!(charged(&layer).await, expected, "{}", world.name());
            }
        }
    }
}

#[tokio::test]
async fn a_service_that_fails_is_no_dropped_request() {
    for world in World::both() {
        let charge = Charge::on_response(outcome::failure).when_dropped(false);
        let layer = world.layer([window("p", "5/min").charge(charge)]);
        let handler = |_| async { Err(io::Error::other("down")) };
        assert!(call(&layer, request(), handler).await.is_err());
        assert_eq!(charged(&layer).await, 1, "{}", world.name());
    }
}

#[tokio::test]
async fn a_handler_that_panics_is_charged_as_one_that_was_dropped() {
    for world in World::both() {
        for (dropped, expected) in [(true, 1), (false, 0)] {
            for charge in both_modes(outcome::success) {
                let charge = charge.when_dropped(dropped);
                let layer = world.layer([window("p", "5/min").charge(charge)]);
                forget(&layer).await;
                let asking = layer.clone();
                let handler = |_| async { panic!("a handler that panics, on purpose") };
                let asked =
                    async move { call::<_, _, Infallible>(&asking, request(), handler).await };
                assert!(tokio::spawn(asked).await.is_err_and(|e| e.is_panic()));
                assert_eq!(charged(&layer).await, expected, "{}", world.name());
            }
        }
    }
}

#[tokio::test]
async fn a_service_that_panics_when_it_is_called_is_charged_too() {
    for world in World::both() {
        for layer in layers(&world, outcome::success) {
            let panics = service_fn(
                |_: Request<()>| -> std::future::Ready<Result<Response<Body>, Infallible>> {
                    panic!("a service that panics, on purpose")
                },
            );
            let asked = layer.layer(panics).oneshot(request());
            assert!(tokio::spawn(asked).await.is_err_and(|e| e.is_panic()));
            assert_eq!(charged(&layer).await, 1, "{}", world.name());
        }
    }
}

#[tokio::test]
async fn a_body_that_fails_half_way_makes_its_response_a_failure() {
    for world in World::both() {
        for (judge, expected) in [
            (outcome::success as Says, 0),
            (outcome::failure, 1),
            (|outcome| outcome.end() == End::BodyFailed, 1),
            // The status was sent, and it was none of an error.
            (outcome::server_error, 0),
        ] {
            for layer in layers(&world, judge) {
                let cost = cost(&layer, streamed(vec![data(), broken(), data()])).await;
                assert_eq!(cost, expected, "{} {layer:?}", world.name());
            }
        }
    }
}

/// Reads one frame, and goes.
async fn go_half_way(layer: &RateLimitLayer, response: Response<Body>) {
    let mut body = answer(layer, response).await.into_body();
    assert!(!body.is_end_stream());
    let frame = body.frame().await.expect("a frame").expect("no error");
    assert!(frame.is_data());
    drop(body);
}

#[tokio::test]
async fn a_success_whose_client_goes_half_way_stays_charged() {
    for world in World::both() {
        for (judge, expected) in [
            (outcome::success as Says, 1),
            (outcome::failure, 0),
            (|outcome| outcome.end() == End::BodyDropped, 1),
        ] {
            for layer in layers(&world, judge) {
                forget(&layer).await;
                go_half_way(&layer, streamed(vec![data(), data()])).await;
                assert_eq!(charged(&layer).await, expected, "{}", world.name());
                // Nor before the first frame.
                forget(&layer).await;
                drop(answer(&layer, streamed(vec![data(), data()])).await);
                assert_eq!(charged(&layer).await, expected, "{}", world.name());
            }
        }
    }
}

/// What a plain HTTP server does with a response that has no body: it looks whether it is at its end, and drops it.
async fn glance(answer: Response<ResponseBody<Body>>) {
    assert!(answer.body().is_end_stream());
    drop(answer);
}

#[tokio::test]
async fn responses_without_a_body_are_completed() {
    let empty = |status: u16| {
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        let response = Response::builder().status(status);
        response.body(body).expect("a response")
    };
    for world in World::both() {
        for layer in layers(&world, |outcome| outcome.end() == End::Completed) {
            for status in [200, 204, 304, 404] {
                forget(&layer).await;
                glance(answer(&layer, empty(status)).await).await;
                assert_eq!(charged(&layer).await, 1, "{status} {}", world.name());
                assert_eq!(cost(&layer, empty(status)).await, 1, "{status}");
            }
            // These never have one, so nobody looks at it.
            for status in [204, 304] {
                forget(&layer).await;
                drop(answer(&layer, streamed_with(status)).await);
                assert_eq!(charged(&layer).await, 1, "{status} {}", world.name());
            }
        }
    }
}

fn streamed_with(status: u16) -> Response<Body> {
    let mut response = streamed(Vec::new());
    *response.status_mut() = status.try_into().expect("a status");
    response
}

#[tokio::test]
async fn the_answer_to_a_head_is_completed_though_its_body_is_never_sent() {
    for world in World::both() {
        for layer in layers(&world, |outcome| outcome.end() == End::Completed) {
            let mut head = request();
            *head.method_mut() = Method::HEAD;
            let handler = |_| async { Ok::<_, Infallible>(streamed(vec![data()])) };
            let Ok(answer) = call(&layer, head, handler).await;
            drop(answer);
            assert_eq!(charged(&layer).await, 1, "{}", world.name());
        }
    }
}

#[tokio::test]
async fn axum_handlers_that_return_a_status_alone_are_judged_by_it() {
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
                let answer = app.clone().oneshot(request).await.expect("no error");
                drop(answer);
                assert_eq!(charged(&layer).await, expected, "{method} {uri}");
            }
        }
    }
}

#[tokio::test]
async fn a_grpc_call_is_judged_by_its_trailers() {
    for world in World::both() {
        for (trailer, success) in [("0", 1), ("14", 0), ("16", 0)] {
            for layer in layers(&world, outcome::success) {
                for frames in [vec![data(), code(trailer)], vec![code(trailer)]] {
                    let cost = cost(&layer, grpc(frames)).await;
                    assert_eq!(cost, success, "{trailer} {}", world.name());
                }
            }
            for layer in layers(&world, outcome::failure) {
                let cost = cost(&layer, grpc(vec![data(), data(), code(trailer)])).await;
                assert_eq!(cost, 1 - success, "{trailer} {}", world.name());
            }
        }
    }
}

#[tokio::test]
async fn a_grpc_call_that_fails_at_once_is_judged_by_its_head() {
    for world in World::both() {
        for (head, success) in [("0", 1), ("7", 0)] {
            for layer in layers(&world, outcome::success) {
                let mut response = grpc(Vec::new());
                let code = head.parse().expect("a value");
                response.headers_mut().insert("grpc-status", code);
                assert_eq!(cost(&layer, response).await, success, "{}", world.name());
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
async fn a_grpc_call_whose_client_goes_before_the_trailers_is_a_dropped_one() {
    for world in World::both() {
        for (dropped, expected) in [(true, 1), (false, 0)] {
            for judge in [outcome::success as Says, outcome::failure] {
                for charge in both_modes(judge) {
                    let charge = charge.when_dropped(dropped);
                    let layer = world.layer([window("p", "5/min").charge(charge)]);
                    forget(&layer).await;
                    go_half_way(&layer, grpc(vec![data(), data(), code("0")])).await;
                    assert_eq!(charged(&layer).await, expected, "{}", world.name());
                }
            }
        }
    }
}

#[tokio::test]
async fn an_outcome_is_judged_only_when_the_stream_ends_and_only_once() {
    use std::sync::{Arc, Mutex};
    for world in World::both() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = seen.clone();
        let charge = Charge::on_response(move |outcome| {
            let status = outcome.status().map(|status| status.as_u16());
            let seen = (outcome.end(), status, outcome.grpc_status());
            sees.lock().expect("a lock").push(seen);
            true
        });
        let layer = world.layer([window("p", "5/min").charge(charge)]);
        let mut body = answer(&layer, grpc(vec![data(), data(), code("5")]))
            .await
            .into_body();
        for _ in 0..3 {
            assert_eq!(*seen.lock().expect("a lock"), []);
            assert_eq!(charged(&layer).await, 0, "{}", world.name());
            body.frame().await.expect("a frame").expect("no error");
        }
        assert!(body.frame().await.is_none());
        assert_eq!(charged(&layer).await, 1, "{}", world.name());
        drop(body);
        assert_eq!(charged(&layer).await, 1, "{}", world.name());
        let expected = [(End::Completed, Some(200), Some(5))];
        assert_eq!(*seen.lock().expect("a lock"), expected);
    }
}

#[tokio::test]
async fn a_judge_sees_the_header_fields_of_the_response() {
    for world in World::both() {
        let cached: Says = |outcome| {
            outcome
                .headers()
                .is_none_or(|h| !h.contains_key("x-cached"))
        };
        for layer in layers(&world, cached) {
            let mut response = text(200);
            let value = "1".parse().expect("a value");
            response.headers_mut().insert("x-cached", value);
            assert_eq!(cost(&layer, response).await, 0, "{}", world.name());
            assert_eq!(cost(&layer, text(200)).await, 1, "{}", world.name());
        }
    }
}

#[tokio::test]
async fn policies_of_every_mode_in_one_layer_settle_each_for_itself() {
    for world in World::both() {
        let layer = world.layer([
            window("arrival", "9/min"),
            window("reserve", "9/min").charge(Charge::reserve(outcome::success)),
            even("even", "9/min").charge(Charge::reserve(outcome::success)),
            window("success", "9/min").charge(Charge::on_response(outcome::success)),
            window("failure", "9/min").charge(Charge::on_response(outcome::failure)),
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
            assert_eq!(used, expected, "{policy} {}", world.name());
        }
    }
}

#[tokio::test]
async fn what_one_policy_refuses_is_settled_under_none() {
    for world in World::both() {
        let any: Says = |_| true;
        let layer = world.layer([
            window("response", "9/min").charge(Charge::on_response(any)),
            window("reserve", "9/min").charge(Charge::reserve(any)),
            window("full", "1/min"),
        ]);
        for expected in [200, 429, 429, 429] {
            assert_eq!(pass(&layer, text(200)).await, expected);
        }
        for policy in ["response", "reserve", "full"] {
            let used = used(layer.limiter(), policy).await;
            assert_eq!(used, 1, "{policy} {}", world.name());
        }
    }
}

#[tokio::test]
async fn the_cost_of_a_request_is_what_is_charged_and_given_back() {
    for world in World::both() {
        for (charge, name) in both_modes(outcome::success).into_iter().zip(["on", "re"]) {
            let layer = world.layer([window(name, "10/min").cost(4).charge(charge)]);
            assert_eq!(pass(&layer, text(500)).await, 500);
            assert_eq!(charged(&layer).await, 0, "{}", world.name());
            assert_eq!(pass(&layer, text(200)).await, 200);
            assert_eq!(pass(&layer, text(200)).await, 200);
            assert_eq!(pass(&layer, text(200)).await, 429);
            assert_eq!(charged(&layer).await, 8, "{}", world.name());
        }
    }
}

/// Sends a request through two layers.
async fn stacked(outer: &RateLimitLayer, inner: &RateLimitLayer, status: u16) -> u16 {
    let handler =
        service_fn(move |_: Request<()>| async move { Ok::<_, Infallible>(text(status)) });
    let service = outer.layer(inner.layer(handler));
    let Ok(answer) = service.oneshot(request()).await;
    let status = answer.status().as_u16();
    let mut body = pin!(answer.into_body());
    while let Some(frame) = body.frame().await {
        frame.expect("no error");
    }
    status
}

#[tokio::test]
async fn stacked_layers_settle_each_for_itself() {
    for world in World::both() {
        let outer = world.layer([
            window("outer", "9/min").charge(Charge::reserve(outcome::success)),
            window("outer failures", "9/min").charge(Charge::on_response(outcome::failure)),
        ]);
        let inner = world.layer([
            window("inner", "9/min").charge(Charge::reserve(outcome::failure)),
            window("inner successes", "9/min").charge(Charge::on_response(outcome::success)),
        ]);
        for status in [200, 200, 500] {
            assert_eq!(stacked(&outer, &inner, status).await, status);
        }
        assert_eq!(used(outer.limiter(), "outer").await, 2, "{}", world.name());
        assert_eq!(used(outer.limiter(), "outer failures").await, 1);
        assert_eq!(used(inner.limiter(), "inner").await, 1, "{}", world.name());
        assert_eq!(used(inner.limiter(), "inner successes").await, 2);
    }
}

#[tokio::test]
async fn what_a_layer_further_in_refuses_is_given_back_once() {
    for world in World::both() {
        let outer = world.layer([
            window("arrival", "9/min"),
            window("reserve", "9/min").charge(Charge::reserve(outcome::success)),
        ]);
        let inner = world.layer([window("full", "1/min")]);
        for expected in [200, 429, 429, 429] {
            assert_eq!(stacked(&outer, &inner, 200).await, expected);
        }
        for policy in ["arrival", "reserve"] {
            let used = used(outer.limiter(), policy).await;
            assert_eq!(used, 1, "{policy} {}", world.name());
        }
    }
}

#[tokio::test]
async fn what_a_layer_further_in_refuses_is_no_failure_to_the_layer_around_it() {
    for world in World::both() {
        let outer = world.layer([
            window("response", "9/min").charge(Charge::on_response(outcome::failure)),
            window("reserve", "9/min").charge(Charge::reserve(outcome::failure)),
        ]);
        let inner = world.layer([window("full", "1/min")]);
        for expected in [200, 429, 429, 429] {
            assert_eq!(stacked(&outer, &inner, 200).await, expected);
        }
        for policy in ["reserve", "response"] {
            let used = used(outer.limiter(), policy).await;
            assert_eq!(used, 0, "{policy} {}", world.name());
        }
    }
}

#[tokio::test]
async fn a_limiter_without_a_layer_only_checks_under_on_response() {
    for world in World::both() {
        let charge = Charge::on_response(outcome::failure);
        let limiter = world.limiter([window("p", "2/min").charge(charge)]);
        for _ in 0..5 {
            assert!(counted(&limiter.check(KEY).await));
        }
        assert_eq!(used(&limiter, "p").await, 0, "{}", world.name());
        for _ in 0..2 {
            assert!(counted(&limiter.charge(KEY, 1).await));
        }
        assert!(!counted(&limiter.check(KEY).await), "{}", world.name());
        assert_eq!(used(&limiter, "p").await, 2, "{}", world.name());
    }
}

/// Asks a real server for `path`, and reads all that it says; returns how the outcome's judge saw it end.
async fn over_a_socket(method: &str, path: &str) -> End {
    use axum::{Router, http::StatusCode, routing::get};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (saw, mut sees) = tokio::sync::mpsc::unbounded_channel();
    let charge = Charge::on_response(move |outcome| saw.send(outcome.end()).is_ok());
    let layer = World::memory().layer([window("p", "5/min").charge(charge)]);
    let pieces = || axum::body::Body::new(streamed(vec![data(), data()]).into_body());
    let app = Router::new()
        .route("/text", get(async || "text"))
        .route("/stream", get(async move || pieces()))
        .route(
            "/length",
            get(async move || ([("content-length", "8")], pieces())),
        )
        .route("/status", get(async || StatusCode::ACCEPTED))
        .route("/none", get(async || StatusCode::NO_CONTENT))
        .layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(axum::serve(listener, app).into_future());
    let mut client = tokio::net::TcpStream::connect(address)
        .await
        .expect("a server");
    let request = format!("{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.expect("a link");
    let mut said = Vec::new();
    client.read_to_end(&mut said).await.expect("an answer");
    let end = sees.recv().await.expect("an outcome");
    server.abort();
    end
}

#[tokio::test]
async fn what_a_server_has_sent_in_full_is_completed() {
    for method in ["GET", "HEAD"] {
        for path in ["/text", "/stream", "/status", "/none"] {
            let end = over_a_socket(method, path).await;
            assert_eq!(end, End::Completed, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_stream_whose_length_is_told_is_completed_when_that_was_sent() {
    for method in ["GET", "HEAD"] {
        let end = over_a_socket(method, "/length").await;
        assert_eq!(end, End::Completed, "{method}");
    }
}
