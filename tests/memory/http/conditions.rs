//! Which requests a policy applies to: by path, however a server may read it, by method and by functions.

use crate::http::support::*;
use axum::routing::any;

fn anywhere(layer: &RateLimitLayer) -> Router {
    Router::new()
        .fallback(any(async || ""))
        .layer(layer.clone())
}

/// How many of the requests to these paths are counted.
async fn counted(layer: &RateLimitLayer, paths: &[&str]) -> Vec<u64> {
    let mut counted = Vec::new();
    for path in paths {
        let before = charged(layer, "p").await;
        assert_eq!(status(&anywhere(layer), path).await, 200, "{path}");
        counted.push(charged(layer, "p").await - before);
    }
    counted
}

#[tokio::test]
async fn a_path_that_can_be_read_in_two_ways_is_never_skipped() {
    let (layer, _) = layer([shared("p", "1000/h").skip_path("/static/*")]);
    // The last ones: `.`, `/` and NUL in more bytes than they need, a surrogate, half a character, and no UTF-8 at all.
    let odd = "a;b ;/../admin ..;/admin a%3bb a%00.css %c0%ae%c0%ae/admin %e0%80%af %c0%80 \
        %ed%a0%80 %c3 %ff";
    let plain = "a.css a%20b.css caf%C3%A9 \u{e9} %E2%82%AC?a;b%00";
    for (paths, expected) in [(odd, 1), (plain, 0)] {
        for path in paths.split(' ') {
            let path = format!("/static/{path}");
            assert_eq!(counted(&layer, &[&path]).await, [expected], "{path}");
        }
    }
}

#[tokio::test]
async fn a_policy_applies_only_to_the_configured_requests() {
    let login = shared("p", "1000/h")
        .only_path("/login")
        .only_path("/admin/*")
        .only_method(Method::POST)
        .only_method(Method::GET)
        .only_with(|parts| parts.uri.query() != Some("free"))
        .only_with(|parts| !parts.headers.contains_key("x-internal"));
    let (layer, _) = layer([login]);
    let named = ["/login", "/login?a=b", "/admin/", "/admin/a/b"];
    assert_eq!(counted(&layer, &named).await, [1; 4]);
    let others = ["/", "/logins", "/admin", "/login?free"];
    assert_eq!(counted(&layer, &others).await, [0; 4]);
    // What a server may take for the path that is named.
    let odd = "/%6cogin /login;a=b /x/../login /x%2f..%2flogin /%c0%ae";
    let odd: Vec<_> = odd.split(' ').collect();
    assert_eq!(counted(&layer, &odd).await, [1; 5]);
    let before = charged(&layer, "p").await;
    let internal = Request::post("/login").header("x-internal", "1");
    for request in [Request::put("/login"), internal] {
        let response = send(&anywhere(&layer), empty(request)).await;
        assert_eq!(response.status, 200);
    }
    assert_eq!(charged(&layer, "p").await, before);
}

#[tokio::test]
async fn skipping_takes_precedence_over_applying() {
    let policy = shared("p", "1000/h").only_path("/a/*").skip_path("/a/b");
    let (layer, _) = layer([policy]);
    assert_eq!(counted(&layer, &["/a/", "/a/b", "/b"]).await, [1, 0, 0]);
}

#[tokio::test]
async fn a_limiter_applies_only_to_the_configured_requests() {
    let builder = RateLimitLayer::builder().policy(shared("p", "1000/h"));
    let builder = builder.only_path("/api/*").only_method(Method::GET);
    let layer = builder.only_with(|parts| parts.uri.query().is_none());
    let layer = layer.built();
    let paths = ["/api/x", "/api/x?q", "/other"];
    assert_eq!(counted(&layer, &paths).await, [1, 0, 0]);
}

#[tokio::test]
async fn within_a_nested_router_conditions_see_the_path_that_the_client_sent() {
    let full = |parts: &Parts| extract::original_path(parts) == "/api/health";
    let policy = shared("p", "1000/h").only_path("/api/*");
    let policy = policy.skip_path("/api/status").skip_with(full);
    let (layer, _) = layer([policy]);
    let app = Router::new().nest("/api", anywhere(&layer));
    for (path, counted) in [("/api/health", 0), ("/api/status", 0), ("/api/other", 1)] {
        let before = charged(&layer, "p").await;
        assert_eq!(status(&app, path).await, 200);
        let after = charged(&layer, "p").await;
        assert_eq!(after - before, counted, "{path}");
    }
}

#[test]
fn a_condition_that_can_never_be_met_is_a_config_error() {
    // Not a path, one that servers read differently, and a router's pattern.
    let no_paths = ["", "health", "*", "/a*", "/*/b", "/a?b", "/a#b"].map(|path| (path, "/health"));
    let odd = ["/a;b", "/a%00", "/%c0%ae", "/a/../b", "/a%2fb"].map(|path| (path, "/health"));
    let patterns = ["/users/{id}", "/{*rest}", "/users/:id", "/:tenant/*"];
    let patterns = patterns.map(|path| (path, "a router's pattern: /users/*"));
    for (path, said) in no_paths.into_iter().chain(odd).chain(patterns) {
        let policy = || shared("p", "1/h");
        let skips = Limiter::builder().policy(policy().skip_path(path));
        let applies = Limiter::builder().policy(policy().only_path(path));
        let all = Limiter::builder().policy(policy()).skip_path(path);
        for (builder, name) in [(skips, Some("p")), (applies, Some("p")), (all, None)] {
            let error = builder.build().expect_err(path);
            assert_eq!(error.policy(), name, "{path}");
            assert!(error.value().contains("the path"), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }
    // A colon within a segment is no pattern, and a brace may be sent in percent-encoding.
    let paths = "/caf%C3%A9 /caf\u{e9} /a%20b /* /a/* /v1/jobs:cancel /users/%7Bid%7D";
    for path in paths.split(' ') {
        for policy in [
            shared("p", "1/h").skip_path(path),
            shared("p", "1/h").only_path(path),
        ] {
            assert!(Limiter::builder().policy(policy).build().is_ok(), "{path}");
        }
    }
}
