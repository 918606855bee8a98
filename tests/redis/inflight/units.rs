//! Requests that take several permits each.

use tollgate::limiter::Refund;
use tollgate_tests::prelude::*;

use crate::inflight::support::{World, *};

#[tokio::test]
async fn a_request_that_costs_three_acquires_three_permits_and_releases_three() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL).cost(3)]);
        let mut held = fill(&limiter).await;
        assert_eq!(held.len(), 3, "9 of 10 permits are theirs");
        assert_eq!(free(&limiter).await, 1);
        if let World::Redis(server, _) = &world {
            assert_eq!(stored_permits(server), 9);
        }
        held.pop();
        until_free(&limiter, 4).await;
        assert!(
            admitted_by_store(&check(&limiter).await),
            "the next takes what it left"
        );
        drop(held);
        until_free(&limiter, MAX_PERMITS).await;
    }
}

#[tokio::test]
async fn a_cost_of_more_than_all_permits_has_no_retry_after() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let decision = limiter.check(KEY).cost(MAX_PERMITS + 1).await;
        assert!(!admitted_by_store(&decision));
        assert_eq!(decision.retry_after(), RetryAfter::Never);
        let all = limiter.check(KEY).cost(MAX_PERMITS).await;
        assert!(admitted_by_store(&all), "just as many as there are do fit");
        assert!(matches!(
            check(&limiter).await.retry_after(),
            RetryAfter::In(_)
        ));
    }
}

#[tokio::test]
async fn several_requests_at_once_hold_their_permits_in_full_and_release_them_together() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL).cost(3)]);
        let several = limiter.check(KEY).times(5).await;
        assert_eq!(several.admitted(), 3);
        assert_eq!(free(&limiter).await, 1);
        let clone = several.clone();
        drop(several);
        assert_eq!(free(&limiter).await, 1, "a clone is left");
        drop(clone);
        until_free(&limiter, MAX_PERMITS).await;
    }
}

async fn refund(decision: &mut Decision, units: u64) -> u64 {
    let refunds = decision.refund(units).await.expect("a response");
    refunds.iter().map(Refund::units).sum()
}

#[tokio::test]
async fn a_partial_refund_frees_its_permits_and_the_release_frees_the_rest_once() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let mut first = limiter.check(KEY).cost(2).times(3).await;
        let second = limiter.check(KEY).cost(4).await;
        assert_eq!((first.admitted(), free(&limiter).await), (3, 0));

        assert_eq!(refund(&mut first, 1).await, 1);
        assert_eq!(free(&limiter).await, 1);
        assert_eq!(refund(&mut first, 2).await, 2);
        assert_eq!(free(&limiter).await, 3);
        let mut clone = first.clone();
        assert_eq!(refund(&mut first, 99).await, 3, "all that was left");
        assert_eq!(refund(&mut first, 99).await, 0);
        assert_eq!(
            refund(&mut clone, 99).await,
            0,
            "a clone can't give it again"
        );
        assert_eq!(free(&limiter).await, 6);

        let third = limiter.check(KEY).cost(6).await;
        assert!(admitted_by_store(&third));
        drop((first, clone));
        // The release by the drop is sent ahead of this peek, on the same connection.
        assert_eq!(free(&limiter).await, 0, "not others' permits");
        drop((second, third));
        until_free(&limiter, MAX_PERMITS).await;
    }
}

#[tokio::test]
async fn a_free_request_passes_when_all_permits_are_taken_and_holds_none() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let held = fill(&limiter).await;
        let free_of_charge = limiter.check(KEY).cost(0).await;
        assert!(admitted_by_store(&free_of_charge));
        assert_eq!(held.len() as u64, MAX_PERMITS);
        drop(held);
        until_free(&limiter, MAX_PERMITS).await;
    }
}

#[tokio::test]
async fn more_permits_than_a_scripts_stack_holds_are_acquired_and_released() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy_of(10_000, LONG_TTL)]);
        // The names of two million requests alone would be some 50 MB on the wire.
        for (cost, times) in [(10_000, 1), (1, 2_000_000)] {
            let all = limiter.check(KEY).cost(cost).times(times).await;
            assert_eq!(all.admitted() * cost, 10_000);
            assert_eq!(free(&limiter).await, 0);
            drop(all);
            until_free(&limiter, 10_000).await;
        }
    }
}

#[tokio::test]
async fn a_reset_frees_all_permits_and_late_releases_free_no_others() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let before = fill(&limiter).await;
        let _ = limiter.reset(KEY).await.expect("a response");
        let after = fill(&limiter).await;
        assert_eq!(after.len() as u64, MAX_PERMITS);
        drop(before);
        assert_eq!(free(&limiter).await, 0);
        drop(after);
        until_free(&limiter, MAX_PERMITS).await;
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
