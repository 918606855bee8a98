//! Requests that take several permits each.

use tollgate_tests::prelude::*;

use crate::inflight::support::*;

#[tokio::test]
async fn each_request_acquires_what_it_costs_and_releases_that_and_no_others_permits() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let take = |cost| limiter.admit(KEY).cost(cost);
        let never = take(11).await.expect_err("more than there are");
        assert_eq!(never.retry_after(), RetryAfter::Never);
        // Several are released together, when the last clone is dropped.
        let several = take(9).await;
        assert_eq!(free(&limiter).await, 1);
        let clone = several.clone();
        drop(several);
        assert_eq!(free(&limiter).await, 1);
        drop(clone);
        until_free(&limiter, 10).await;
        // A partial refund, and the release of the rest, once, also of a clone: not of others' permits.
        let (a, b) = (take(6).await.expect("permits"), take(4).await);
        for (units, refunded, left) in [(1, 1, 1), (2, 2, 3), (99, 3, 6), (99, 0, 6)] {
            let refunds = a.refund(units).await.expect("a response");
            assert_eq!((refunds[0].units(), free(&limiter).await), (refunded, left));
        }
        let rest = take(6).await;
        // The release by a drop is sent ahead of a peek, on the same connection.
        drop(a);
        assert_eq!(free(&limiter).await, 0);
        // A free request passes when all permits are taken, and holds none; nor does a rejected one.
        assert!(admitted_by_store(&take(0).await) && !admitted_by_store(&take(1).await));
        drop((b, rest));
        until_free(&limiter, 10).await;
        // Late releases after a reset free no others.
        let before = fill(&limiter).await;
        let _ = limiter.reset(KEY).await.expect("a response");
        let after = fill(&limiter).await;
        drop(before);
        assert_eq!(free(&limiter).await, 0);
        drop(after);
        until_free(&limiter, 10).await;
        world.no_key_is_immortal();
    }
}

/// More than a script's stack holds.
#[tokio::test]
async fn one_request_may_take_thousands_of_permits() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy_of(10_000, LONG_TTL)]);
        let held = limiter.admit(KEY).cost(10_000).await.expect("permits");
        assert_eq!(free(&limiter).await, 0);
        drop(held);
        until_free(&limiter, 10_000).await;
    }
}

/// A handler that settles its request's true cost, such as its tokens, means what is counted.
#[tokio::test]
async fn a_handlers_charges_and_settlements_acquire_and_free_no_permits() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let admission = limiter.admit(KEY).cost(2).await.expect("a permit");
        let permits = admission.policy("permits").expect("a policy");
        permits.charge(3).await.expect("a response");
        assert_eq!(free(&limiter).await, MAX_PERMITS - 2);
        for cost in [900, 0] {
            permits.settle(cost).await.expect("a response");
            assert_eq!(free(&limiter).await, MAX_PERMITS - 2);
        }
        permits.refund(1).await.expect("a response");
        assert_eq!(free(&limiter).await, MAX_PERMITS - 1);
        drop((permits, admission));
        until_free(&limiter, MAX_PERMITS).await;
    }
}
