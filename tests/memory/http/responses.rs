//! What a client sees: the fields on every response, and the rejection by a layer or a handler.

use crate::http::support::*;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Both headers of a response.
pub(crate) fn fields(response: &TestResponse) -> [String; 2] {
    ["ratelimit-policy", "ratelimit"].map(|name| response.field(name))
}

/// A layer whose store fails.
fn on_a_dead_store(on_store_error: OnStoreError) -> RateLimitLayer {
    RateLimitLayer::builder()
        .store(StubStore::unreachable())
        .policy(shared("burst", "10/s"))
        .on_store_error(on_store_error)
        .built()
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
    assert_eq!(response.violated(), ["small"]);
    let detail = "The request costs 6, of which policy small allows at most 5.";
    assert_eq!(response.detail(), detail);
    assert_eq!(charged(&layer, "other").await, 0);
    // A page for people contains it too.
    let page = send(&hello(&layer), with("accept", "text/html")).await;
    assert!(page.text().contains(detail), "{}", page.text());
    let response = send(&hello(&layer), grpc_call()).await;
    let message = format!("{detail} Exceeded: small.");
    assert_eq!(response.field("grpc-message"), message);
}

/// The rejections of a handler that calls the limiter itself, and of the layer.
async fn both_ways(layer: &RateLimitLayer, headers: Option<Headers>) -> [TestResponse; 2] {
    let limiter = layer.limiter().clone();
    let handler = async move || -> Result<&'static str, Rejected> {
        let checked = limiter.check(Key::global()).await.into_result();
        let _ = checked.map_err(|rejected| match &headers {
            Some(headers) => rejected.headers(headers.clone()),
            None => rejected,
        })?;
        Ok("hello")
    };
    let handler = Router::new().route("/", get(handler));
    [
        send(&handler, to("/")).await,
        send(&hello(layer), to("/")).await,
    ]
}

#[tokio::test]
async fn a_handlers_rejection_equals_the_layers() {
    for headers in [None, Some(Headers::x_ratelimit())] {
        let _case = Case(format!("{headers:?}"));
        let (layer, _) = layer([shared("few", "2/min"), shared("many", "50/h")]);
        let layer = layer.headers(headers.clone().unwrap_or_default());
        let [handlers, layers] = both_ways(&layer, headers.clone()).await;
        assert_eq!([handlers.status, layers.status], [StatusCode::OK; 2]);
        let [handlers, layers] = both_ways(&layer, headers).await;
        assert_eq!(handlers.status, 429);
        assert_eq!(handlers, layers);
    }
    let layer = on_a_dead_store(OnStoreError::Reject);
    let [handlers, layers] = both_ways(&layer, None).await;
    assert_eq!(handlers.status, 503);
    assert_eq!(handlers, layers);
}

#[tokio::test]
async fn a_failed_store_admits_by_default_and_rejects_with_503_if_configured() {
    let app = hello(&on_a_dead_store(OnStoreError::default()));
    for _ in 0..12 {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, 200);
        assert_eq!(fields(&response), ["", ""]);
    }
    for headers in [Headers::draft(), Headers::x_ratelimit(), Headers::none()] {
        let _case = Case(format!("{headers:?}"));
        let layer = on_a_dead_store(OnStoreError::Reject).headers(headers);
        let response = send(&hello(&layer), to("/")).await;
        assert_eq!(response.status, 503);
        assert_eq!(response.retry_after(), Some(1));
        response.is_problem_that_no_cache_stores();
        let problem = response.json();
        assert_eq!(
            (&problem["type"], &problem["status"]),
            (&json!(REDUCED_CAPACITY), &json!(503))
        );
        assert!(problem["title"].is_string());
        // Nothing is known of any quota, so none is reported; least of all the store's address.
        let mut fields = response.headers.keys();
        assert!(!fields.any(|name| name.as_str().contains("ratelimit")));
        assert!(!response.text().contains("127.0.0.1"));
    }
}

#[tokio::test]
async fn a_missing_key_is_400_and_charges_nothing() {
    let tenants = Policy::new("tenants", quota("1/h")).key(extract::header("x-tenant"));
    let (layer, _) = layer([shared("other", "9/h"), tenants]);
    let response = send(&hello(&layer), to("/")).await;
    assert_eq!(response.status, 400);
    response.is_problem_that_no_cache_stores();
    assert_eq!(response.retry_after(), None);
    let problem = response.json();
    assert_eq!(
        (&problem["type"], &problem["status"]),
        (&json!("about:blank"), &json!(400))
    );
    assert_eq!(response.detail(), "The request lacks the header x-tenant.");
    assert_eq!(used(layer.limiter(), "other", Key::global()).await, 0);
}
