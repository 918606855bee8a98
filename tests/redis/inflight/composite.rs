//! In-flight limits beside rates: all or nothing.

use tollgate_tests::prelude::*;

use crate::inflight::support::{World, *};

fn rate(requests: u64) -> Policy {
    let policy = Policy::new("rate", Quota::requests(requests).per_hour());
    policy.key(extract::global()).strategy(Gcra)
}

#[tokio::test]
async fn a_request_rejected_by_the_rate_holds_no_permit() {
    for world in World::both() {
        for policies in [
            [rate(4), permit_policy(LONG_TTL)],
            [permit_policy(LONG_TTL), rate(4)],
        ] {
            let limiter = world.limiter(policies);
            let held = fill(&limiter).await;
            assert_eq!(held.len(), 4);
            for _ in 0..3 {
                let rejected = check(&limiter).await;
                assert!(rejected.policy("rate").expect("a policy").rejected());
                assert!(!rejected.policy("permits").expect("a policy").rejected());
            }
            assert_eq!(free(&limiter).await, MAX_PERMITS - 4);
            drop(held);
            until_free(&limiter, MAX_PERMITS).await;
            // Permits come back; what the rate counted stays.
            assert_eq!(left_of(&limiter, "rate").await, 0);
            let _ = limiter.reset(KEY).await.expect("a response");
        }
    }
}

#[tokio::test]
async fn a_request_without_a_permit_is_not_charged_by_the_rate() {
    for world in World::both() {
        for policies in [
            [rate(100), permit_policy_of(2, LONG_TTL)],
            [permit_policy_of(2, LONG_TTL), rate(100)],
        ] {
            let limiter = world.limiter(policies);
            let held = fill(&limiter).await;
            assert_eq!(held.len(), 2);
            for _ in 0..5 {
                let rejected = check(&limiter).await;
                assert!(rejected.policy("permits").expect("a policy").rejected());
                assert!(!rejected.policy("rate").expect("a policy").rejected());
            }
            assert_eq!(left_of(&limiter, "rate").await, 98);
            drop(held);
            until_free(&limiter, 2).await;
            let _ = limiter.reset(KEY).await.expect("a response");
        }
    }
}

#[tokio::test]
async fn two_in_flight_limits_are_taken_and_released_together() {
    for world in World::both() {
        let narrow = Policy::new("narrow", Quota::concurrent(3)).key(extract::global());
        let limiter = world.limiter([permit_policy(LONG_TTL), narrow]);
        let held = fill(&limiter).await;
        assert_eq!(held.len(), 3);
        assert_eq!(free(&limiter).await, MAX_PERMITS - 3);
        drop(held);
        until_free(&limiter, MAX_PERMITS).await;
        assert_eq!(left_of(&limiter, "narrow").await, 3);
    }
}

#[tokio::test]
async fn several_requests_at_once_are_charged_in_full_under_both() {
    for world in World::both() {
        let limiter = world.limiter([rate(7), permit_policy(LONG_TTL)]);
        let several = limiter.check(KEY).times(50).await;
        assert!(admitted_by_store(&several));
        assert_eq!(several.admitted(), 7);
        assert_eq!(free(&limiter).await, MAX_PERMITS - 7);
        drop(several);
        until_free(&limiter, MAX_PERMITS).await;
        assert_eq!(left_of(&limiter, "rate").await, 0);
    }
}
