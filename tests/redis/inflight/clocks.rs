//! Stores whose clock steps.

use tollgate_tests::prelude::*;

use crate::inflight::support::*;

const HOUR: i64 = 3_600_000_000;

#[tokio::test]
async fn an_unrenewed_permit_expires_after_its_ttl_and_not_a_microsecond_earlier_wherever_the_clock_steps()
 {
    for world in World::both() {
        for (before, step, after, peeks) in [
            (10, 0, 0, true),
            // A step back of an hour locks no caller out for longer than a TTL from its next request on, and gives no permit.
            (10, -HOUR, 0, false),
            // A permit acquired after it lets earlier ones expire in time.
            (6, -HOUR, 4, false),
        ] {
            let _case = Case(format!("{before}, {step}, {after}, {peeks}"));
            let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
            leak_permits(&world, before, PERMIT_TTL).await;
            world.step(step);
            leak_permits(&world, after, PERMIT_TTL).await;
            for pause in [Duration::ZERO, PERMIT_TTL - MICRO] {
                world.advance(pause);
                match peeks {
                    true => assert_eq!(free(&limiter).await, 0),
                    false => assert!(!admitted_by_store(&admit(&limiter).await)),
                }
            }
            world.advance(MICRO);
            assert_eq!(fill(&limiter).await.len(), 10);
            until_free(&limiter, 10).await;
        }
    }
}

#[tokio::test]
async fn a_permit_that_has_expired_is_not_refunded_and_stays_expired_when_the_clock_steps_back() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let first = admit(&limiter).await.expect("a permit");
        world.advance(LONG_TTL / 2);
        let second = admit(&limiter).await;
        world.advance(LONG_TTL / 2);
        // The request still runs, and was not renewed: the slot may be another request's by then. In process it is held.
        let refunds = first.refund(1).await.expect("a response");
        let in_process = world.redis_server().is_none();
        assert_eq!(refunds[0].units(), u64::from(in_process));
        assert_eq!(free(&limiter).await, 9);
        drop((first, second));
        until_free(&limiter, 10).await;
        // What found it expired forgot it: it holds nothing after the step.
        leak_permits(&world, 3, LONG_TTL).await;
        world.advance(LONG_TTL / 2);
        leak_permits(&world, 2, LONG_TTL).await;
        world.advance(LONG_TTL / 2);
        assert!(!admitted_by_store(&limiter.admit(KEY).cost(10).await));
        world.step(-HOUR / 4);
        assert_eq!(free(&limiter).await, 8);
    }
}

#[tokio::test]
async fn a_request_in_flight_when_the_clock_steps_back_keeps_its_permit_and_releases_it() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        let held = fill(&limiter).await;
        world.step(-HOUR);
        assert!(!admitted_by_store(&admit(&limiter).await));
        if let Some(server) = world.redis_server() {
            let ends = world.now() + PERMIT_TTL.as_micros() as u64;
            until("heartbeats tell the new time", async || {
                holders(server).iter().all(|(_, at)| *at == ends)
            })
            .await;
        }
        drop(held);
        until_free(&limiter, MAX_PERMITS).await;
    }
}
