//! Which requests a policy or a limiter applies to: by path, however a server may read it, by method and by functions; and preflights.

use axum::routing::any;
use http::request::Builder;

use crate::http::support::*;

/// Any path and method, behind `layer`.
fn anywhere(layer: &RateLimitLayer) -> Router {
    let route = any(async |admission: Admission| format!("{:?}", admission.remaining("p")));
    Router::new().fallback(route).layer(layer.clone())
}

/// How many of the requests to these paths are counted.
async fn counted(layer: &RateLimitLayer, paths: &str) -> String {
    let mut counted = String::new();
    for path in paths.split(' ') {
        let before = charged(layer, "p").await;
        assert_eq!(status(&anywhere(layer), path).await, 200, "{path}");
        counted += &(charged(layer, "p").await - before).to_string();
    }
    counted
}

fn by(method: &str, path: &str) -> Builder {
    Request::builder().method(method).uri(path)
}

#[tokio::test]
async fn a_path_that_can_be_read_in_two_ways_is_never_skipped() {
    let (layer, _) = layer([shared("p", "1000/h")
        .skip_path("/static/*")
        .skip_path("/health")]);
    // The last ones: `.`, `/` and NUL in more bytes than they need, a surrogate, half a character, and no UTF-8 at all.
    let odd = "a;b ;/../admin ..;/admin ../admin a/../../admin ./a a/.. %2e%2e/admin %2E./admin ..%2fadmin a%2F.. %252e%252e/admin \
        ..\\admin a%5cb a% a%2 a%zz a%3bb a%3Bb a%00.css %c0%ae%c0%ae/admin %e0%80%af %c0%80 %ed%a0%80 %c3 %ff";
    let plain = "a.css a%20b.css caf%C3%A9 \u{e9} %E2%82%AC?a;b%00";
    for (paths, expected) in [(odd, "1"), (plain, "0")] {
        for path in paths.split(' ') {
            let path = format!("/static/{path}");
            assert_eq!(counted(&layer, &path).await, expected, "{path}");
        }
    }
    let others =
        "/ /health/ /healthy /static /statics/a /health?full=1 /health /static/ /static/..a";
    assert_eq!(counted(&layer, others).await, "111110000");
}

#[tokio::test]
async fn a_policy_applies_only_to_the_configured_requests_that_it_does_not_skip() {
    let login = shared("p", "1000/h")
        .only_path("/login")
        .only_path("/admin/*")
        .skip_path("/admin/health")
        .only_method(Method::POST)
        .only_method(Method::GET)
        .only_with(|parts| parts.uri.query() != Some("free"))
        .only_with(|parts| !parts.headers.contains_key("x-internal"));
    let (layer, _) = layer([login]);
    let named = "/login /login?a=b /admin/ /admin/a/b /admin/health";
    assert_eq!(counted(&layer, named).await, "11110");
    assert_eq!(
        counted(&layer, "/ /logins /admin /login?free").await,
        "0000"
    );
    // What a server may take for the path that is named.
    let odd = "/%6cogin /login;a=b /a;b /x/../login /x/%2e%2e/login /x%2f..%2flogin /static/..;/login /login%00 /login%c0 /%c0%ae";
    assert_eq!(counted(&layer, odd).await, "1".repeat(10));
    let others = "/login/ /caf%C3%A9 /login%20";
    assert_eq!(counted(&layer, others).await, "000");
    let before = charged(&layer, "p").await;
    let internal = Request::post("/login").header("x-internal", "1");
    for request in [Request::put("/login"), internal] {
        let response = send(&anywhere(&layer), empty(request)).await;
        assert_eq!(response.status, 200);
    }
    assert_eq!(charged(&layer, "p").await, before);
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

#[tokio::test]
async fn what_a_policy_skips_others_count_and_what_a_layer_skips_none_does() {
    let is_internal = |parts: &Parts| parts.headers.contains_key("x-internal");
    let policy = shared("p", "1/h")
        .skip_path("/health")
        .skip_method(Method::HEAD);
    let (policies, _) = layer([policy.skip_with(is_internal), shared("all", "100/h")]);
    let builder = RateLimitLayer::builder()
        .skip_path("/health")
        .skip_with(is_internal);
    let builder = builder
        .policy(shared("p", "1/h"))
        .policy(shared("all", "100/h"));
    let layer = builder
        .skip_method(Method::HEAD)
        .only_path("/*")
        .only_with(|_| true);
    for (layer, others) in [(policies, 3), (layer.built(), 0)] {
        let app = anywhere(&layer);
        let internal = by("GET", "/").header("x-internal", "1");
        for request in [by("GET", "/health"), by("HEAD", "/"), internal] {
            let response = send(&app, empty(request)).await;
            assert_eq!(response.status, 200);
            let shown = response.field("ratelimit-policy");
            assert_eq!(shown.starts_with("\"all\""), others > 0, "{shown}");
            // A handler still has its admission.
            let is_head = response.body.is_empty();
            assert!(is_head || response.body == b"None");
        }
        assert_eq!(charged(&layer, "p").await, 0);
        assert_eq!(charged(&layer, "all").await, others);
        assert_eq!(statuses(&app, 2).await, [200, 429]);
        // A check has no path.
        let limiter = layer.limiter();
        assert!(!limiter.check(Key::global()).await.is_admitted());
    }
    let free = RateLimitLayer::builder().policy(shared("p", "1/h"));
    let free = free.only_path("/api/*").only_method(Method::GET);
    let free = free.only_with(|parts| parts.uri.query().is_none()).built();
    assert_eq!(counted(&free, "/other /api/x?q /api/x").await, "001");
}

fn preflight() -> Builder {
    by("OPTIONS", "/")
        .header("origin", "https://a.example")
        .header("access-control-request-method", "PUT")
}

#[tokio::test]
async fn only_preflights_are_free_unless_they_count() {
    let (layer, _) = layer([shared("p", "1/h")]);
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
    let counting = RateLimitLayer::builder().policy(shared("p", "1/h"));
    let app = anywhere(&counting.count_preflights(true).built());
    for expected in [200, 429] {
        assert_eq!(send(&app, empty(preflight())).await.status, expected);
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
