//! Refunds that no task waits for, made while the store fails, are carried out when it is back.

use crate::faults::support::*;
use tokio::{sync::Semaphore, task::JoinSet};

async fn left(limiter: &Limiter) -> u64 {
    left_on_the_store(limiter, KEY).await
}

/// The server acquired them, and its reply was lost: the requests will never hold them, nor renew them.
#[tokio::test]
async fn permits_whose_reply_was_lost_are_free_after_the_outage() {
    let (server, proxy) = network();
    let limiter = permit_policy(through(&proxy), 4);
    let other = permit_policy(store(&server), 4);
    for cost in [1, 3] {
        resumed(&limiter).await;
        proxy.halve();
        let result = limiter.admit(KEY).cost(cost).await;
        assert!(result.is_err(), "{result:?}");
        proxy.pass();
        resumed(&limiter).await;
        until("all are free", async || left(&other).await == 4).await;
    }
}

/// A layer that refunds each request when it has its response.
fn refunding_layer(store: RedisStore, units: u64, cost: u64) -> RateLimitLayer {
    let policy = policy(units).strategy(FixedWindow).cost(cost);
    let policy = policy.key(extract::global()).refund_unless(|_| false);
    let layer = RateLimitLayer::builder().store(store).policy(policy);
    layer.on_store_error(OnStoreError::Reject).built()
}

/// The server runs it after it has timed out: refunded again, it would be ten.
#[tokio::test]
async fn a_refund_that_may_have_run_is_not_made_again() {
    let (_server, proxy) = network();
    let store = through_here(&proxy);
    let other = permit_policy(store.clone(), 1);
    let layer = refunding_layer(store, 100, 5);
    let limiter = layer.limiter();
    let charged = limiter.charge(KEY, 10).await.expect("a response");
    assert!(admitted_by_store(&charged));
    let network = proxy.clone();
    let handler = move |_: Request<()>| {
        network.hold();
        std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
    };
    let service = layer.layer(service_fn(handler));
    let Ok(response) = service.oneshot(Request::new(())).await;
    drop(response);
    let time = StillTime::new();
    time.time_out().await;
    time.end();
    // It runs now.
    proxy.pass();
    resumed(&other).await;
    until("it is refunded", async || left(limiter).await >= 90).await;
    for _ in 0..10 {
        resumed(&other).await;
        assert_eq!(left(limiter).await, 90);
    }
}

/// One call that fails opens no breaker, so nothing probes the server either.
#[tokio::test]
async fn a_permit_is_free_after_its_release_failed_although_nothing_else_is_sent() {
    let (server, proxy) = network();
    let limiter = permit_policy(through_here(&proxy), 1);
    let other = permit_policy(store(&server), 1);
    let held = take(&limiter, 1).await;
    proxy.hold();
    drop(held);
    // Behind the refund.
    let behind = tokio::spawn(limiter.peek(KEY).into_future());
    let time = StillTime::new();
    time.time_out().await;
    time.end();
    let behind = behind.await.expect("a response");
    assert!(matches!(
        behind,
        Err(CallError::Store(StoreError::Timeout { .. }))
    ));
    proxy.cut();
    proxy.pass();
    until("it is free", async || left(&other).await == 1).await;
}

/// The caller of the refund was dropped.
#[tokio::test]
async fn a_refund_cancelled_before_it_was_sent_is_made_later() {
    let (_server, proxy) = network();
    let windows = policy(100).strategy(FixedWindow);
    let limiter = under(windows, through(&proxy), OnStoreError::Reject);
    let charged = limiter.admit(KEY).cost(40).await.expect("room");
    assert_eq!(left(&limiter).await, 60);
    proxy.cut();
    assert!(limiter.peek(KEY).await.is_err());
    proxy.hold();
    // The refund waits for a connection.
    assert!(charged.refund(40).now_or_never().is_none());
    proxy.cut();
    // Calls after the refund fail, so it did too.
    opened(&limiter).await;
    proxy.pass();
    resumed(&limiter).await;
    until("it is refunded", async || left(&limiter).await == 100).await;
}

/// However many they are: each was held by this process. Another one finds them free, though this one sends nothing more.
#[tokio::test]
async fn all_permits_that_are_dropped_at_once_are_free_again_also_after_an_outage() {
    const MANY: u64 = 6_000;
    for outage in [true, false] {
        let (server, proxy) = network();
        let limiter = permit_policy(through(&proxy), MANY);
        let other = permit_policy(store(&server), MANY);
        let keys = ["a", "b"].map(Key::new);
        let taken = keys.iter().flat_map(|key| vec![*key; MANY as usize]);
        let taken = taken.map(|key| limiter.admit(key).into_future());
        let held = join_all(taken).await;
        assert!(held.iter().all(Result::is_ok));
        if outage {
            proxy.cut();
            opened(&limiter).await;
        }
        drop(held);
        proxy.pass();
        for key in keys {
            let are_free = async || left_on_the_store(&other, key).await == MANY;
            until("all are free", are_free).await;
        }
        assert_eq!(limiter.health_check().await.dropped_refunds(), 0);
    }
}

/// Refunds of windows' units, whose responses come during an outage.
#[tokio::test]
async fn dropped_refunds_are_counted_and_logged() {
    const MANY: usize = 10_007;
    let ((log, _guard), start) = (Log::of_warnings(), Instant::now());
    let (_server, proxy) = network();
    let layer = refunding_layer(through_here(&proxy), 20_000, 1);
    let limiter = layer.limiter().clone();
    for episode in 1..=2 {
        let handled = Arc::new(Semaphore::new(0));
        let responses = Arc::new(Semaphore::new(0));
        let mut requests = JoinSet::new();
        for _ in 0..MANY {
            let (handled, responses) = (handled.clone(), responses.clone());
            let handler = move |_: Request<()>| {
                let (handled, responses) = (handled.clone(), responses.clone());
                async move {
                    handled.add_permits(1);
                    drop(responses.acquire().await);
                    Ok::<_, Infallible>(Response::new(String::new()))
                }
            };
            requests.spawn(layer.layer(service_fn(handler)).oneshot(Request::new(())));
        }
        let are_handled = async || handled.available_permits() == MANY;
        until("they are handled", are_handled).await;
        proxy.cut();
        opened(&limiter).await;
        responses.add_permits(MANY);
        requests.join_all().await;
        let dropped = async || limiter.health_check().await.dropped_refunds();
        let are_counted = async || dropped().await >= 7 * episode;
        until("those that are dropped are counted", are_counted).await;
        log.throttled("refunds dropped", start);
        proxy.pass();
        let kept = 20_000 - 7 * episode;
        let are_sent = async || left(&limiter).await == kept;
        until("those that are kept are sent", are_sent).await;
        assert_eq!(dropped().await, 7 * episode);
    }
}
