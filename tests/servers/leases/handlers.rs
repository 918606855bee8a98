//! What handlers do with units of leases: refunds, charges, settlements, recorded callers; and requests that wait.

use crate::leases::support::*;
use std::collections::HashMap;

fn exact(scene: &Scene) -> impl Iterator<Item = (Limiter, Key)> {
    EXACT.into_iter().map(|strategy| {
        let key = Key::new(format!("{strategy:?}"));
        (scene.single(strategy, "100000/month"), key)
    })
}

async fn until_used_at_last(scene: &Scene, limiter: &Limiter, key: Key, units: u64) {
    scene.refund_leases(std::slice::from_ref(limiter)).await;
    until_used(limiter, key, units).await;
}

#[test]
fn a_refund_of_a_leased_unit_gives_it_back_once() {
    scene(async |scene| {
        for (limiter, key) in exact(&scene) {
            let (admission, before) = admit_by_lease(&limiter, key).await;
            let policy = admission.policy("p").expect("a policy");
            for (units, refunded) in [(9, 1), (1, 0)] {
                let refunds = policy.refund(units).await.expect("a response");
                let units: u64 = refunds.iter().map(|refund| refund.units()).sum();
                assert_eq!(units, refunded, "{key:?}");
            }
            until_used_at_last(&scene, &limiter, key, before).await;
        }
    });
}

#[test]
fn a_leased_unit_is_settled_to_the_true_cost() {
    scene(async |scene| {
        for (limiter, key) in exact(&scene) {
            let (admission, before) = admit_by_lease(&limiter, key).await;
            scene.refund_leases(std::slice::from_ref(&limiter)).await;
            let policy = admission.policy("p").expect("a policy");
            for cost in [0, 1, 5, 2] {
                policy.settle(cost).await.expect("a response");
                until_used(&limiter, key, before + cost).await;
            }
            policy.charge(4).await.expect("a response");
            until_used(&limiter, key, before + 6).await;
        }
    });
}

#[test]
fn a_meter_settles_a_leased_unit() {
    scene(async |scene| {
        for units in [0, 1, 7] {
            let limiter = scene.single(Fixed, "100000/month");
            let key = Key::new(format!("{units}"));
            let (admission, before) = admit_by_lease(&limiter, key).await;
            let mut meter = admission.policy("p").expect("a policy").meter();
            meter.set(units);
            meter.finish().await.expect("a response");
            until_used_at_last(&scene, &limiter, key, before + units).await;
        }
    });
}

/// A GCRA's refund lacks what time has refilled already.
#[test]
fn a_refund_of_a_leased_unit_of_a_rate_is_no_more_than_what_time_has_left() {
    scene(async |scene| {
        for strategy in [Gcra, Bucket] {
            let limiter = scene.single(strategy, "10000/month");
            let key = Key::new(format!("{strategy:?}"));
            let (admission, before) = admit_by_lease(&limiter, key).await;
            let policy = admission.policy("p").expect("a policy");
            policy.refund(1).await.expect("a response");
            drop(admission);
            scene.refund_leases(std::slice::from_ref(&limiter)).await;
            // A unit refills in four minutes: fractions are rounded up.
            let used = used(&limiter, key).await;
            let expected = before..=before + 1;
            assert!(expected.contains(&used), "{strategy:?}: {before} {used}");
        }
    });
}

#[test]
fn callers_of_leased_units_are_recorded() {
    scene(async |scene| {
        let policy = leased(List, "p", "100000/month");
        let limiter = scene.limiter([policy.caller(extract::header("x-caller"))]);
        let callers = ["alice", "bob", "carol"];
        let mut admitted: HashMap<Key, u64> = HashMap::new();
        let mut by_lease: HashMap<Key, u64> = HashMap::new();
        for round in 0..600 {
            let caller = callers[round / 25 % 3];
            let request = Request::get("/").header("x-caller", caller).body(());
            let (parts, ()) = request.expect("a request").into_parts();
            let decision = limiter.check(KEY).parts(&parts).await;
            assert!(decision.is_admitted());
            *admitted.entry(Key::new(caller)).or_default() += 1;
            let leased = decision.source() == DecisionSource::Lease;
            *by_lease.entry(Key::new(caller)).or_default() += u64::from(leased);
        }
        assert!(by_lease.values().all(|units| *units > 0), "{by_lease:?}");
        until_used_at_last(&scene, &limiter, KEY, 600).await;
        let handle = limiter.policy("p").expect("a policy");
        let mut recorded: HashMap<Key, u64> = HashMap::new();
        for caller in handle.callers(KEY).await.expect("a response") {
            *recorded.entry(caller).or_default() += 1;
        }
        assert_eq!(recorded, admitted);
    });
}

#[test]
fn a_refund_by_a_handler_takes_its_own_caller_off() {
    scene(async |scene| {
        let limiter = scene.single(List, "100000/month");
        let (admission, before) = admit_by_lease(&limiter, KEY).await;
        let policy = admission.policy("p").expect("a policy");
        policy.refund(1).await.expect("a response");
        until_used_at_last(&scene, &limiter, KEY, before).await;
        let callers = limiter.policy("p").expect("a policy").callers(KEY).await;
        assert_eq!(callers.expect("a response").len() as u64, before);
    });
}

/// Of 3,000 per second, 4,000 are admitted in two.
#[test]
fn requests_that_wait_are_admitted_by_leases_too_and_never_over() {
    scene(async |scene| {
        let limiter = scene.single(Calendar, "3000/s");
        let second = || scene.clock.micros() / 1_000_000;
        let mut seconds = HashMap::from([(second(), hold(&limiter, KEY).await)]);
        let admit = async || {
            let begun = second();
            let admission = limiter.wait(KEY, TEST_TIMEOUT).await;
            let admission = admission.expect("its turn comes");
            let by_lease = |it: &Decision| it.source() == DecisionSource::Lease;
            // While it waited for the response, the next second may have begun.
            let in_one = Some(begun).filter(|begun| *begun == second());
            (in_one, admission.decisions().iter().any(by_lease))
        };
        let spent = || leases(&limiter, "p").expect("leases").spent;
        let (mut by_lease, before) = (0, spent());
        let requests = async {
            for _ in 0..500 {
                for (second, is_leased) in join_all((0..8).map(|_| admit())).await {
                    if let Some(second) = second {
                        *seconds.entry(second).or_default() += 1;
                    }
                    by_lease += u64::from(is_leased);
                }
            }
        };
        scene.wait(requests).await;
        assert!(seconds.values().all(|admitted| *admitted <= 3_000));
        assert!(by_lease > 0);
        assert_eq!(spent() - before, by_lease);
    });
}
