//! What is given back while the store is at fault, by whoever doesn't wait for it, is given back when it's well again.

use std::{convert::Infallible, future::IntoFuture, pin::Pin, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::join_all};
use http::{Request, Response};
use testkit::{Proxy, Server};
use tollgate::{
    Admission, Charge, Concurrency, DecisionKind, DecisionSource, FixedWindow, Key, Limiter,
    OnStoreError, Policy, Quota, RateLimitLayer, RedisStore, StoreError, extract,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{Log, builder, opened, quota, resumed, seen_by_the_store, until, url};

const KEY: Key = Key::global();

/// Places that are not free again by themselves within this test.
fn places(store: RedisStore, many: u64) -> Limiter {
    let hour = Concurrency::with_ttl(Duration::from_secs(3_600));
    let limiter = Limiter::builder()
        .store(store)
        .policy(Policy::new("p", Quota::concurrent(many)).strategy(hour));
    let limiter = limiter.on_store_error(OnStoreError::Reject);
    limiter.build().expect("a limiter")
}

fn network() -> (Server, Arc<Proxy>, RedisStore) {
    let server = Server::start();
    let proxy = Arc::new(Proxy::to(server.addr()));
    let store = builder(url(proxy.addr())).build().expect("a store");
    (server, proxy, store)
}

async fn take(limiter: &Limiter, many: usize) -> Vec<Admission> {
    let mut held = Vec::new();
    for _ in 0..many {
        held.push(limiter.check(KEY).await.into_result().expect("a place"));
    }
    held
}

async fn left(limiter: &Limiter) -> u64 {
    let seen = seen_by_the_store(limiter, KEY).await;
    seen.policy("p").expect("a verdict").remaining()
}

/// Nobody is locked out by those who left meanwhile.
#[tokio::test]
async fn places_that_are_left_during_an_outage_are_free_after_it() {
    let (_server, proxy, store) = network();
    let limiter = places(store, 300);
    let held = take(&limiter, 300).await;
    proxy.cut();
    opened(&limiter).await;
    // More than go on one trip.
    drop(held);
    proxy.pass();
    until("all are free", async || left(&limiter).await == 300).await;
}

/// Another process finds them free, though this one asks nothing more.
#[tokio::test]
async fn they_are_given_back_though_nobody_asks() {
    let (server, proxy, store) = network();
    let limiter = places(store, 3);
    let other = places(crate::support::store(&server), 3);
    let held = take(&limiter, 3).await;
    assert_eq!(left(&other).await, 0);
    proxy.cut();
    opened(&limiter).await;
    drop(held);
    proxy.pass();
    until("all are free", async || left(&other).await == 3).await;
}

/// They are in a trip that is never answered, or in the queue behind it.
#[tokio::test]
async fn places_that_are_left_as_the_network_goes_are_free_after_it() {
    let (_server, proxy, store) = network();
    let limiter = places(store, 20);
    let held = take(&limiter, 20).await;
    proxy.hold();
    for place in held {
        drop(place);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    opened(&limiter).await;
    proxy.cut();
    proxy.pass();
    resumed(&limiter).await;
    until("all are free", async || left(&limiter).await == 20).await;
}

/// The server took them, and its answer was lost: the requests will never hold them, nor renew them.
#[tokio::test]
async fn permits_whose_answer_was_lost_are_free_after_the_outage() {
    let (server, proxy, store) = network();
    let limiter = places(store, 4);
    let other = places(crate::support::store(&server), 4);
    for times in [1, 3] {
        resumed(&limiter).await;
        proxy.halve();
        let decision = limiter.check(KEY).times(times).await;
        assert!(!decision.is_admitted(), "{decision:?}");
        proxy.pass();
        resumed(&limiter).await;
        until("all are free", async || left(&other).await == 4).await;
    }
}

#[tokio::test]
async fn without_a_breaker_they_are_free_with_the_next_answer() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let store = builder(url(proxy.addr())).no_circuit_breaker();
    let limiter = places(store.build().expect("a store"), 5);
    let held = take(&limiter, 5).await;
    proxy.cut();
    drop(held);
    for _ in 0..5 {
        assert_eq!(limiter.peek(KEY).await.source(), DecisionSource::Fallback);
    }
    proxy.pass();
    resumed(&limiter).await;
    until("all are free", async || left(&limiter).await == 5).await;
}

type Meanwhile = Pin<Box<dyn Future<Output = ()>>>;

/// A request that is charged five, and given them back with the response. While it is handled, something happens.
async fn reserve_and_give_back(
    store: RedisStore,
    meanwhile: impl Fn() -> Meanwhile + Clone,
) -> Limiter {
    let policy = Policy::new("p", quota(100))
        .strategy(FixedWindow)
        .key(extract::global())
        .cost(5)
        .charge(Charge::reserve(|_| false));
    let layer = RateLimitLayer::builder()
        .store(store)
        .policy(policy)
        .on_store_error(OnStoreError::Reject);
    let layer = layer.build().expect("a layer");
    let limiter = layer.limiter().clone();
    assert_eq!(
        limiter.charge(KEY, 10).await.source(),
        DecisionSource::Store
    );
    let handler = move |_: Request<()>| {
        let meanwhile = meanwhile();
        async move {
            meanwhile.await;
            Ok::<_, Infallible>(Response::new(()))
        }
    };
    let service = layer.layer(service_fn(handler));
    let Ok(response) = service.oneshot(Request::new(())).await;
    drop(response);
    limiter
}

#[tokio::test]
async fn what_was_not_sent_is_given_back_later() {
    let (_server, proxy, store) = network();
    let other = places(store.clone(), 1);
    let (network, asking) = (proxy.clone(), other.clone());
    let outage = move || -> Meanwhile {
        let (network, asking) = (network.clone(), asking.clone());
        Box::pin(async move {
            network.cut();
            opened(&asking).await;
        })
    };
    let limiter = reserve_and_give_back(store, outage).await;
    proxy.pass();
    resumed(&other).await;
    until("it is given back", async || left(&limiter).await == 90).await;
}

/// The server had it, and its answer was lost: given back again, it would be ten.
#[tokio::test]
async fn what_may_have_been_given_back_is_not_given_back_again() {
    let (_server, proxy, store) = network();
    let other = places(store.clone(), 1);
    let network = proxy.clone();
    let outage = move || -> Meanwhile {
        network.hold();
        Box::pin(async {})
    };
    let limiter = reserve_and_give_back(store, outage).await;
    opened(&other).await;
    proxy.pass();
    resumed(&other).await;
    until("it is given back", async || left(&limiter).await >= 90).await;
    for _ in 0..10 {
        resumed(&other).await;
        assert_eq!(left(&limiter).await, 90);
    }
}

/// The caller that asked for it hears nothing any more.
#[tokio::test]
async fn a_refund_whose_caller_left_before_it_was_sent_is_given_back_later() {
    let (_server, proxy, store) = network();
    let windows = Policy::new("p", quota(100)).strategy(FixedWindow);
    let limiter = Limiter::builder().store(store).policy(windows);
    let limiter = limiter.on_store_error(OnStoreError::Reject).build();
    let limiter = limiter.expect("a limiter");
    let mut charged = limiter.check(KEY).cost(40).await;
    assert_eq!(left(&limiter).await, 60);
    proxy.hold();
    // The refund waits in the queue behind this one.
    let mut asked = limiter.peek(KEY).into_future();
    assert!((&mut asked).now_or_never().is_none());
    tokio::task::yield_now().await;
    assert!(charged.refund(40).now_or_never().is_none());
    proxy.cut();
    assert_eq!(asked.await.source(), DecisionSource::Fallback);
    proxy.pass();
    resumed(&limiter).await;
    until("it is given back", async || left(&limiter).await == 100).await;
}

#[tokio::test]
async fn refunds_that_are_dropped_are_counted_and_logged_once_an_episode() {
    let log = Log::get();
    let (_server, proxy, store) = network();
    let limiter = places(store, 10_000);
    let key = |half: u64| Key::new(half.to_string());
    for episode in 1..=2 {
        let mut held = Vec::new();
        // A few at a time, so that none times out on a slow machine.
        for places in (0..10_007).collect::<Vec<u64>>().chunks(500) {
            let taken = places
                .iter()
                .map(|place| limiter.check(key(place % 2)).into_future());
            held.extend(join_all(taken).await);
        }
        assert!(held.iter().all(|decision| decision.is_admitted()));
        proxy.cut();
        // By requests that take no permit, whose refund would be kept as well.
        until("the breaker opens", async || {
            let seen = limiter.peek(KEY).await;
            matches!(
                seen.kind(),
                DecisionKind::StoreFailed(StoreError::CircuitOpen { .. })
            )
        })
        .await;
        drop(held);
        let health = limiter.health_check().await;
        assert_eq!(health.dropped_refunds(), 7 * episode);
        assert_eq!(log.lines("refunds are dropped"), episode as usize);
        proxy.pass();
        until("those that are kept are sent", async || {
            let mut left = 0;
            for half in 0..2 {
                let seen = limiter.peek(key(half)).await;
                left += seen.policy("p").map_or(0, |places| places.remaining());
            }
            left == 20_000 - 7 * episode
        })
        .await;
    }
}
