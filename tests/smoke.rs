//! The layer where it counts in process alone. Everything else is tested with all features, by the package in this folder.

#![allow(missing_docs)]

use std::convert::Infallible;

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use tollgate::{Admission, Key, Limiter, Policy, Quota, RateLimitLayer, extract};
use tower::{Layer, ServiceExt, service_fn};

fn policy() -> Policy {
    Policy::new("api", Quota::requests(2).per_hour()).key(extract::header("x-api-key"))
}

fn request(key: &str) -> Request<Body> {
    let request = Request::get("/").header("x-api-key", key);
    request.body(Body::empty()).expect("a request")
}

#[tokio::test]
async fn a_router_rejects_the_third_request_of_each_key() {
    async fn remaining(admission: Admission) -> String {
        format!("{:?}", admission.remaining("api"))
    }
    let layer = RateLimitLayer::builder().policy(policy()).build();
    let app = Router::new()
        .route("/", get(remaining))
        .layer(layer.expect("a layer"));
    for key in ["a", "b"] {
        for expected in [200, 200, 429] {
            let response = app.clone().oneshot(request(key)).await;
            let response = response.expect("a response");
            assert_eq!(response.status(), expected);
            let waits = response.headers().contains_key("retry-after");
            assert_eq!(waits, expected == 429);
        }
    }
}

#[tokio::test]
async fn the_layer_wraps_any_service() {
    let layer = RateLimitLayer::builder().policy(policy()).build();
    let inner = async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()));
    let service = layer.expect("a layer").layer(service_fn(inner));
    let missing = service.clone().oneshot(Request::new(Body::empty())).await;
    assert_eq!(
        missing.expect("a response").status(),
        StatusCode::BAD_REQUEST
    );
    let admitted = service.oneshot(request("a")).await;
    assert_eq!(admitted.expect("a response").status(), StatusCode::OK);
}

#[tokio::test]
async fn a_limiter_counts_without_a_layer() {
    let policy = Policy::new("jobs", Quota::requests(1).per_hour());
    let limiter = Limiter::builder()
        .policy(policy)
        .build()
        .expect("a limiter");
    let key = Key::new("alice");
    assert!(limiter.check(key).await.is_admitted());
    assert!(!limiter.check(key).await.is_admitted());
    limiter.reset(key).await.expect("a response");
    assert!(limiter.check(key).await.is_admitted());
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_store_on_redis_that_is_not_there_admits_by_default() {
    let store = tollgate::RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let limiter = Limiter::builder().policy(policy()).store(store).build();
    let limiter = limiter.expect("a limiter");
    let decision = limiter.check(Key::new("alice")).await;
    assert!(decision.is_admitted());
    assert_ne!(decision.source(), tollgate::observe::DecisionSource::Store);
    assert!(tollgate::RedisStore::open("http://127.0.0.1").is_err());
}
