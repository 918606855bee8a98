//! What a client sees: the fields on every response, and the rejection.

use crate::http::support::*;
use tower_http::cors::CorsLayer;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
pub(crate) const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Both headers of a response.
pub(crate) fn fields(response: &TestResponse) -> [String; 2] {
    ["ratelimit-policy", "ratelimit"].map(|name| response.field(name))
}

/// A layer whose store fails.
pub(crate) fn on_a_dead_store(on_store_error: OnStoreError) -> RateLimitLayer {
    RateLimitLayer::builder()
        .store(StubStore::unreachable())
        .policy(shared("burst", "10/s"))
        .on_store_error(on_store_error)
        .built()
}

#[tokio::test]
async fn every_response_reports_the_quota_and_what_remains() {
    let (layer, clock) = layer([shared("burst", "2/10s")]);
    let app = hello(&layer);
    for (status, limit) in [
        // One unit refills in five seconds; the reset of the first response is that of the full quota.
        (200, r#""burst";r=1;t=5"#),
        (200, r#""burst";r=0;t=5"#),
        (429, r#""burst";r=0;t=5"#),
    ] {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status.as_u16(), status);
        assert_eq!(fields(&response), [r#""burst";q=2;w=10"#, limit]);
    }
    clock.advance(secs(5));
    let response = send(&app, to("/")).await;
    let expected = [r#""burst";q=2;w=10"#, r#""burst";r=0;t=5"#];
    assert_eq!(fields(&response), expected);
}

#[tokio::test]
async fn responses_under_several_policies_list_each_in_order() {
    let day = shared("a day's worth", "5000/day").strategy(FixedWindow);
    let (layer, clock) = layer([shared("burst", "2/s"), day]);
    let app = hello(&layer);
    let policies = r#""burst";q=2;w=1, "a day's worth";q=5000;w=86400"#;
    let response = send(&app, to("/")).await;
    let limits = r#""burst";r=1;t=1, "a day's worth";r=4999;t=86400"#;
    assert_eq!(fields(&response), [policies, limits]);
    // One field line each, as the draft has it.
    assert_eq!(response.headers.get_all("ratelimit").iter().count(), 1);

    send(&app, to("/")).await;
    clock.advance(ms(1));
    let response = send(&app, to("/")).await;
    assert_eq!(response.status, 429);
    // The policy that has room would report t=86400; a rejection's `t` is never later than its `Retry-After`.
    let limits = r#""burst";r=0;t=1, "a day's worth";r=4998;t=1"#;
    assert_eq!(fields(&response), [policies, limits]);
}

#[tokio::test]
async fn ratelimit_policy_has_the_rate_and_ratelimit_what_remains_of_the_burst() {
    let (layer, _) = layer([shared("burst", "10/s burst 30")]);
    let response = send(&hello(&layer), to("/")).await;
    let expected = [r#""burst";q=10;w=1"#, r#""burst";r=29;t=3"#];
    assert_eq!(fields(&response), expected);
}

#[tokio::test]
async fn a_rejection_is_problem_details_that_no_cache_may_store() {
    let narrow = ["narrow (per hour)", "narrow too"].map(|name| shared(name, "1/h"));
    let app = app([shared("wide", "100/h")].into_iter().chain(narrow));
    assert_eq!(status(&app, "/").await, 200);
    let response = send(&app, to("/")).await;
    assert_eq!(response.status, 429);
    response.is_problem_that_no_cache_stores();
    assert_eq!(response.retry_after(), Some(3_600));
    assert_eq!(
        response.json(),
        json!({
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": ["narrow (per hour)", "narrow too"],
        })
    );
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_rejected_without_a_retry_after() {
    let small = shared("small", "5/s").cost_with(|_| 6);
    let (layer, _) = layer([small, shared("other", "100/s")]);
    let response = send(&hello(&layer), to("/")).await;
    assert_eq!(response.status, 429);
    assert_eq!(response.retry_after(), None);
    assert_eq!(response.json()["violated-policies"], json!(["small"]));
    let detail = "The request costs 6, of which policy small allows at most 5.";
    assert_eq!(response.json()["detail"], detail);
    assert_eq!(charged(&layer, "other").await, 0);
    // A page for people contains it too.
    let page = send(&hello(&layer), with("accept", "text/html")).await;
    assert!(page.text().contains(detail), "{}", page.text());
    let call = Request::post("/").header("content-type", "application/grpc");
    let response = send(&hello(&layer), empty(call)).await;
    let message = format!("{detail} Exceeded: small.");
    assert_eq!(response.field("grpc-message"), message);
}

#[tokio::test]
async fn a_cost_of_any_size_has_a_response_and_does_not_panic() {
    let bytes = |parts: &Parts| {
        let length = parts.headers.get("content-length");
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        length.unwrap_or(0)
    };
    let of = |name| shared(name, "1000/s").cost_with(bytes);
    let (layer, _) = layer([of("even"), of("window").strategy(FixedWindow)]);
    let app = hello(&layer);
    for cost in [0, 1, 1_001, 1 << 53, u64::MAX] {
        let response = send(&app, with("content-length", cost.to_string())).await;
        let expected = if cost > 1 { 429 } else { 200 };
        assert_eq!(response.status.as_u16(), expected, "{cost}");
        assert_eq!(response.retry_after(), None, "{cost}");
    }
    assert_eq!(charged(&layer, "even").await, 1);
}

#[tokio::test]
async fn under_cors_a_page_can_read_rejections_and_preflights_are_free() {
    let (layer, _) = layer([shared("once", "1/h")]);
    let app = hello(&layer).layer(CorsLayer::permissive());
    let from_a_page = |method: Method| {
        let request = Request::builder().method(method).uri("/");
        let request = request.header("origin", "https://a.example");
        empty(request.header("access-control-request-method", "GET"))
    };
    for _ in 0..3 {
        assert_eq!(send(&app, from_a_page(Method::OPTIONS)).await.status, 200);
    }
    assert_eq!(charged(&layer, "once").await, 0);

    assert_eq!(send(&app, from_a_page(Method::GET)).await.status, 200);
    let rejected = send(&app, from_a_page(Method::GET)).await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.field("access-control-allow-origin"), "*");
    assert_eq!(rejected.retry_after(), Some(3_600));
}
