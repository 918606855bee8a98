//! Calls that are decided at once, by leases that they alone have asked for.

use crate::leases::support::*;
use tollgate::error::NotNow;
use tollgate_tests::bare_thread::on_bare_thread;

/// Calls until so many are admitted, on a thread without a runtime, while that of the test stands still.
fn admit_now(limiter: &Limiter, key: Key, requests: u64) {
    let limiter = limiter.clone();
    on_bare_thread(move || {
        let mut admitted = 0;
        while admitted < requests {
            match limiter.check(key).now() {
                Ok(decision) => {
                    assert!(decision.is_admitted(), "{decision:?}");
                    assert_eq!(decision.source(), DecisionSource::Lease);
                    admitted += 1;
                }
                Err(error) => {
                    assert_eq!(error, NotNow::Store);
                    // A clock that is read without a pause shows that time passes.
                    thread::sleep(ms(1));
                }
            }
        }
    });
}

#[test]
fn their_demand_gets_leases_which_admit_the_quota_and_no_more() {
    scene(async |scene| {
        let limiter = scene.limiter([
            leased(Fixed, "p", "300/month"),
            leased(Gcra, "q", "1000/month"),
        ]);
        admit_now(&limiter, KEY, 300);
        for _ in 0..100 {
            assert_eq!(limiter.check(KEY).now().err(), Some(NotNow::Store));
        }
        for policy in ["p", "q"] {
            let units = leases(&limiter, policy).expect("leases");
            assert_eq!(units.spent, 300, "{units:?}");
            assert_eq!(used_of(&limiter, KEY, policy).await, units.granted);
        }
        assert_eq!(used(&limiter, KEY).await, 300);
    });
}

#[test]
fn what_they_leave_of_a_lease_is_refunded_by_the_background_thread() {
    scene(async |scene| {
        let limiter = scene.limiter([leased(Fixed, "p", "100000/month")]);
        admit_now(&limiter, KEY, 200);
        scene.advance(TTL * 9 / 10);
        // The thread sees that time has passed when something happens.
        assert!(limiter.peek(KEY).blocking().is_ok());
        until_nothing_is_held(std::slice::from_ref(&limiter)).await;
        until_used(&limiter, KEY, 200).await;
        let [_, granted, spent, refunded, lapsed] = stats(&limiter);
        assert_eq!([spent, lapsed], [200, 0], "{granted} {refunded}");
    });
}
