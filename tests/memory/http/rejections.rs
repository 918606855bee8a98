//! Rejections by handlers, without a store and without a key.

use axum::extract::State;

use crate::http::{
    responses::{REDUCED_CAPACITY, fields, on_a_dead_store},
    support::*,
};

async fn checked(State(limiter): State<Limiter>) -> Result<&'static str, Rejected> {
    let _ = limiter.check(Key::global()).await.into_result()?;
    Ok("hello")
}

/// The rejection of a handler that calls the limiter itself, and the layer's.
async fn both_ways(layer: &RateLimitLayer) -> [TestResponse; 2] {
    let handler = Router::new()
        .route("/", get(checked))
        .with_state(layer.limiter().clone());
    [
        send(&handler, to("/")).await,
        send(&hello(layer), to("/")).await,
    ]
}

#[tokio::test]
async fn a_handlers_rejection_equals_the_layers() {
    let (layer, _) = layer([shared("few", "2/min"), shared("many", "50/h")]);
    let [handlers, layers] = both_ways(&layer).await;
    assert_eq!([handlers.status, layers.status], [StatusCode::OK; 2]);
    let [handlers, layers] = both_ways(&layer).await;
    assert_eq!(handlers.status, 429);
    assert_eq!(handlers, layers);

    let [handlers, layers] = both_ways(&on_a_dead_store(OnStoreError::Reject)).await;
    assert_eq!(handlers.status, 503);
    assert_eq!(handlers, layers);
}

#[tokio::test]
async fn a_failed_store_rejects_with_503_if_configured() {
    let response = send(&hello(&on_a_dead_store(OnStoreError::Reject)), to("/")).await;
    assert_eq!(response.status, 503);
    assert_eq!(response.retry_after(), Some(1));
    response.is_problem_that_no_cache_stores();
    let problem = response.json();
    assert_eq!(problem["type"], REDUCED_CAPACITY);
    assert_eq!(problem["status"], 503);
    assert!(problem["title"].is_string());
    // Nothing is known of any quota, so none is reported; least of all the store's address.
    assert_eq!(fields(&response), ["", ""]);
    assert!(!String::from_utf8_lossy(&response.body).contains("127.0.0.1"));
}

#[tokio::test]
async fn a_failed_store_admits_by_default() {
    let app = hello(&on_a_dead_store(OnStoreError::default()));
    for _ in 0..12 {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, 200);
        assert_eq!(fields(&response), ["", ""]);
    }
}

#[tokio::test]
async fn a_missing_key_is_400_and_charges_nothing() {
    let tenants = Policy::new("tenants", quota("1/h"));
    let (layer, _) = layer([
        shared("other", "9/h"),
        tenants.key(extract::header("x-tenant")),
    ]);
    let response = send(&hello(&layer), to("/")).await;
    assert_eq!(response.status, 400);
    assert_eq!(response.field("content-type"), "application/problem+json");
    assert_eq!(response.field("cache-control"), "no-store");
    assert_eq!(response.retry_after(), None);
    let problem = response.json();
    assert_eq!(
        (&problem["type"], &problem["status"]),
        (&json!("about:blank"), &json!(400))
    );
    let detail = problem["detail"].as_str().expect("a detail");
    assert_eq!(detail, "The request lacks the header x-tenant.");
    let other = layer
        .limiter()
        .peek([("other", Key::global()), ("tenants", Key::global())]);
    assert_eq!(other.await.expect("a response").left("other"), 9);
}
