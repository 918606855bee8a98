//! The wait of a cached rejection is the one that the store would return.

use testkit::Clock;
use tollgate::{
    limiter::CheckFuture,
    observe::DecisionSource::{RejectionCache, Store},
};
use tollgate_tests::prelude::*;

use crate::store::{
    rejection_cache::{BOUND, key, store, three_a_minute},
    support::{store as forgetful, *},
};

fn source_and_wait(rejected: Decision) -> (DecisionSource, Option<Duration>) {
    let source = rejected.source();
    let error = rejected.into_result().expect_err("a rejection");
    (source, error.retry_after().duration())
}

/// The store's result at the same instant. A rejection changes nothing.
async fn in_the_store(server: &Server, policy: Policy, cost: u64) -> Option<Duration> {
    let forgetful = limiter(forgetful(server), [policy]);
    source_and_wait(forgetful.check(key()).cost(cost).await).1
}

#[tokio::test]
async fn a_larger_cost_gets_the_stores_wait() {
    for strategy in EACH {
        let (clock, server) = on_a_clock();
        let policy = strategy.policy("p", "10/min");
        let limiter = limiter(store(&server, &clock), [policy.clone()]);
        let check = |cost| limiter.check(key()).cost(cost).into_future();
        for cost in [3, 4, 3] {
            assert!(check(cost).await.is_admitted(), "{strategy:?}");
            clock.advance(ms(1_300));
        }
        // What the bucket of a minute that holds none of them yields.
        while check(1).await.is_admitted() {}
        clock.advance(ms(10));
        let of_any_cost = !matches!(strategy, StrategyKind::Log | StrategyKind::Sliding(_));
        for cost in [1, 2, 5, 10, 1] {
            let _case = Case(format!("{strategy:?} {cost}"));
            let (source, wait) = source_and_wait(check(cost).await);
            assert_eq!(wait, in_the_store(&server, policy.clone(), cost).await);
            assert!(source == RejectionCache || !of_any_cost);
            // An equal request is always rejected from the cache.
            assert_eq!(source_and_wait(check(cost).await), (RejectionCache, wait));
        }
    }
}

/// One each 20 s for an address, one each 30 s after three at once for a tenant.
fn by_address_and_tenant(server: &Server, clock: &Clock) -> Limiter {
    let policies = [
        Policy::new("address", Quota::requests(3).per_minute().burst(1)),
        Policy::new("tenant", Quota::requests(2).per_minute().burst(3)),
    ];
    limiter(store(server, clock), policies)
}

fn from(address: &str, tenant: &str) -> [(&'static str, Key); 2] {
    [("address", Key::new(address)), ("tenant", Key::new(tenant))]
}

/// By other addresses, and another process.
async fn use_up_tenant(server: &Server, clock: &Clock, tenant: &str) {
    let others = by_address_and_tenant(server, clock);
    for address in ["b", "c", "d"] {
        let _ = others.check(from(address, tenant)).await;
    }
}

#[tokio::test]
async fn a_policy_without_a_cached_state_is_evaluated_by_the_store() {
    let (clock, server) = on_a_clock();
    let limiter = by_address_and_tenant(&server, &clock);
    assert!(limiter.check(from("a", "t")).await.is_admitted());
    let rejected = source_and_wait(limiter.check(from("a", "t")).await);
    assert_eq!(rejected, (Store, Some(ms(20_000))));
    use_up_tenant(&server, &clock, "u").await;
    clock.advance(ms(2));
    let rejected = source_and_wait(limiter.check(from("a", "u")).await);
    assert_eq!(rejected, (Store, Some(ms(29_998))));
    let rejected = source_and_wait(limiter.check(from("a", "t")).await);
    assert_eq!(rejected, (RejectionCache, Some(ms(19_998))));
}

/// Requests of one kind that are rejected for 20 s from now on are rejected from the cache after what `meanwhile` does in another
/// process, until the bound: then the store says how long.
async fn cached_for_the_bound(
    clock: &Clock,
    check: impl Fn() -> CheckFuture,
    meanwhile: impl AsyncFnOnce(),
    millis: u64,
) {
    let rejected = source_and_wait(check().await);
    assert_eq!(rejected, (Store, Some(ms(20_000))));
    meanwhile().await;
    clock.advance(BOUND / 2);
    let rejected = source_and_wait(check().await);
    assert_eq!(rejected, (RejectionCache, Some(ms(15_000))));
    clock.advance(BOUND / 2);
    let rejected = source_and_wait(check().await);
    assert_eq!(rejected, (Store, Some(ms(millis))));
}

#[tokio::test]
async fn a_policy_that_had_room_is_evaluated_by_the_store_after_the_bound() {
    let (clock, server) = on_a_clock();
    let limiter = by_address_and_tenant(&server, &clock);
    let check = || limiter.check(from("a", "t")).into_future();
    assert!(check().await.is_admitted());
    let meanwhile = async || use_up_tenant(&server, &clock, "t").await;
    cached_for_the_bound(&clock, check, meanwhile, 20_000).await;
}

/// Two limiters of three a minute, in processes of their own.
fn here_and_there((clock, server): &(Clock, Server)) -> [Limiter; 2] {
    [(); 2].map(|()| three_a_minute(store(server, clock)))
}

#[tokio::test]
async fn a_wait_that_smaller_requests_may_change_is_cached_for_the_bound() {
    let world = on_a_clock();
    let [here, there] = here_and_there(&world);
    assert!(here.check(key()).await.is_admitted());
    let check = || here.check(key()).cost(3).into_future();
    let meanwhile = async || assert!(there.check(key()).cost(2).await.is_admitted());
    cached_for_the_bound(&world.0, check, meanwhile, 50_000).await;
}

/// Such as what a response turns out to cost: within the bound by another process, at once by this one.
#[tokio::test]
async fn a_charge_past_the_quota_lengthens_a_wait() {
    let world = on_a_clock();
    let [here, there] = here_and_there(&world);
    assert!(here.check(key()).cost(3).await.is_admitted());
    let check = || here.check(key()).into_future();
    let meanwhile = async || assert!(admitted_by_store(&there.charge(key(), 3).await));
    cached_for_the_bound(&world.0, check, meanwhile, 70_000).await;

    let world = on_a_clock();
    let [limiter, _] = here_and_there(&world);
    assert!(limiter.check(key()).cost(3).await.is_admitted());
    assert!(!limiter.check(key()).await.is_admitted());
    let rejected = async || source_and_wait(limiter.check(key()).await);
    assert_eq!(rejected().await, (RejectionCache, Some(ms(20_000))));
    assert!(admitted_by_store(&limiter.charge(key(), 3).await));
    assert_eq!(rejected().await, (Store, Some(ms(80_000))));
}
