//! What was charged in process is refunded and settled there, and what was charged on Redis, on Redis.

use crate::faults::support::*;
use tollgate_tests::lateness::Lateness;

/// One of two processes. Nothing refills before its window ends.
fn counting(store: RedisStore, units: u64) -> Limiter {
    let policy = policy(units).strategy(FixedWindow);
    under(policy, store, LocalFallback::shared_by(2))
}

/// What is used under the one policy, in the store or in process.
async fn used(limiter: &Limiter, source: DecisionSource) -> u64 {
    if source == DecisionSource::Store {
        return used_on_the_store(limiter, KEY).await;
    }
    // A peek needs the store; a check that costs nothing is decided by either.
    let seen = limiter.admit(KEY).cost(0).await.decision();
    assert_eq!(seen.source(), source);
    seen.used("p")
}

#[tokio::test]
async fn a_refund_goes_where_the_charge_was_made() {
    let (_server, network) = network();
    let limiter = counting(through(&network), 20);
    let on_redis = limiter.admit(KEY).cost(4).await.expect("room");
    assert_eq!(on_redis.decision().source(), DecisionSource::Store);
    network.cut();
    opened_in_process(&limiter).await;
    let in_process = limiter.admit(KEY).cost(3).await.expect("room");
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 3);
    let error = on_redis.refund(1).await.expect_err("a store error");
    assert_eq!(error.code(), "circuit_open");
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 3);
    assert_eq!(in_process.refund(1).await.expect("units")[0].units(), 1);
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 2);
    network.pass();
    resumed(&limiter).await;
    // Also when the store is back.
    assert_eq!(in_process.refund(1).await.expect("units")[0].units(), 1);
    assert_eq!(used(&limiter, DecisionSource::Store).await, 4);
    assert_eq!(on_redis.refund(3).await.expect("units")[0].units(), 3);
    assert_eq!(used(&limiter, DecisionSource::Store).await, 1);
    network.cut();
    opened_in_process(&limiter).await;
    assert_eq!(used(&limiter, DecisionSource::Fallback).await, 1);
}

#[tokio::test]
async fn a_handler_settles_in_process_what_was_charged_there() {
    let limiter = counting(nowhere(), 40);
    let admission = limiter.admit(KEY).cost(5).await;
    let admission = admission.expect("it is admitted");
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
    let policy = || policy(8).key(extract::global());
    for (policy, charged) in [
        (policy().charge_after(outcome::success), 1),
        (policy().charge_after(outcome::failure), 0),
        (policy().refund_unless(outcome::failure), 0),
    ] {
        let layer = RateLimitLayer::builder()
            .store(nowhere())
            .policy(policy)
            .on_store_error(LocalFallback::shared_by(2))
            .built();
        let hello = async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()));
        let Ok(response) = layer
            .layer(service_fn(hello))
            .oneshot(Request::new(()))
            .await;
        drop(response);
        assert_eq!(
            used(layer.limiter(), DecisionSource::Fallback).await,
            charged
        );
    }
}

/// A permit that is held in process is renewed there, and one on Redis is not released twice.
#[tokio::test]
async fn permits_are_released_where_they_were_acquired() {
    let life = secs(1);
    let (_server, network) = network();
    let permits = Policy::new("p", Quota::concurrent(4)).strategy(Concurrency::with_ttl(life));
    let limiter = under(permits, through(&network), LocalFallback::shared_by(2));
    let on_redis = limiter.admit(KEY).await.expect("a permit");
    network.cut();
    opened_in_process(&limiter).await;
    let (lateness, in_process) = (Lateness::measure(), limiter.admit(KEY).await);
    tokio::time::sleep(life * 3 / 2).await;
    let held = used(&limiter, DecisionSource::Fallback).await;
    // It is renewed three times in each life, unless the machine is later than that.
    assert!(held == 1 || lateness.so_far() > life / 2, "it was renewed");
    network.pass();
    resumed(&limiter).await;
    drop((in_process, on_redis));
    let is_free = async || left_on_the_store(&limiter, KEY).await == 4;
    until("the permit is free", is_free).await;
    network.cut();
    opened_in_process(&limiter).await;
    let held = used(&limiter, DecisionSource::Fallback).await;
    assert_eq!(held, 0, "it was given back");
}
