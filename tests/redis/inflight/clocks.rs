//! Stores whose clock steps.

use tollgate_tests::prelude::*;

use crate::inflight::{
    script::play_each,
    support::{World, *},
};

/// `PERMIT_TTL` is 300 ms.
#[tokio::test]
async fn an_unrenewed_permit_expires_after_its_ttl_and_not_a_microsecond_earlier_wherever_the_clock_steps()
 {
    let scripts = [
        "leak 10, +299999us, free: 0, take a: false, +1us, fill b: 10",
        // A step back of an hour locks no caller out for longer, and gives no permit, whichever call finds it.
        "leak 10, back 3600s, take a: false, +299999us, take b: false, +1us, fill c: 10",
        "leak 10, back 3600s, free: 0, +299999us, take a: false, +1us, fill b: 10",
        // A permit acquired after it lets earlier ones expire in time.
        "leak 6, back 3600s, leak 4, take a: false, +300ms, fill b: 10",
    ];
    play_each(permit_policy(PERMIT_TTL), &scripts).await;
}

#[tokio::test]
async fn a_permit_that_has_expired_is_not_refunded_and_stays_expired_when_the_clock_steps_back() {
    let scripts = [
        // The request still runs: the slot may be another request's by then.
        "take a: true, +1800s, take b: true, +1800s, refund a 1: 0, free: 9",
        // What found it expired forgot it: it holds nothing after the step.
        "leak 3, +1800s, leak 2, +1800s, take a cost 10: false, back 900s, free: 8",
    ];
    play_each(permit_policy(LONG_TTL), &scripts).await;
}

#[tokio::test]
async fn a_request_in_flight_when_the_clock_steps_back_keeps_its_permit_and_releases_it() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        let held = fill(&limiter).await;
        world.rewind(secs(3_600));
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
