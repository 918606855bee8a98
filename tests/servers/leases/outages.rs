//! Servers that are gone or too slow, and replies that are late or lost, while units are leased.

use std::{slice, time::Duration};

use futures_util::future::join_all;
use testkit::Proxy;
use tollgate::{
    Decision, DecisionKind, DecisionSource, Lease, Limiter, LocalFallback, OnStoreError,
    RedisStore, StoreError,
};
use tollgate_tests::results::store_error;

use crate::leases::support::{
    KEY, Scene, StrategyKind, TTL, builder, held, hold, leased, limiter, ms, real_pause, scene,
    stats, until, until_nothing_is_held, used,
};

const QUOTA: &str = "1000000/month";

/// A proxy, and a limiter with a timeout of 400 ms through it; another one without the proxy.
fn through_a_proxy(scene: &Scene, ttl: Duration) -> (Proxy, Limiter, Limiter) {
    let proxy = Proxy::to(scene.server.addr());
    let policy = StrategyKind::Fixed.policy("p", QUOTA);
    let policy = policy.lease(Lease::max_units(64).ttl(ttl));
    let own = limiter(store(&proxy), [policy]);
    (proxy, own, scene.single(StrategyKind::Fixed, QUOTA))
}

fn store(proxy: &Proxy) -> RedisStore {
    let url = format!("redis://{}", proxy.addr());
    let store = builder(url).timeout(ms(400)).no_circuit_breaker();
    store.build().expect("a store")
}

/// Sends so many requests at once.
async fn send(scene: &Scene, limiter: &Limiter, requests: usize) -> Vec<Decision> {
    let requests = (0..requests).map(|_| limiter.check(KEY).into_future());
    scene.wait(join_all(requests)).await
}

/// Sends requests until a lease admits one; returns how many were admitted.
async fn until_it_is_leased_again(scene: &Scene, limiter: &Limiter) -> u64 {
    let mut admitted = 0;
    until("it is leased again", async || {
        scene.advance(ms(50));
        let decisions = send(scene, limiter, 20).await;
        let by_lease = |it: &Decision| it.source() == DecisionSource::Lease;
        admitted += decisions.iter().filter(|it| it.is_admitted()).count() as u64;
        decisions.iter().any(by_lease)
    })
    .await;
    admitted
}

#[test]
fn with_the_server_gone_what_is_held_is_spent_first_and_then_the_fallback_decides() {
    scene(async |scene| {
        for response in [
            OnStoreError::Reject,
            OnStoreError::Admit,
            LocalFallback::shared_by(2).into(),
        ] {
            let proxy = Proxy::to(scene.server.addr());
            let limiter = Limiter::builder()
                .store(store(&proxy))
                .policy(leased(StrategyKind::Fixed, "p", QUOTA))
                .on_store_error(response)
                .build()
                .expect("a limiter");
            hold(&limiter, KEY).await;
            proxy.cut();
            for _ in 0..held(&limiter) {
                let decision = limiter.check(KEY).await;
                assert_eq!(decision.source(), DecisionSource::Lease);
                assert!(decision.is_admitted());
            }
            let decision = scene.wait(limiter.check(KEY)).await;
            assert_eq!(decision.source(), DecisionSource::Fallback);
            let has_failed = matches!(decision.kind(), DecisionKind::StoreFailed(_));
            let is_rejected = matches!(response, OnStoreError::Reject);
            assert!(has_failed == is_rejected && decision.is_admitted() != is_rejected);
            proxy.pass();
            until_it_is_leased_again(&scene, &limiter).await;
        }
    });
}

