//! In-flight limits beside rates: all or nothing.

use tollgate_tests::prelude::*;

use crate::inflight::support::{World, *};

fn rate(requests: u64) -> Policy {
    let policy = Policy::new("rate", Quota::requests(requests).per_hour());
    policy.key(extract::global()).strategy(Gcra)
}

#[tokio::test]
async fn a_request_that_one_policy_rejects_is_charged_by_neither() {
    for world in World::both() {
        for (units, permits) in [(4, MAX_PERMITS), (100, 2)] {
            for is_first in [true, false] {
                let mut policies = [rate(units), permit_policy_of(permits, LONG_TTL)];
                if !is_first {
                    policies.reverse();
                }
                let limiter = world.limiter(policies);
                let held = fill(&limiter).await;
                let admitted = units.min(permits);
                assert_eq!(held.len() as u64, admitted);
                for _ in 0..3 {
                    let rejected = check(&limiter).await;
                    let by = |name| rejected.policy(name).expect("a policy").rejected();
                    let rejecting = (by("rate"), by("permits"));
                    assert_eq!(rejecting, (units < permits, permits < units));
                }
                assert_eq!(free(&limiter).await, permits - admitted);
                drop(held);
                until_free(&limiter, permits).await;
                // Permits come back; what the rate counted stays.
                assert_eq!(left_of(&limiter, "rate").await, units - admitted);
                let _ = limiter.reset(KEY).await.expect("a response");
            }
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
