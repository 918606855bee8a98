//! What holds a permit, and for how long.

use tollgate_tests::prelude::*;

use crate::inflight::support::*;

#[tokio::test]
async fn the_admission_of_a_decision_holds_its_permit_until_its_last_clone_is_dropped() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let admission = limiter.admit(KEY).await.expect("admitted");
        let clone = admission.clone();
        drop(admission);
        assert_eq!(free(&limiter).await, MAX_PERMITS - 1);
        let hold = clone.hold_permits();
        drop(clone);
        assert_eq!(free(&limiter).await, MAX_PERMITS - 1, "held");
        let clone = hold.clone();
        drop(hold);
        assert_eq!(free(&limiter).await, MAX_PERMITS - 1, "held by a clone");
        drop(clone);
        until_free(&limiter, MAX_PERMITS).await;
    }
}

/// A decision is data: it could hold no permit. The mistake is logged once, not for each request.
#[tokio::test]
async fn a_check_under_an_in_flight_limit_is_refused_by_name_and_takes_no_permit() {
    for world in World::both() {
        let ((log, _guard), start) = (Log::of_errors(), Instant::now());
        let once = StrategyKind::Fixed.policy("once", "1/month");
        let limiter = world.limiter([once, permit_policy(LONG_TTL)]);
        for _ in 0..3 {
            let decision = limiter.check(KEY).await;
            let DecisionKind::Invalid(CallError::AdmitRequired { policy, .. }) = decision.kind()
            else {
                panic!("{decision:?}");
            };
            assert_eq!(&**policy, "permits");
        }
        let line = log.throttled("a call is invalid", start);
        assert!(line.contains("permits"), "{line}");
        assert_eq!(free(&limiter).await, MAX_PERMITS);
        // Nor is the other policy charged, which a check may name.
        assert!(limiter.check([("once", KEY)]).await.is_admitted());
    }
}

#[tokio::test]
async fn the_decisions_that_an_admission_shows_hold_no_permit() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let admission = admit(&limiter).await.expect("admitted");
        let shown = admission.decisions();
        drop(admission);
        until_free(&limiter, MAX_PERMITS).await;
        drop(shown);
        assert_eq!(free(&limiter).await, MAX_PERMITS);
    }
}

/// Also on a thread of the application's own, where nothing can be spawned.
#[test]
fn a_permit_dropped_outside_of_its_runtime_is_released() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let [one, other] = [0, 1].map(|_| Runtime::new().expect("a runtime"));
        for is_inside in [true, false] {
            let held = one.block_on(fill(&limiter));
            assert_eq!(held.len() as u64, MAX_PERMITS);
            match is_inside {
                true => other.block_on(async { drop(held) }),
                false => drop(held),
            }
            other.block_on(until_free(&limiter, MAX_PERMITS));
        }
        let held = one.block_on(fill(&limiter));
        assert_eq!(held.len() as u64, MAX_PERMITS);
        drop(one);
        other.block_on(async { drop(held) });
        other.block_on(until_free(&limiter, MAX_PERMITS));
    }
}
