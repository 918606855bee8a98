//! Servers that are gone or too slow, and replies that are late or lost, while units are leased.

use crate::leases::support::*;
use std::slice;
use tokio::{runtime::Handle, task::coop::unconstrained};
use tollgate::redis::RedisStoreBuilder;

const QUOTA: &str = "1000000/month";

/// A proxy, and a store through it.
fn through_a_proxy(scene: &Scene) -> (Proxy, RedisStoreBuilder) {
    let proxy = Proxy::to(scene.server.addr());
    let store = builder(format!("redis://{}", proxy.addr())).no_circuit_breaker();
    (proxy, store)
}

/// Sends so many requests at once that the key is hot. No time passes, however long they take.
async fn send(limiter: &Limiter, key: Key) -> Vec<Decision> {
    join_all((0..100).map(|_| limiter.check(key).into_future())).await
}

/// Sends requests until a lease admits one.
async fn until_it_is_leased_again(scene: &Scene, limiter: &Limiter, key: Key) {
    until("it is leased again", async || {
        scene.advance(ms(50));
        let decisions = send(limiter, key).await;
        let by_lease = |it: &Decision| it.source() == DecisionSource::Lease;
        decisions.iter().any(by_lease)
    })
    .await;
}

#[test]
fn with_the_server_gone_what_is_held_is_spent_first_and_then_the_fallback_decides() {
    scene(async |scene| {
        for (key, response) in [
            ("rejects", OnStoreError::Reject),
            ("admits", OnStoreError::Admit),
            ("shares", LocalFallback::shared_by(2).into()),
        ] {
            let (key, (proxy, store)) = (Key::new(key), through_a_proxy(&scene));
            let limiter = Limiter::builder()
                .store(store.built())
                .policy(leased(Fixed, "p", QUOTA))
                .on_store_error(response)
                .built();
            hold(&limiter, key).await;
            proxy.cut();
            for _ in 0..held(&limiter) {
                let decision = limiter.check(key).await;
                assert_eq!(decision.source(), DecisionSource::Lease);
                assert!(decision.is_admitted());
            }
            let decision = scene.wait(limiter.check(key)).await;
            assert_eq!(decision.source(), DecisionSource::Fallback);
            let has_failed = matches!(decision.kind(), DecisionKind::StoreFailed(_));
            let is_rejected = matches!(response, OnStoreError::Reject);
            assert!(has_failed == is_rejected && decision.is_admitted() != is_rejected);
            proxy.pass();
            until_it_is_leased_again(&scene, &limiter, key).await;
        }
    });
}

/// Whether it was charged is unknown: no request is admitted by its units, which lapse.
#[test]
fn a_lease_whose_reply_is_lost_is_not_spent_and_has_lapsed() {
    scene(async |scene| {
        let (proxy, store) = through_a_proxy(&scene);
        let policy = Fixed.policy("p", QUOTA);
        let policy = policy.lease(Lease::max_units(300).ttl(secs(2)));
        // Its IO is on the test's runtime: what is requested while the test does not wait is one call.
        let own = limiter(store.runtime(Handle::current()).built(), [policy]);
        let watcher = scene.single(Fixed, QUOTA);
        // What requests used that no lease admitted, and leases whose replies were lost.
        let (mut by_store, mut lost) = (0, 0);
        for cut in 1..=6 {
            by_store += until_held(&scene, &own).await;
            proxy.halve();
            let charged = used(&watcher, KEY).await;
            // Before the last unit is spent, more are requested. The request that finds none is dropped before it is sent.
            let at_once = || unconstrained(own.check(KEY).into_future()).now_or_never();
            while at_once().is_some_and(|it| it.source() == DecisionSource::Lease) {}
            until("it lapses", async || stats(&own)[4] > lost).await;
            lost += used(&watcher, KEY).await - charged;
            assert_eq!(stats(&own)[4], lost, "cut {cut}");
            proxy.pass();
        }
        scene.refund_leases(slice::from_ref(&own)).await;
        let [_, _, spent, _, lapsed] = stats(&own);
        // Every unit is accounted for.
        assert_eq!(lapsed, lost);
        assert_eq!(used(&watcher, KEY).await, by_store + spent + lapsed);
    });
}

/// Sends requests until another lease is held, and none is on its way; returns how many the store admitted.
async fn until_held(scene: &Scene, limiter: &Limiter) -> u64 {
    let (mut by_store, granted) = (0, stats(limiter)[1]);
    until("a lease is held", async || {
        scene.advance(ms(20));
        for decision in send(limiter, KEY).await {
            let is_by_store = decision.source() == DecisionSource::Store;
            by_store += u64::from(is_by_store && decision.is_admitted());
        }
        // What is on its way is answered before this is.
        limiter.peek(KEY).await.expect("a response");
        stats(limiter)[1] > granted && held(limiter) > 20
    })
    .await;
    by_store
}

/// Whether it was done may be unknown: sent again, it would take units that others were charged.
#[test]
fn a_refund_that_fails_is_not_sent_again() {
    scene(async |scene| {
        for is_done in [true, false] {
            let (proxy, store) = through_a_proxy(&scene);
            let own = limiter(store.built(), [leased(Fixed, "p", QUOTA)]);
            let other = scene.single(Fixed, QUOTA);
            let admitted = hold(&own, KEY).await;
            let held = held(&own);
            // The script of refunds is there.
            let charged = other.admit(KEY).cost(1_001).await.expect("room");
            charged.refund(1).await.expect("a response");
            match is_done {
                true => proxy.halve(),
                false => proxy.cut(),
            }
            scene.advance(TTL * 9 / 10);
            until_nothing_is_held(slice::from_ref(&own)).await;
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
