//! Rejections of one's own.

use std::io;

use axum::Json;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{Empty, Full, StreamBody};

use crate::http::{support, support::*};

/// One request an hour.
fn once() -> RateLimitLayer {
    support::layer([shared("once", "1/h")]).0
}

#[tokio::test]
async fn status_headers_and_body_come_from_the_closure_with_rate_limit_headers_added() {
    let layer = once().on_rejection(|rejected: &Rejected, parts: &Parts| {
        let policies = rejected.decision().policies();
        let policies: Vec<_> = policies.map(|own| own.policy().to_owned()).collect();
        let wait = rejected.retry_after().duration().map(|wait| wait.as_secs());
        let body = Json(json!({ "path": parts.uri.path(), "policies": policies, "wait": wait }));
        (StatusCode::IM_A_TEAPOT, [("x-why", "tea")], body).into_response()
    });
    let response = second(&layer).await;
    assert_eq!(response.status, 418);
    assert_eq!(response.field("x-why"), "tea");
    assert_eq!(response.field("content-type"), "application/json");
    let expected = json!({ "path": "/", "policies": ["once"], "wait": 3_600 });
    assert_eq!(response.json(), expected);
    assert_eq!(response.retry_after(), Some(3_600));
    assert_eq!(response.field("ratelimit"), r#""once";r=0;t=3600"#);
    assert_eq!(response.field("ratelimit-policy"), r#""once";q=1;w=3600"#);
}

#[tokio::test]
async fn rate_limit_headers_set_by_the_closure_are_kept() {
    let layer = once().on_rejection(|_, _| {
        let response = Response::builder()
            .header("retry-after", "7")
            .header("RateLimit", "\"mine\";r=0");
        response.status(429).body(Empty::new()).expect("a response")
    });
    let answer = second(&layer).await;
    assert_eq!(answer.retry_after(), Some(7));
    assert_eq!(answer.field("ratelimit"), "\"mine\";r=0");
    assert_eq!(answer.field("ratelimit-policy"), r#""once";q=1;w=3600"#);
    assert!(answer.body.is_empty());

    let layer = once().on_rejection(|_, _| {
        let response = Response::builder().header("retry-after", "7").status(429);
        response.body(Empty::new()).expect("a response")
    });
    let answer = second(&layer).await;
    // Never later than the `Retry-After` beside it, wherever that was set.
    assert_eq!(answer.field("ratelimit"), r#""once";r=0;t=7"#);
}

/// A rejection in an application's own words.
fn busy<B>(body: B) -> Response<B> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

#[tokio::test]
async fn a_body_of_any_type_with_bytes_data_is_accepted() {
    let frames =
        || ["wo", "rd"].map(|part| Ok::<_, io::Error>(http_body::Frame::data(part.into())));
    let layers = [
        once().on_rejection(|_, _| busy("word".to_owned())),
        once().on_rejection(|_, _| busy(Full::new(Bytes::from("word")).boxed())),
        once().on_rejection(move |_, _| busy(StreamBody::new(stream::iter(frames())))),
        once().on_rejection(|_, _| (StatusCode::SERVICE_UNAVAILABLE, "word").into_response()),
    ];
    for layer in layers {
        let response = second(&layer).await;
        assert_eq!((response.status.as_u16(), response.text()), (503, "word"));
    }
    // One that fails ends with its error.
    let broken = once().on_rejection(move |_, _| {
        let [word, _] = frames();
        let frames = [word, Err(io::Error::other("broken"))];
        busy(StreamBody::new(stream::iter(frames)))
    });
    assert_eq!(second(&broken).await.body, b"wo");
}

#[tokio::test]
async fn a_success_in_place_of_a_rejection_is_replaced_by_the_default_response() {
    for status in [200, 299] {
        let (log, _guard) = Log::of_errors();
        let layer = once().on_rejection(move |rejected, _| {
            assert_eq!(rejected.status(), 429);
            let response = Response::builder().status(status);
            let body = Full::new(Bytes::from("try later"));
            response.body(body).expect("a response")
        });
        let answer = second(&layer).await;
        assert_eq!(answer.status, 429);
        answer.is_problem_that_no_cache_stores();
        assert!(answer.retry_after().is_some());
        assert_eq!(log.lines("").len(), 1, "{}", log.text());
        let error = &log.lines("on_rejection returned a 2xx status")[0];
        assert!(error.contains(&format!("status={status}")), "{error}");
    }
    let redirect = once().on_rejection(|_, _| {
        let response = Response::builder().status(303).header("location", "/busy");
        response.body(Empty::new()).expect("a response")
    });
    assert_eq!(second(&redirect).await.status, 303);
}

#[tokio::test]
async fn the_responses_extensions_are_kept_and_the_requests_visible() {
    #[derive(Clone, PartialEq, Debug)]
    struct User(&'static str);

    let layer = once().on_rejection(|_, parts| {
        let mut response = busy(Empty::new());
        let user: &User = parts.extensions.get().expect("a user");
        response.extensions_mut().insert(user.clone());
        response
    });
    let app = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    for expected in [None, Some(User("alice"))] {
        let request = empty(Request::get("/").extension(User("alice")));
        let response = app.clone().oneshot(request).await.expect("a response");
        assert_eq!(response.extensions().get(), expected.as_ref());
    }
}

#[tokio::test]
async fn every_kind_of_rejection_goes_to_the_closure() {
    let response = |rejected: &Rejected, _: &Parts| busy(rejected.to_string());
    let keyless = shared("tenants", "1/h").key(extract::header("x-tenant"));
    let (layer, _) = support::layer([keyless.missing_key(MissingKey::Reject)]);
    let completed = send(&hello(&layer.on_rejection(response)), to("/")).await;
    let expected = r#"the request has no key for policy "tenants": it lacks the header x-tenant"#;
    assert_eq!(completed.text(), expected);
    assert_eq!(completed.retry_after(), None);

    let layer = rejecting(StubStore::unreachable(), shared("burst", "10/s"))
        .on_rejection(|_, _| (StatusCode::BAD_GATEWAY, "later").into_response());
    let completed = send(&hello(&layer), to("/")).await;
    assert_eq!(completed.status, 502);
    assert_eq!(completed.retry_after(), Some(1));
    // A gRPC call gets a gRPC status nevertheless.
    let layer = once().on_rejection(|_, _| -> Response<String> { panic!("asked about a call") });
    let app = hello(&layer);
    status(&app, "/").await;
    let response = send(&app, grpc_call()).await;
    assert_eq!(response.status, 200);
    assert_eq!(response.field("grpc-status"), "8");
}

#[tokio::test]
async fn no_cache_stores_a_rejection_and_a_mesh_knows_it_by_a_fixed_field() {
    let name = HeaderName::from_static("x-envoy-ratelimited");
    let fixed = || once().rejection_header(name.clone(), HeaderValue::from_static("true"));
    let closure =
        || fixed().on_rejection(|rejected, _| (rejected.status(), "busy").into_response());
    for layer in [fixed(), closure()] {
        let response = second(&layer).await;
        assert_eq!(response.status, 429);
        assert_eq!(response.field("cache-control"), "no-store");
        assert_eq!(response.field("x-envoy-ratelimited"), "true");
        let call = send(&hello(&layer), grpc_call()).await;
        assert_eq!(call.field("grpc-status"), "8");
        assert_eq!(call.field("cache-control"), "no-store");
        assert_eq!(call.field("x-envoy-ratelimited"), "true");
    }
    // What the closure sets stays.
    let own = fixed().on_rejection(|_, _| {
        let fields = [
            ("cache-control", "private, max-age=1"),
            ("x-envoy-ratelimited", "own"),
        ];
        (StatusCode::TOO_MANY_REQUESTS, fields, "busy").into_response()
    });
    let response = second(&own).await;
    assert_eq!(response.field("cache-control"), "private, max-age=1");
    assert_eq!(response.field("x-envoy-ratelimited"), "own");
    // A store failure, and a handler's rejection; an admitted request has no such field.
    let failed = rejecting(StubStore::unreachable(), shared("burst", "10/s"));
    let failed = failed.rejection_header(name.clone(), HeaderValue::from_static("true"));
    let response = send(&hello(&failed), to("/")).await;
    assert_eq!(response.status, 503);
    assert_eq!(response.field("x-envoy-ratelimited"), "true");
    async fn rejected() -> Rejected {
        let limiter = stores::limiter(Limiter::builder(), [shared("inner", "1/h")]);
        let _ = limiter.admit("k").await;
        limiter.admit("k").await.expect_err("rejected")
    }
    let (around, _) = support::layer([shared("outer", "9/h")]);
    let around = around.rejection_header(name, HeaderValue::from_static("true"));
    let around = around.refund_handler_rejections(true);
    // tonic's status too.
    let status = async || tonic::Status::from(rejected().await).into_http::<Body>();
    let app = Router::new()
        .route("/", get(rejected))
        .route("/status", get(status))
        .layer(around.clone());
    for (path, code) in [("/", 429), ("/status", 200)] {
        let response = send(&app, to(path)).await;
        assert_eq!(response.status, code);
        assert_eq!(response.field("x-envoy-ratelimited"), "true", "{path}");
        assert_eq!(charged(&around, "outer").await, 0, "{path}");
    }
}
