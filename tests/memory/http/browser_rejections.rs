//! Rejections of browsers: a page to read, and what a page of another origin may read.

use tollgate::layer::exposed_headers;
use tower_http::cors::CorsLayer;

use crate::http::{on_rejection::once, support::*};

#[tokio::test]
async fn browsers_are_rejected_with_a_page_and_other_clients_with_json() {
    let firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (accept, text) in [
        (firefox, true),
        ("text/plain", true),
        ("TEXT/*;q=0.5", true),
        ("*/*", false),
        ("", false),
        ("application/json", false),
        ("text/html, application/json;q=0.1", false),
        ("text/html, application/problem+json", false),
        ("text/html, application/json;q=0", true),
        ("text/html;q=0.000, */*", false),
        ("image/avif,image/webp", false),
        (";;,,q=", false),
    ] {
        let app = hello(&once());
        status(&app, "/").await;
        let response = send(&app, with("accept", accept)).await;
        assert_eq!(response.status, 429);
        let media_type = response.field("content-type");
        let expected = match text {
            true => "text/plain; charset=utf-8",
            false => "application/problem+json",
        };
        assert_eq!(media_type, expected, "{accept}");
        let length = response.body.len().to_string();
        assert_eq!(response.field("content-length"), length);
        assert_eq!(response.field("cache-control"), "no-store");
        assert_eq!(response.retry_after(), Some(3_600));
        if text {
            let words = String::from_utf8(response.body).expect("text");
            assert!(words.starts_with("429 Too Many Requests\n"), "{words}");
            assert_contains(&words, ["Exceeded: once. Try again in 3600 seconds."]);
        }
    }
    // Several lines are one list; what is no text is nothing.
    let app = hello(&once());
    status(&app, "/").await;
    let request = Request::get("/").header("accept", "text/html");
    let request = empty(request.header("accept", "application/json"));
    let response = send(&app, request).await;
    assert_eq!(response.field("content-type"), "application/problem+json");
    let response = send(&app, with("accept", b"text/\xff")).await;
    assert_eq!(response.field("content-type"), "application/problem+json");
}

/// What a browser lets a page of another origin read of a response.
fn readable_by_the_page(response: &TestResponse) -> HeaderMap {
    let origin = response.field("access-control-allow-origin");
    assert_eq!(origin, "https://a.example");
    let exposed = response.field("access-control-expose-headers");
    let seen = exposed.split(',').filter_map(|name| {
        let name = name.trim().parse::<http::HeaderName>().ok()?;
        Some((name.clone(), response.headers.get(name)?.clone()))
    });
    seen.collect()
}

#[tokio::test]
async fn a_page_of_another_origin_can_read_the_rejection_and_its_retry_after() {
    let own = once().on_rejection(|_, _| (StatusCode::TOO_MANY_REQUESTS, "slow").into_response());
    let triple = once().headers(Headers::x_ratelimit());
    for (layer, limit) in [
        (once(), "ratelimit"),
        (own, "ratelimit-policy"),
        (triple, "x-ratelimit-remaining"),
        (once().headers(Headers::draft_06()), "ratelimit-reset"),
    ] {
        let cors = CorsLayer::new()
            .allow_origin(["https://a.example".parse().expect("an origin")])
            .allow_methods([Method::GET])
            .expose_headers(exposed_headers());
        let app = hello(&layer).layer(cors);
        let from_a_page = |method: Method| {
            let request = Request::builder().method(method).uri("/");
            let request = request.header("origin", "https://a.example");
            request
                .header("accept", "*/*")
                .header("sec-fetch-mode", "cors")
        };
        for expected in [200, 429] {
            let preflight = from_a_page(Method::OPTIONS);
            let preflight = preflight.header("access-control-request-method", "GET");
            assert_eq!(send(&app, empty(preflight)).await.status, 200);
            let response = send(&app, empty(from_a_page(Method::GET))).await;
            assert_eq!(response.status, expected);
            let seen = readable_by_the_page(&response);
            assert!(seen.contains_key(limit), "{seen:?}");
            assert_eq!(seen.contains_key("retry-after"), expected == 429);
        }
    }
}
