//! What handlers do with units of leases: refunds, charges, settlements, recorded callers; and requests that wait.

use std::slice;

use crate::leases::support::*;

async fn until_used_at_last(scene: &Scene, limiter: &Limiter, key: Key, units: u64) {
    scene.refund_leases(slice::from_ref(limiter)).await;
    until_used(limiter, key, units).await;
}

#[test]
fn a_leased_unit_is_refunded_once_and_settled_to_the_true_cost() {
    scene(async |scene| {
        for strategy in EXACT {
            let limiter = scene.single(strategy, "100000/month");
            let [refunded, settled] = ["refunded", "settled"].map(|it| {
                let name = format!("{strategy:?} {it}");
                Key::new(name)
            });
            let (admission, before) = admit_by_lease(&limiter, refunded).await;
            let policy = admission.policy("p").expect("a policy");
            for (units, refunded) in [(9, 1), (1, 0)] {
                let refunds = policy.refund(units).await.expect("a response");
                let units: u64 = refunds.iter().map(|refund| refund.units()).sum();
                assert_eq!(units, refunded, "{strategy:?}");
            }
            until_used_at_last(&scene, &limiter, refunded, before).await;

            let (admission, before) = admit_by_lease(&limiter, settled).await;
            until_used_at_last(&scene, &limiter, settled, before + 1).await;
            let policy = admission.policy("p").expect("a policy");
            for cost in [0, 1, 5, 2] {
                policy.settle(cost).await.expect("a response");
                until_used(&limiter, settled, before + cost).await;
            }
            policy.charge(4).await.expect("a response");
            until_used(&limiter, settled, before + 6).await;
        }
    });
}

#[test]
fn callers_of_leased_units_are_recorded() {
    scene(async |scene| {
        let limiter = scene.single(List, "100000/month");
        let callers = ["alice", "bob", "carol"];
        let mut admitted: HashMap<Key, u64> = HashMap::new();
        let mut by_lease: HashMap<Key, u64> = HashMap::new();
        for round in 0..600 {
            let caller = Key::new(callers[round / 25 % 3]);
            let decision = limiter.check(Keys::from(KEY).caller(caller)).await;
            assert!(decision.is_admitted());
            *admitted.entry(caller).or_default() += 1;
            let leased = decision.source() == DecisionSource::Lease;
            *by_lease.entry(caller).or_default() += u64::from(leased);
        }
        assert!(by_lease.values().all(|units| *units > 0), "{by_lease:?}");
        until_used_at_last(&scene, &limiter, KEY, 600).await;
        let handle = limiter.policy("p").expect("a policy");
        let mut recorded: HashMap<Key, u64> = HashMap::new();
        for caller in handle.callers(KEY).await.expect("a response") {
            *recorded.entry(caller).or_default() += 1;
        }
        assert_eq!(recorded, admitted);

        // A refund by a handler takes its own caller off.
        let key = Key::new("refunded");
        let (admission, before) = admit_by_lease(&limiter, key).await;
        let policy = admission.policy("p").expect("a policy");
        policy.refund(1).await.expect("a response");
        until_used_at_last(&scene, &limiter, key, before).await;
        let callers = handle.callers(key).await.expect("a response");
        assert_eq!(callers.len() as u64, before);
    });
}

#[test]
fn beside_a_policy_without_leases_none_are_used() {
    scene(async |scene| {
        let limiter = scene.limiter([
            leased(Fixed, "p", "1000/month"),
            Fixed.policy("q", "300/month"),
        ]);
        assert_eq!(send(&limiter, 400).await, (300, 0));
        assert!(leases(&limiter, "p").is_none());
        for policy in ["p", "q"] {
            assert_eq!(used_of(&limiter, KEY, policy).await, 300);
        }
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
