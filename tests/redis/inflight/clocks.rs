//! Stores whose clock steps.

use tollgate_tests::prelude::*;

use crate::inflight::support::{World, *};

const HOUR: Duration = secs(3_600);

#[tokio::test]
async fn an_unrenewed_permit_expires_after_its_ttl_and_not_a_microsecond_earlier() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        leak_permits(&limiter, MAX_PERMITS as usize);
        world.advance(PERMIT_TTL - Duration::from_micros(1));
        assert_eq!(free(&limiter).await, 0);
        assert!(!admitted_by_store(&check(&limiter).await));
        world.advance(Duration::from_micros(1));
        assert_eq!(fill(&limiter).await.len() as u64, MAX_PERMITS);
    }
}

/// The request that still runs after its permit has expired: the slot may be another request's by then.
#[tokio::test]
async fn a_permit_that_has_expired_is_not_refunded() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let mut first = check(&limiter).await;
        world.advance(LONG_TTL / 2);
        let second = check(&limiter).await;
        assert!(admitted_by_store(&first) && admitted_by_store(&second));
        world.advance(LONG_TTL / 2);
        let refunded = first.refund(1).await.expect("a response");
        assert_eq!(refunded[0].units(), 0);
        assert_eq!(free(&limiter).await, MAX_PERMITS - 1);
    }
}

/// Whichever call finds the step: a check, or a peek.
#[tokio::test]
async fn a_step_back_of_an_hour_locks_no_caller_out_for_longer_than_one_permit_ttl() {
    for ask in [true, false] {
        for world in World::both() {
            let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
            leak_permits(&limiter, MAX_PERMITS as usize);
            world.rewind(HOUR);
            match ask {
                true => assert!(!admitted_by_store(&check(&limiter).await)),
                false => assert_eq!(free(&limiter).await, 0),
            }
            world.advance(PERMIT_TTL - Duration::from_micros(1));
            assert!(
                !admitted_by_store(&check(&limiter).await),
                "a step gives no permit"
            );
            world.advance(Duration::from_micros(1));
            assert_eq!(fill(&limiter).await.len() as u64, MAX_PERMITS);
        }
    }
}

/// Some permits are free, so that requests after the step get one.
#[tokio::test]
async fn a_permit_acquired_after_a_step_back_lets_earlier_ones_expire_in_time() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        leak_permits(&limiter, 6);
        world.rewind(HOUR);
        leak_permits(&limiter, 4);
        assert!(!admitted_by_store(&check(&limiter).await));
        world.advance(PERMIT_TTL);
        assert_eq!(fill(&limiter).await.len() as u64, MAX_PERMITS);
        if let World::Redis(server, _) = &world {
            assert_eq!(server.immortal_keys(), [""; 0]);
        }
    }
}

#[tokio::test]
async fn a_request_in_flight_when_the_clock_steps_back_keeps_its_permit_and_releases_it() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        let held = fill(&limiter).await;
        world.rewind(HOUR);
        assert!(!admitted_by_store(&check(&limiter).await));
        if let World::Redis(server, clock) = &world {
            let ends = clock.micros() + PERMIT_TTL.as_micros() as u64;
            until("heartbeats tell the new time", async || {
                expiries(server).iter().all(|at| *at == ends)
            })
            .await;
        }
        drop(held);
        until_free(&limiter, MAX_PERMITS).await;
    }
}

/// What found it expired forgot it: it holds nothing after the clock has stepped back.
#[tokio::test]
async fn an_expired_permit_stays_expired_when_the_clock_steps_back() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        leak_permits(&limiter, 3);
        world.advance(LONG_TTL / 2);
        leak_permits(&limiter, 2);
        world.advance(LONG_TTL / 2);
        let all = limiter.check(KEY).cost(MAX_PERMITS).await;
        assert!(!admitted_by_store(&all));
        world.rewind(LONG_TTL / 4);
        assert_eq!(free(&limiter).await, MAX_PERMITS - 2);
    }
}
