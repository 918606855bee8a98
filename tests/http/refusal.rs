//! What a client is told: the fields on every answer, and the refusal.

use std::time::Duration;

use axum::{Router, extract::State, routing::get};
use http::{Method, Request, StatusCode, request::Parts};
use serde_json::json;
use tollgate::{
    FixedWindow, Key, Limiter, ManualClock, MissingKey, OnStoreError, Policy, Quota,
    RateLimitLayer, RedisStore, Refused, extract,
};
use tower_http::cors::CorsLayer;

use crate::support::{Answer, hello, layer, send, shared, status, store, to, used, with};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Both fields of an answer.
fn fields(answer: &Answer) -> [String; 2] {
    ["ratelimit-policy", "ratelimit"].map(|name| answer.field(name).unwrap_or_default())
}

/// A layer whose store is a port that nobody listens on.
fn on_a_dead_store(on_store_error: OnStoreError) -> RateLimitLayer {
    let url = format!("redis://127.0.0.1:{}", testkit::free_port());
    RateLimitLayer::builder()
        .store(RedisStore::open(url).expect("a store"))
        .policy(shared("burst", "10/s"))
        .on_store_error(on_store_error)
        .build()
        .expect("a layer")
}

#[tokio::test]
async fn every_answer_says_how_much_may_pass_and_how_much_is_left() {
    let (layer, clock) = layer([shared("burst", "2/10s")]);
    let app = hello(&layer);
    for (status, limit) in [
        // One unit comes back in five seconds; the first answer waits for the full quota.
        (200, r#""burst";r=1;t=5"#),
        (200, r#""burst";r=0;t=5"#),
        (429, r#""burst";r=0;t=5"#),
    ] {
        let answer = send(&app, to("/")).await;
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(fields(&answer), [r#""burst";q=2;w=10"#, limit]);
    }
    clock.advance(Duration::from_secs(5));
    let answer = send(&app, to("/")).await;
    assert_eq!(
        fields(&answer),
        [r#""burst";q=2;w=10"#, r#""burst";r=0;t=5"#]
    );
}

#[tokio::test]
async fn answers_under_several_policies_list_each_of_them_in_order() {
    let day = shared("a day's worth", "5000/day").strategy(FixedWindow);
    let (layer, clock) = layer([shared("burst", "2/s"), day]);
    let app = hello(&layer);
    let policies = r#""burst";q=2;w=1, "a day's worth";q=5000;w=86400"#;
    let answer = send(&app, to("/")).await;
    let limits = r#""burst";r=1;t=1, "a day's worth";r=4999;t=86400"#;
    assert_eq!(fields(&answer), [policies, limits]);
    // One field line each, as the draft has it.
    assert_eq!(answer.headers.get_all("ratelimit").iter().count(), 1);

    send(&app, to("/")).await;
    clock.advance(Duration::from_millis(1));
    let answer = send(&app, to("/")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    // The policy that has room would say t=86400; a refusal's `t` is never later than its `Retry-After`.
    let limits = r#""burst";r=0;t=1, "a day's worth";r=4998;t=1"#;
    assert_eq!(fields(&answer), [policies, limits]);
}

#[tokio::test]
async fn the_burst_is_what_can_be_left_and_the_rate_is_what_is_promised() {
    let (layer, _) = layer([shared("burst", "10/s burst 30")]);
    let answer = send(&hello(&layer), to("/")).await;
    assert_eq!(
        fields(&answer),
        [r#""burst";q=10;w=1"#, r#""burst";r=29;t=1"#]
    );
}

#[tokio::test]
async fn a_window_of_less_than_a_second_is_left_out_and_retry_after_is_one() {
    let (layer, clock) = layer([shared("burst", "3/500ms").strategy(FixedWindow)]);
    let app = hello(&layer);
    let first = send(&app, to("/")).await;
    assert_eq!(fields(&first), [r#""burst";q=3"#, r#""burst";r=2;t=1"#]);
    assert_eq!(
        [status(&app, "/").await, status(&app, "/").await],
        [200, 200]
    );
    clock.advance(Duration::from_micros(499_999));
    let refused = send(&app, to("/")).await;
    assert_eq!(fields(&refused), [r#""burst";q=3"#, r#""burst";r=0;t=1"#]);
    // One microsecond is left, and "Retry-After: 0" would be an invitation to come back at once.
    assert_eq!(refused.retry_after(), Some(1));
    clock.advance(Duration::from_micros(1));
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn who_comes_back_after_exactly_that_many_seconds_is_let_in() {
    for quota in [
        "1/s",
        "3/s",
        "1/1500ms",
        "7/min",
        "3/7s burst 5",
        "1000/h",
        "2/day",
        "1/month",
    ] {
        for window in [false, true] {
            let policy = shared("burst", quota);
            let (layer, clock) = match window {
                true if quota.contains("burst") => continue,
                true => layer([policy.strategy(FixedWindow)]),
                false => layer([policy]),
            };
            let app = hello(&layer);
            for round in 0..4 {
                // Somewhere within a second.
                clock.advance(Duration::from_micros(1_234_567 * round));
                let refused = loop {
                    let answer = send(&app, to("/")).await;
                    if answer.status == StatusCode::TOO_MANY_REQUESTS {
                        break answer;
                    }
                };
                let wait = refused.retry_after().expect("a Retry-After");
                assert!(wait >= 1, "{quota}: {wait}");
                assert!(refused.resets().iter().all(|t| *t <= wait), "{refused:?}");
                // Rounded up by less than a second: a whole one earlier, it is refused.
                clock.advance(Duration::from_secs(wait - 1));
                assert!(
                    wait == 1 || status(&app, "/").await == 429,
                    "{quota}: {wait}"
                );
                clock.advance(Duration::from_secs(1));
                assert_eq!(status(&app, "/").await, 200, "{quota}: {wait}");
            }
        }
    }
}

#[tokio::test]
async fn retry_after_speaks_for_the_policies_that_refused() {
    let (layer, clock) = layer([shared("second", "1/s"), shared("hour", "3/h")]);
    let app = hello(&layer);
    assert_eq!(status(&app, "/").await, 200);
    let refused = send(&app, to("/")).await;
    assert_eq!(refused.retry_after(), Some(1));
    assert_eq!(refused.json()["violated-policies"], json!(["second"]));
    for _ in 0..2 {
        clock.advance(Duration::from_secs(1));
        assert_eq!(status(&app, "/").await, 200);
    }
    // Now both refuse, and the longer wait is the one that helps.
    let refused = send(&app, to("/")).await;
    assert_eq!(
        refused.json()["violated-policies"],
        json!(["second", "hour"])
    );
    assert_eq!(refused.retry_after(), Some(1_198));
    clock.advance(Duration::from_secs(1_198));
    assert_eq!(status(&app, "/").await, 200);
}

/// A layer of a second's burst, and of a daily quota that is in debt and that these requests cost nothing of.
async fn in_debt_for_nothing() -> (RateLimitLayer, ManualClock) {
    let burst = shared("burst", "1/s").missing_key(MissingKey::Skip);
    let (layer, clock) = layer([burst, shared("exports", "1/day").cost(0)]);
    let charge = layer
        .limiter()
        .charge([("exports", Key::global())], 2)
        .await;
    let exports = charge.verdict("exports").expect("a verdict");
    assert_eq!(exports.reset_after(), Duration::from_secs(2 * 86_400));
    (layer, clock)
}

#[tokio::test]
async fn retry_after_is_silent_on_a_policy_that_costs_nothing() {
    let (layer, clock) = in_debt_for_nothing().await;
    let app = hello(&layer);
    assert_eq!(status(&app, "/").await, 200);
    let refused = send(&app, to("/")).await;
    assert_eq!(refused.json()["violated-policies"], json!(["burst"]));
    assert_eq!(refused.retry_after(), Some(1));
    clock.advance(Duration::from_secs(1));
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn a_look_at_a_request_that_would_pass_says_so() {
    let (layer, _) = in_debt_for_nothing().await;
    let looked = layer.limiter().peek(Key::global()).await;
    assert_eq!(status(&hello(&layer), "/").await, 200);
    assert!(looked.is_admitted(), "{looked:?}");
}

#[tokio::test]
async fn a_refusal_is_problem_details_that_nobody_may_cache() {
    let (layer, _) = layer([
        shared("wide", "100/h"),
        shared("narrow (per hour)", "1/h"),
        shared("narrow too", "1/h"),
    ]);
    let app = hello(&layer);
    assert_eq!(status(&app, "/").await, 200);
    let answer = send(&app, to("/")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        answer.field("content-type").as_deref(),
        Some("application/problem+json")
    );
    assert_eq!(answer.field("cache-control").as_deref(), Some("no-store"));
    assert_eq!(
        answer.field("content-length"),
        Some(answer.body.len().to_string())
    );
    assert_eq!(answer.retry_after(), Some(3_600));
    assert_eq!(
        answer.json(),
        json!({
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": ["narrow (per hour)", "narrow too"],
        })
    );
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_refused_without_a_retry_after() {
    let (layer, _) = layer([shared("small", "5/s").cost(6), shared("other", "100/s")]);
    let answer = send(&hello(&layer), to("/")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.retry_after(), None);
    assert_eq!(answer.json()["violated-policies"], json!(["small"]));
    assert_eq!(used(layer.limiter(), "other", Key::global()).await, 0);
}

#[tokio::test]
async fn a_cost_of_any_size_is_an_answer_and_no_panic() {
    let bytes = |parts: &Parts| {
        let length = parts.headers.get("content-length");
        length
            .and_then(|length| length.to_str().ok()?.parse().ok())
            .unwrap_or(0)
    };
    let of = |name| shared(name, "1000/s").cost_with(bytes);
    let (layer, _) = layer([of("even"), of("window").strategy(FixedWindow)]);
    let app = hello(&layer);
    for (cost, expected) in [
        (0, 200),
        (1, 200),
        (1_001, 429),
        (1 << 53, 429),
        (u64::MAX, 429),
    ] {
        let answer = send(&app, with("content-length", cost.to_string())).await;
        assert_eq!(answer.status.as_u16(), expected, "{cost}");
        assert_eq!(answer.retry_after(), None, "{cost}");
    }
    assert_eq!(used(layer.limiter(), "even", Key::global()).await, 1);
}

async fn checked(State(limiter): State<Limiter>) -> Result<&'static str, Refused> {
    limiter.check(Key::global()).await.into_result()?;
    Ok("hello")
}

/// What a handler gets that asks the limiter itself, and what the layer gets.
async fn both_ways(layer: &RateLimitLayer) -> [Answer; 2] {
    let handler = Router::new()
        .route("/", get(checked))
        .with_state(layer.limiter().clone());
    [
        send(&handler, to("/")).await,
        send(&hello(layer), to("/")).await,
    ]
}

#[tokio::test]
async fn a_handlers_refusal_equals_the_layers_own() {
    let (layer, _) = layer([shared("few", "2/min"), shared("many", "50/h")]);
    let [handlers, layers] = both_ways(&layer).await;
    assert_eq!([handlers.status, layers.status], [StatusCode::OK; 2]);
    let [handlers, layers] = both_ways(&layer).await;
    assert_eq!(handlers.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(handlers, layers);

    let [handlers, layers] = both_ways(&on_a_dead_store(OnStoreError::Refuse)).await;
    assert_eq!(handlers.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(handlers, layers);
}

#[tokio::test]
async fn a_handlers_refusal_for_want_of_a_key_equals_the_layers_own() {
    async fn keyless(State(limiter): State<Limiter>) -> Result<&'static str, Refused> {
        limiter
            .check([("other", Key::global())])
            .await
            .into_result()?;
        Ok("hello")
    }

    let tenants = Policy::new("tenants", Quota::requests(1).per_hour());
    let (layer, _) = layer([
        tenants.key(extract::header("x-tenant")),
        shared("other", "9/h"),
    ]);
    let handler = Router::new()
        .route("/", get(keyless))
        .with_state(layer.limiter().clone());
    let handlers = send(&handler, to("/")).await;
    assert_eq!(handlers.status, StatusCode::BAD_REQUEST);
    assert_eq!(handlers, send(&hello(&layer), to("/")).await);
}

#[tokio::test]
async fn a_store_at_fault_refuses_with_503_where_it_is_told_to() {
    let answer = send(&hello(&on_a_dead_store(OnStoreError::Refuse)), to("/")).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.retry_after(), Some(1));
    assert_eq!(
        answer.field("content-type").as_deref(),
        Some("application/problem+json")
    );
    assert_eq!(answer.field("cache-control").as_deref(), Some("no-store"));
    assert_eq!(
        answer.field("content-length"),
        Some(answer.body.len().to_string())
    );
    let problem = answer.json();
    assert_eq!(problem["type"], REDUCED_CAPACITY);
    assert_eq!(problem["status"], 503);
    assert!(problem["title"].is_string());
    // Nothing is known of any quota, so nothing is said of any; least of all where the store is.
    assert_eq!(fields(&answer), ["", ""]);
    assert!(!String::from_utf8_lossy(&answer.body).contains("127.0.0.1"));
}

#[tokio::test]
async fn a_store_at_fault_lets_all_pass_unless_told_otherwise() {
    let app = hello(&on_a_dead_store(OnStoreError::default()));
    for _ in 0..12 {
        let answer = send(&app, to("/")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(fields(&answer), ["", ""]);
    }
}

#[tokio::test]
async fn a_missing_key_is_400_and_charges_nothing() {
    let tenants = Policy::new("tenants", Quota::requests(1).per_hour());
    let (layer, _) = layer([
        shared("other", "9/h"),
        tenants.key(extract::header("x-tenant")),
    ]);
    let answer = send(&hello(&layer), to("/")).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        answer.field("content-type").as_deref(),
        Some("application/problem+json")
    );
    assert_eq!(answer.field("cache-control").as_deref(), Some("no-store"));
    assert_eq!(answer.retry_after(), None);
    let problem = answer.json();
    assert_eq!(
        (&problem["type"], &problem["status"]),
        (&json!("about:blank"), &json!(400))
    );
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(detail.contains("tenants"), "{detail}");
    let other = layer
        .limiter()
        .peek([("other", Key::global()), ("tenants", Key::global())]);
    assert_eq!(
        other.await.verdict("other").expect("a verdict").remaining(),
        9
    );
}

#[tokio::test]
async fn a_policy_that_is_skipped_is_not_spoken_of() {
    let tenants = Policy::new("tenants", Quota::requests(1).per_hour())
        .key(extract::header("x-tenant"))
        .missing_key(MissingKey::Skip);
    let (layer, _) = layer([tenants]);
    let answer = send(&hello(&layer), to("/")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(fields(&answer), ["", ""]);
}

#[tokio::test]
async fn a_refusal_under_cors_can_be_read_by_the_page_and_preflights_are_free() {
    let (layer, _) = layer([shared("once", "1/h")]);
    let app = hello(&layer).layer(CorsLayer::permissive());
    let from_a_page = |method: Method| {
        let request = Request::builder().method(method).uri("/");
        let request = request.header("origin", "https://a.example");
        let request = request.header("access-control-request-method", "GET");
        request.body(axum::body::Body::empty()).expect("a request")
    };
    for _ in 0..3 {
        assert_eq!(
            send(&app, from_a_page(Method::OPTIONS)).await.status,
            StatusCode::OK
        );
    }
    assert_eq!(used(layer.limiter(), "once", Key::global()).await, 0);

    assert_eq!(
        send(&app, from_a_page(Method::GET)).await.status,
        StatusCode::OK
    );
    let refused = send(&app, from_a_page(Method::GET)).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        refused.field("access-control-allow-origin").as_deref(),
        Some("*")
    );
    assert_eq!(refused.retry_after(), Some(3_600));
}

#[tokio::test]
async fn the_largest_numbers_that_are_counted_are_still_integers_of_a_structured_field() {
    // RFC 9651, 3.3.1: at most fifteen digits.
    let (store, _) = store();
    for quota in ["1000000000000000/day", "999999999999999/day"] {
        let policy = shared("window", quota).strategy(FixedWindow);
        let layer = RateLimitLayer::builder()
            .store(store.clone())
            .policy(policy)
            .build();
        let Ok(layer) = layer else { continue };
        let answer = send(&hello(&layer), to("/")).await;
        for field in fields(&answer) {
            for number in field.split(|c: char| !c.is_ascii_digit()) {
                assert!(number.len() <= 15, "{field}");
            }
        }
    }
}