/// Whether it was charged is unknown: the units are lost, and no request is admitted by them.
#[test]
fn a_lease_whose_reply_is_lost_is_not_spent() {
    scene(async |scene| {
        let (proxy, own, watcher) = through_a_proxy(&scene, TTL);
        // The connection is made, and the script is there.
        assert!(own.check(KEY).await.is_admitted());
        proxy.halve();
        let lost = send(&scene, &own, 20).await;
        assert!(lost.iter().all(|decision| !decision.is_admitted()));
        let charged = used(&watcher, KEY).await;
        assert!(charged > 1 && stats(&own) == [0; 5], "{charged}");
        proxy.pass();
        let admitted = until_it_is_leased_again(&scene, &own).await;
        scene.refund_leases(slice::from_ref(&own)).await;
        assert_eq!(used(&watcher, KEY).await, charged + admitted);
    });
}

/// Whether it was done may be unknown: sent again, it would take units that others were charged.
#[test]
fn a_refund_that_fails_is_not_sent_again() {
    // So short that no connection is checked meanwhile.
    let ttl = ms(300);
    scene(async |scene| {
        for is_done in [true, false] {
            let (proxy, own, other) = through_a_proxy(&scene, ttl);
            let admitted = hold(&own, KEY).await;
            let held = held(&own);
            // The script of refunds is there.
            let mut charged = other.check(KEY).cost(1_001).await;
            charged.refund(1).await.expect("a response");
            match is_done {
                true => proxy.halve(),
                false => proxy.cut(),
            }
            scene.advance(ttl * 9 / 10);
            scene
                .wait(until_nothing_is_held(slice::from_ref(&own)))
                .await;
            assert_eq!(stats(&own)[3..], [0, held], "it lapses");
            let charged = admitted + 1_000 + if is_done { 0 } else { held };
            assert_eq!(used(&other, KEY).await, charged, "{is_done}");
            proxy.pass();
            // Refunds of other kinds are sent again every 250 ms.
            for _ in 0..20 {
                scene.advance(ms(50));
                real_pause().await;
            }
            assert!(scene.wait(own.check(KEY)).await.is_admitted());
            assert_eq!(used(&other, KEY).await, charged + 1, "{is_done}");
            other.reset(KEY).await.expect("a response");
        }
    });
}

/// Replies that come after the TTL: such a lease is refunded, not spent.
#[test]
fn a_lease_that_comes_too_late_is_refunded() {
    scene(async |scene| {
        let proxy = Proxy::to(scene.server.addr());
        let url = format!("redis://{}", proxy.addr());
        let store = builder(url).build().expect("a store");
        let own = limiter(store, [leased(StrategyKind::Fixed, "p", QUOTA)]);
        assert!(own.check(KEY).await.is_admitted());
        proxy.hold();
        let requests = join_all((0..20).map(|_| own.check(KEY).into_future()));
        let requests = tokio::spawn(requests);
        real_pause().await;
        scene.advance(TTL);
        proxy.pass();
        let decisions = requests.await.expect("no panic");
        let by_store = |it: &Decision| it.is_admitted() && it.source() == DecisionSource::Store;
        assert!(decisions.iter().all(by_store), "{decisions:?}");
        until("the lease comes", async || stats(&own)[1] > 0).await;
        until_nothing_is_held(slice::from_ref(&own)).await;
        let [held, granted, spent, refunded, lapsed] = stats(&own);
        assert_eq!([held, spent, lapsed], [0; 3]);
        assert!(granted > 0 && refunded == granted);
        assert_eq!(used(&own, KEY).await, 21);
    });
}

#[test]
fn no_lease_is_waited_for_longer_than_the_timeout() {
    scene(async |scene| {
        let (proxy, own, _) = through_a_proxy(&scene, TTL);
        hold(&own, KEY).await;
        proxy.hold();
        for _ in 0..held(&own) {
            assert!(own.check(KEY).await.is_admitted());
        }
        let begin = scene.clock.micros();
        let decision = scene.wait(own.check(KEY)).await;
        assert!(matches!(store_error(&decision), StoreError::Timeout));
        let waited = scene.clock.micros() - begin;
        assert!((400_000..500_000).contains(&waited), "{waited}");
        proxy.pass();
        until_it_is_leased_again(&scene, &own).await;
    });
}
