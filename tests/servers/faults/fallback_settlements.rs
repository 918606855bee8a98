//! What was charged in process is refunded and settled there, and what was charged on Redis, on Redis.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response, StatusCode};
use testkit::Server;
use tollgate::{
    Admission, Concurrency, DecisionSource, FixedWindow, Key, Limiter, LocalFallback, Policy,
    Quota, RateLimitLayer, RedisStore, StoreError, extract,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::faults::support::{
    builder, nowhere, opened_in_process, quota, resumed, store, until, used_on_the_store,
};

const KEY: Key = Key::global();

/// One of two processes. Nothing refills before its window ends.
fn counting(store: RedisStore, units: u64) -> Limiter {
    let policy = Policy::new("p", quota(units)).strategy(FixedWindow);
    let limiter = Limiter::builder().store(store).policy(policy);
    let limiter = limiter.on_store_error(LocalFallback::shared_by(2));
    limiter.build().expect("a limiter")
}

/// What is used under the one policy, in the store or in process.
async fn used(limiter: &Limiter, source: DecisionSource) -> u64 {
    if source == DecisionSource::Store {
        return used_on_the_store(limiter, KEY).await;
    }
    // A peek needs the store; a check that costs nothing is decided by either.
    let seen = limiter.check(KEY).cost(0).await;
    assert_eq!(seen.source(), source);
    let policy = seen.policy("p").expect("a policy");
    policy.limit() - policy.remaining()
}

#[tokio::test]
async fn a_refund_goes_where_the_charge_was_made() {
    let server = Server::start();
    let limiter = counting(store(&server), 20);
    let mut on_redis = limiter.check(KEY).cost(4).await;
    assert_eq!(on_redis.source(), DecisionSource::Store);
    server.pause();
    opened_in_process(&limiter).await;
    let mut in_process = limiter.check(KEY).cost(3).await;
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 3);
    let error = on_redis.refund(1).await.expect_err("a store error");
    assert!(matches!(error, StoreError::CircuitOpen { .. }), "{error:?}");
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 3);
    assert_eq!(in_process.refund(1).await.expect("units")[0].units(), 1);
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 2);
    server.resume();
    resumed(&limiter).await;
    // Also when the store is back.
    assert_eq!(in_process.refund(1).await.expect("units")[0].units(), 1);
    assert_eq!(used(&limiter, DecisionSource::Store).await, 4);
    assert_eq!(on_redis.refund(3).await.expect("units")[0].units(), 3);
    assert_eq!(used(&limiter, DecisionSource::Store).await, 1);
    server.kill();
    opened_in_process(&limiter).await;
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 1);
}

#[tokio::test]
async fn a_handler_settles_in_process_what_was_charged_there() {
    let limiter = counting(nowhere(), 40);
    let admission = limiter.check(KEY).cost(5).await;
    let admission = admission.into_result().expect("it is admitted");
    let admission = admission.policy("p").expect("a policy");
    admission.settle(9).await.expect("it is in process");
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 9);
    admission.charge(2).await.expect("it is in process");
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 11);
    admission.settle(1).await.expect("it is in process");
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 1);
}

#[tokio::test]
async fn charges_by_outcome_are_settled_in_process() {
    let policy = || Policy::new("p", quota(8)).key(extract::global());
    for (policy, ok, teapot) in [
        (
            policy().charge_after(|o| o.status() == Some(StatusCode::IM_A_TEAPOT)),
            0,
            1,
        ),
        (
            policy().refund_unless(|o| o.status() == Some(StatusCode::IM_A_TEAPOT)),
            0,
            1,
        ),
    ] {
        let layer = RateLimitLayer::builder()
            .store(nowhere())
            .policy(policy)
            .on_store_error(LocalFallback::shared_by(2))
            .build()
            .expect("a layer");
        let handler = async |request: Request<()>| {
            assert!(request.extensions().get::<Admission>().is_some());
            let mut response = Response::new(());
            if request.uri().path() == "/teapot" {
                *response.status_mut() = StatusCode::IM_A_TEAPOT;
            }
            Ok::<_, Infallible>(response)
        };
        let service = layer.layer(service_fn(handler));
        for (path, more) in [
            ("/", ok),
            ("/teapot", teapot),
            ("/", ok),
            ("/teapot", teapot),
        ] {
            let before = used(layer.limiter(), DecisionSource::Fallback).await;
            let Ok(response) = service
                .clone()
                .oneshot(Request::get(path).body(()).expect("a request"))
                .await;
            drop(response);
            let after = used(layer.limiter(), DecisionSource::Fallback).await;
            assert_eq!(after, before + more, "{path}");
        }
    }
}

/// A permit that is held in process is renewed there, and one on Redis is not released twice.
#[tokio::test]
async fn permits_are_released_where_they_were_acquired() {
    let life = Duration::from_millis(600);
    let server = Server::start();
    let policy = Policy::new("p", Quota::concurrent(4)).strategy(Concurrency::with_ttl(life));
    let limiter = Limiter::builder()
        .store(builder(server.url()).build().expect("a store"))
        .policy(policy)
        .on_store_error(LocalFallback::shared_by(2))
        .build()
        .expect("a limiter");
    let on_redis = limiter.check(KEY).await.into_result().expect("a permit");
    server.pause();
    opened_in_process(&limiter).await;
    let in_process = limiter.check(KEY).await.into_result().expect("a permit");
    tokio::time::sleep(2 * life).await;
    assert_eq!(
        used(&limiter, DecisionSource::Fallback).await,
        1,
        "it was renewed"
    );
    server.resume();
    resumed(&limiter).await;
    drop(in_process);
    drop(on_redis);
    until("the place is free", async || {
        limiter
            .peek(KEY)
            .await
            .expect("a response")
            .policy("p")
            .expect("a policy")
            .remaining()
            == 4
    })
    .await;
    server.kill();
    opened_in_process(&limiter).await;
    assert_eq!(
        used(&limiter, DecisionSource::Fallback).await,
        0,
        "it was given back"
    );
}
