//! What a shadow policy charges, holds and refunds, beside others of every kind.

use tollgate_tests::prelude::*;

use crate::charging::{shadow::stats, support::*};

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
        let counts = || all_used(limiter, ["reserve", "response"]);
        pass_all(&layer, [500; 3]).await;
        assert_eq!(counts().await, [0; 2]);
        for used in [1, 2, 2, 2] {
            pass_all(&layer, [200]).await;
            assert_eq!(counts().await, [used; 2]);
        }
        assert_eq!(stats(limiter, "reserve"), (7, 2));
        assert_eq!(stats(limiter, "response"), (7, 2));
        // What it would have rejected is no debt of it either.
        assert_eq!(waits(limiter, "even").await.1, secs(3_600));
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
        let names = ["live", "new", "tight"];
        settle_each(&admission, &names.map(|name| (name, 7))).await;
        assert_eq!(all_used(&limiter, names).await, [7, 7, 0]);
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
            concurrent("wide", 5).shadow(),
        ]);
        let mut decisions = Vec::new();
        for _ in 0..6 {
            decisions.push(limiter.check(KEY).await);
        }
        assert_eq!(decisions.iter().filter(|d| d.is_admitted()).count(), 3);
        assert_eq!(stats(&limiter, "tight"), (3, 1));
        assert_eq!(stats(&limiter, "wide"), (3, 0));
        let names = ["live", "tight", "wide"];
        // A request that was rejected is not in flight.
        assert_eq!(all_used(&limiter, names).await, [3, 2, 3]);
        drop(decisions);
        assert_eq!(all_used(&limiter, names).await, [0, 0, 0]);
    }
}

#[tokio::test]
async fn bans_ignore_shadows_and_shadows_ignore_live_bans() {
    for world in World::both() {
        let limiter = world.limiter([
            window("live", "3/h"),
            ban("ban", "2/h", Ban::for_duration(secs(60))),
            window("tight", "1/h").shadow(),
            window("wide", "9/h").shadow(),
        ]);
        // Two are rejected by the live policy; then the key is banned.
        for request in 0..9 {
            let admitted = admitted_by_store(&limiter.check(KEY).await);
            assert_eq!(admitted, request < 3, "{request}");
        }
        assert_eq!(stats(&limiter, "tight"), (3, 2));
        assert_eq!(stats(&limiter, "wide"), (3, 0));
        assert_eq!(used(&limiter, "wide").await, 3);
    }
}
