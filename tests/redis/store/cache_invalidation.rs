//! What invalidates a cached rejection, and for which keys.

use testkit::Proxy;
use tokio::time::timeout;
use tollgate::observe::DecisionSource::{RejectionCache, Store};
use tollgate_tests::prelude::*;

use crate::{
    shared::SameTime,
    store::{
        rejection_cache::{key, result, source, store, three_a_minute, use_up},
        support::*,
    },
};

#[tokio::test]
async fn rejections_are_cached_by_default() {
    let server = Server::start();
    let store = RedisStore::open(server.url()).expect("a store");
    let limiter = limiter(store, [Policy::new("p", Quota::requests(1).per_week())]);
    // The machine may be busy for longer than a request has time, or than a rejection is cached.
    until("it is rejected from cache", async || {
        source(&limiter).await == RejectionCache
    })
    .await;
}

#[tokio::test]
async fn requests_of_at_least_the_cost_are_rejected_from_cache_and_smaller_ones_are_sent() {
    let (clock, server) = on_a_clock();
    let limiter = three_a_minute(store(&server, &clock));
    let rejected = |source, millis: u64| (false, source, Some(ms(millis)));
    assert!(limiter.check(key()).await.is_admitted());
    assert_eq!(result(&limiter, 3).await, rejected(Store, 20_000));
    let calls = server.calls("evalsha");
    clock.advance(ms(300));
    for _ in 0..3 {
        assert_eq!(result(&limiter, 3).await, rejected(RejectionCache, 19_700));
        // More than there ever is: no wait helps.
        let never = limiter.check(key()).cost(4).await;
        assert_eq!(
            (never.is_admitted(), never.source()),
            (false, RejectionCache)
        );
        assert_eq!(never.count("p").retry_after(), RetryAfter::Never);
    }
    assert_eq!(server.calls("evalsha"), calls);
    assert!(matches!(result(&limiter, 2).await, (true, Store, _)));
    // A rejection of a smaller cost is cached with more detail.
    assert_eq!(result(&limiter, 1).await, rejected(Store, 19_700));
    for (cost, millis) in [(1, 19_700), (2, 39_700), (3, 59_700)] {
        let from_cache = rejected(RejectionCache, millis);
        assert_eq!(result(&limiter, cost).await, from_cache);
    }
}

#[tokio::test]
async fn a_raised_quota_applies_at_once() {
    let (clock, server) = on_a_clock();
    let store = store(&server, &clock);
    // The count is what it was, and not the share of the quota.
    let of = |quota| limiter(store.clone(), [StrategyKind::Fixed.policy("p", quota)]);
    let three = of("3/min");
    let _ = use_up(&three).await;
    assert_eq!(source(&three).await, RejectionCache);
    // The caller's own, and the policy's, by a limiter that was built anew.
    let tier = three.check(key()).quota_for("p", quota("4/min"));
    assert!(tier.await.is_admitted());
    assert!(of("5/min").check(key()).await.is_admitted());
    assert_eq!(source(&three).await, RejectionCache);
}

/// Though no task waits for it.
#[tokio::test]
async fn a_refund_by_a_response_is_available_at_once() {
    let (clock, server) = on_a_clock();
    let policy = Policy::new("p", Quota::requests(1).per_week()).key(extract::global());
    let policy = policy.refund_unless(|_| false);
    let layer = RateLimitLayer::new(limiter(store(&server, &clock), [policy]));
    let service = layer.layer(service_fn(async |_: Request<()>| {
        for expected in [Store, RejectionCache] {
            let rejected = layer.limiter().check(KEY).await;
            let result = (rejected.is_admitted(), rejected.source());
            assert_eq!(result, (false, expected));
        }
        Ok::<_, Infallible>(Response::new(()))
    }));
    for _ in 0..3 {
        let Ok(response) = service.clone().oneshot(Request::new(())).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
}

/// Checks of one batch are decided together, whatever is called between them.
#[tokio::test]
async fn a_rejection_from_before_a_refund_is_not_cached_after_it() {
    let (clock, server) = on_a_clock();
    let limiter = three_a_minute(store(&server, &clock));
    let _ = use_up(&limiter).await;
    let (other, _, rejected) = tokio::join!(
        limiter.check("other"),
        limiter.reset(key()),
        limiter.check(key()),
    );
    assert!(other.is_admitted() && !rejected.is_admitted());
    assert_eq!(rejected.source(), Store);
    assert!(limiter.check(key()).await.is_admitted());
}

/// It had two policies, one of which rejected another request meanwhile, on another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_refund_of_a_dropped_request_is_available_at_once() {
    for attempt in 0.. {
        // The request behind may go over the delayed connection, or the machine may be busy: then again, with more time.
        let delay = secs(2 << (attempt / 4));
        let (clock, server) = on_a_clock();
        let proxy = Proxy::to(server.addr());
        let store = RedisStore::builder().url(format!("redis://{}", proxy.addr()));
        let store = store.rejection_cache_clock(SameTime(clock.clone()));
        let store = store.timeout(TEST_TIMEOUT).connections(8).built();
        let policies = ["a", "b"].map(|name| Policy::new(name, Quota::requests(1).per_week()));
        let limiter = limiter(store, policies);
        let (a, b) = (("a", Key::new("x")), ("b", Key::new("y")));
        // All are connected by now.
        for key in 0..100_u64 {
            assert!(admitted_by_store(&limiter.peek(key).await));
        }
        let calls = server.calls("evalsha");
        proxy.delay(delay);
        let gone = tokio::spawn(limiter.check([a, b]).into_future());
        until("it is charged", async || server.calls("evalsha") > calls).await;
        // Its reply is being delayed by now, or will be.
        let sent = timeout(delay / 2, async {
            until("it is delayed", async || proxy.delayed() > 0).await;
            proxy.pass();
            limiter.check([b]).await
        });
        let Ok(rejected) = sent.await else {
            assert!(delay < TEST_TIMEOUT);
            continue;
        };
        assert_eq!((rejected.is_admitted(), rejected.source()), (false, Store));
        assert_eq!(limiter.check([b]).await.source(), RejectionCache);
        gone.abort();
        if gone.await.is_ok() {
            continue;
        }
        until("it is had", async || limiter.check([b]).await.is_admitted()).await;
        return;
    }
}
