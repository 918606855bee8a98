//! What a shadow policy charges, holds and refunds, beside others of every kind.

use tollgate_tests::prelude::*;

use crate::charging::{layers::stacked, shadow::stats, support::*};

#[tokio::test]
async fn a_shadow_charges_by_its_mode_and_refunds_its_charges() {
    for world in World::both() {
        let reserve = window("reserve", "2/h").refund_unless(outcome::success);
        let response = window("response", "2/h").charge_after(outcome::success);
        let even = even("even", "2/h").charge_after(outcome::success);
        let layer = world.layer([
            window("live", "100/h"),
            reserve.shadow(),
            response.shadow(),
            even.shadow(),
        ]);
        let limiter = layer.limiter();
        let counts = async || {
            let reserve = used(limiter, "reserve").await;
            (reserve, used(limiter, "response").await)
        };
        for _ in 0..3 {
            assert_eq!(pass(&layer, text(500)).await, 500);
            assert_eq!(counts().await, (0, 0));
        }
        for used in [1, 2, 2, 2] {
            assert_eq!(pass(&layer, text(200)).await, 200);
            assert_eq!(counts().await, (used, used));
        }
        assert_eq!(stats(limiter, "reserve"), (7, 2, 0));
        assert_eq!(stats(limiter, "response"), (7, 2, 0));
        // What it would have rejected is no debt of it either.
        assert_eq!(waits(limiter, "even").await.1, secs(3_600));
    }
}

#[tokio::test]
async fn a_candidate_that_charges_nothing_on_arrival_is_compared_like_any_other() {
    for world in World::both() {
        let by_response = |name| window(name, "2/h").charge_after(outcome::success);
        let layer = world.layer([
            window("other", "3/h"),
            window("live", "1/h"),
            by_response("new").shadow_of("live"),
            by_response("beside").shadow(),
        ]);
        let limiter = layer.limiter();
        assert_eq!(pass(&layer, text(200)).await, 200);
        // The live policy rejects, and the candidate would not: what these requests would have led to is not known.
        for _ in 0..3 {
            assert_eq!(pass(&layer, text(200)).await, 429);
        }
        assert_eq!(stats(limiter, "new"), (4, 0, 3));
        assert_eq!(stats(limiter, "beside"), (4, 0, 0));
        // Where another rejects as well, the candidate changes nothing.
        let _ = limiter
            .charge([("other", KEY)], 9)
            .await
            .expect("a response");
        assert_eq!(pass(&layer, text(200)).await, 429);
        assert_eq!(stats(limiter, "new"), (5, 0, 3));
    }
}

#[tokio::test]
async fn a_shadow_is_settled_only_where_it_would_have_admitted() {
    for world in World::both() {
        let limiter = world.limiter([
            window("live", "100/h"),
            window("new", "10/h").shadow(),
            window("tight", "1/h").shadow(),
        ]);
        let check = async |cost| limiter.check(KEY).cost(cost).await;
        let admission = check(2).await.into_result().expect("a pass");
        let each = ["live", "new", "tight"].map(|name| (name, 7));
        admission.settle_each(each).await.expect("a response");
        assert_eq!(used(&limiter, "live").await, 7);
        assert_eq!(used(&limiter, "new").await, 7);
        assert_eq!(used(&limiter, "tight").await, 0);
        let mut decision = check(3).await;
        // Only enforced policies are reported.
        assert_eq!(decision.refund(3).await.expect("a response")[0].units(), 3);
        assert_eq!(used(&limiter, "new").await, 7);
    }
}

#[tokio::test]
async fn shadow_in_flight_limits_hold_and_release_permits() {
    for world in World::both() {
        let concurrent = |name: &str, n| {
            let policy = Policy::new(name, Quota::concurrent(n)).key(extract::global());
            policy.strategy(Concurrency::new())
        };
        let limiter = world.limiter([
            concurrent("live", 3),
            concurrent("tight", 2).shadow(),
            concurrent("wide", 5).shadow_of("live"),
        ]);
        let mut decisions = Vec::new();
        for _ in 0..6 {
            decisions.push(limiter.check(KEY).await);
        }
        assert_eq!(decisions.iter().filter(|d| d.is_admitted()).count(), 3);
        assert_eq!(stats(&limiter, "tight"), (6, 1, 0));
        assert_eq!(stats(&limiter, "wide"), (6, 0, 3));
        let used_by = async |name| used(&limiter, name).await;
        assert_eq!((used_by("live").await, used_by("tight").await), (3, 2));
        // A request that was rejected is not in flight.
        assert_eq!(used_by("wide").await, 3);
        drop(decisions);
        for name in ["live", "tight", "wide"] {
            assert_eq!(used_by(name).await, 0, "{name}");
        }
        // A small shadow that records callers doesn't limit how many requests are checked at once.
        let list = window("list", "2/h").strategy(ListWindow).shadow();
        let limiter = world.limiter([window("p", "50/h"), list]);
        assert_eq!(limiter.check(KEY).times(40).await.admitted(), 40);
        assert_eq!(used(&limiter, "list").await, 2);
    }
}

#[tokio::test]
async fn named_keys_reach_a_candidate_through_the_live_policy() {
    for world in World::both() {
        let limiter = world.limiter([
            window("live", "9/h"),
            window("new", "9/h").shadow_of("live"),
            window("else", "9/h").key(extract::header("x")).shadow(),
        ]);
        let alice = Key::new("alice");
        assert!(admitted_by_store(&limiter.check([("live", alice)]).await));
        let used = async |key| {
            let seen = limiter.peek([("new", key)]).await.expect("a response");
            let policy = seen.policy("new").expect("a policy");
            policy.limit() - policy.remaining()
        };
        assert_eq!(used(alice).await, 1);
        let named = [("live", alice), ("new", KEY)];
        assert!(admitted_by_store(&limiter.check(named).await));
        assert_eq!((used(alice).await, used(KEY).await), (1, 1));
        assert_eq!(stats(&limiter, "else"), (0, 0, 0));
    }
}

#[tokio::test]
async fn bans_ignore_shadows_and_shadows_ignore_live_bans() {
    for world in World::both() {
        let limiter = world.limiter([
            window("live", "3/h"),
            ban("ban", "2/h", Ban::for_duration(secs(60))),
            window("tight", "1/h").shadow(),
            window("wide", "9/h").shadow_of("live"),
        ]);
        // Two are rejected by the live policy; then the key is banned, and the candidate would be of no help.
        for request in 0..9 {
            let admitted = admitted_by_store(&limiter.check(KEY).await);
            assert_eq!(admitted, request < 3, "{request}");
        }
        assert_eq!(stats(&limiter, "tight"), (9, 2, 0));
        assert_eq!(stats(&limiter, "wide"), (9, 0, 2));
        assert_eq!(used(&limiter, "wide").await, 5);
    }
}

#[tokio::test]
async fn a_rejection_by_an_inner_layer_refunds_the_charges_of_shadows_too() {
    for world in World::both() {
        let outer = world.layer([window("outer", "9/h"), window("shadow", "9/h").shadow()]);
        let inner = world.layer([window("inner", "1/h")]);
        for status in [200, 429, 429] {
            assert_eq!(stacked(&outer, &inner, 200).await, status);
        }
        assert_eq!(used(outer.limiter(), "outer").await, 1);
        assert_eq!(used(outer.limiter(), "shadow").await, 1);
    }
}
