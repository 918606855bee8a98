//! Requests that a limit doesn't concern.

use crate::http::support::*;
use axum::routing::any;
use http::request::Builder;

/// Any path and method, behind `layer`.
fn anywhere(layer: &RateLimitLayer) -> Router {
    let route = any(async |admission: Admission| format!("{:?}", admission.remaining("p")));
    Router::new().fallback(route).layer(layer.clone())
}

fn by(method: &str, path: &str) -> Builder {
    Request::builder().method(method).uri(path)
}

#[tokio::test]
async fn a_policy_skips_by_path_method_and_closure_and_others_still_apply() {
    let skipping = |name: &str| -> Policy {
        shared(name, "1/h")
            .skip_path("/health")
            .skip_path("/static/*")
            .skip_method(Method::HEAD)
            .skip_with(|parts| parts.headers.contains_key("x-internal"))
    };
    let build = |b: LimiterBuilder| b.policy(skipping("p")).policy(shared("all", "100/h"));
    for (limiter, _server) in on_each_store(build) {
        let layer = RateLimitLayer::new(limiter);
        let app = anywhere(&layer);
        for _ in 0..2 {
            for request in [
                by("GET", "/health?full=1"),
                by("GET", "/static/a/b.css"),
                by("HEAD", "/"),
                by("GET", "/").header("x-internal", "1"),
            ] {
                let response = send(&app, empty(request)).await;
                assert_eq!(response.status, 200);
                let policies = response.field("ratelimit-policy");
                assert!(policies.starts_with("\"all\""), "{policies}");
            }
        }
        assert_eq!(charged(&layer, "p").await, 0);
        assert_eq!(charged(&layer, "all").await, 8);
        assert_eq!(status(&app, "/healthy").await, 200);
        for counted in ["/", "/health/", "/static", "/static/../admin"] {
            assert_eq!(status(&app, counted).await, 429, "{counted}");
        }
        assert_eq!(status(&app, "/health").await, 200);
        // A check has no path.
        let limiter = layer.limiter();
        assert!(!limiter.check(Key::global()).await.is_admitted());
    }
}

#[tokio::test]
async fn a_layer_that_skips_a_request_applies_no_policy_to_it() {
    let build = |b: LimiterBuilder| {
        b.policy(shared("p", "1/h"))
            .policy(shared("q", "1/h"))
            .skip_path("/health")
            .skip_method(Method::HEAD)
            .skip_with(|parts| parts.uri.query() == Some("free"))
    };
    for (limiter, _server) in on_each_store(build) {
        let layer = RateLimitLayer::new(limiter);
        let app = anywhere(&layer);
        for _ in 0..3 {
            for request in [to("/health"), empty(by("HEAD", "/")), to("/?free")] {
                let response = send(&app, request).await;
                assert_eq!(response.status, 200);
                assert_eq!(response.field("ratelimit"), "");
            }
        }
        let response = send(&app, to("/health")).await;
        assert_eq!(response.body, b"None", "a handler still has its admission");
        assert_eq!(charged(&layer, "p").await, 0);
        assert_eq!(status(&app, "/").await, 200);
        assert_eq!(status(&app, "/").await, 429);
    }
}

fn preflight() -> Builder {
    by("OPTIONS", "/")
        .header("origin", "https://a.example")
        .header("access-control-request-method", "PUT")
}

#[tokio::test]
async fn only_preflights_are_free() {
    let build = |b: LimiterBuilder| b.policy(shared("p", "1/h"));
    for (limiter, _server) in on_each_store(build) {
        let layer = RateLimitLayer::new(limiter);
        let app = anywhere(&layer);
        for _ in 0..3 {
            assert_eq!(send(&app, empty(preflight())).await.status, 200);
        }
        assert_eq!(charged(&layer, "p").await, 0);
        assert_eq!(status(&app, "/").await, 200);
        let (origin, method) = ("origin", "access-control-request-method");
        let with = |origin_sent: &str, sent: &str| {
            by("OPTIONS", "/")
                .header(origin, origin_sent)
                .header(method, sent)
        };
        for less in [
            by("OPTIONS", "/"),
            by("OPTIONS", "/").header(origin, "https://a.example"),
            by("OPTIONS", "/").header(method, "PUT"),
            with("", "PUT"),
            with("null", ""),
            with("null", "P T"),
            preflight().header(origin, "https://b.example"),
            preflight().header(method, "GET"),
            preflight().method("GET"),
            preflight().method("POST"),
            preflight().method("options"),
        ] {
            let request = empty(less);
            let text = format!("{request:?}");
            assert_eq!(send(&app, request).await.status, 429, "{text}");
        }
        assert_eq!(send(&app, empty(preflight())).await.status, 200);
    }
}

#[tokio::test]
async fn preflights_count_if_configured() {
    let build = |b: LimiterBuilder| b.policy(shared("p", "2/h")).count_preflights(true);
    for (limiter, _server) in on_each_store(build) {
        let layer = RateLimitLayer::new(limiter);
        let app = anywhere(&layer);
        for expected in [200, 200, 429] {
            assert_eq!(send(&app, empty(preflight())).await.status, expected);
        }
    }
}
