//! Several policies, costs and tiers.

use crate::leases::support::*;

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

#[test]
fn two_policies_with_keys_of_their_own_are_leased_by_pairs() {
    scene(async |scene| {
        let limiter = scene.limiter([
            leased(Fixed, "p", "500/month"),
            leased(Fixed, "q", "100000/month"),
        ]);
        let keys = |user: &str| [("p", Key::new("all")), ("q", Key::new(user))];
        let (mut admitted, mut by_lease) = (0, 0);
        for round in 0..900 {
            let decision = limiter.check(keys(["alice", "bob"][round / 30 % 2])).await;
            admitted += u64::from(decision.is_admitted());
            by_lease += u64::from(decision.source() == DecisionSource::Lease);
        }
        // The others may be held for the other user.
        scene.refund_leases(std::slice::from_ref(&limiter)).await;
        while limiter.check(keys("alice")).await.is_admitted() {
            admitted += 1;
        }
        assert!(admitted == 500 && by_lease > 0, "{admitted} {by_lease}");
    });
}

#[test]
fn tiers_lease_units_of_one_count() {
    scene(async |scene| {
        for strategy in [Fixed, List] {
            let limiters = [0, 1].map(|_| scene.single(strategy, "500/month"));
            let check = |limiter: &Limiter, paid| {
                let quota = quota(if paid { "1500/month" } else { "500/month" });
                limiter.check(KEY).quota_for("p", quota).into_future()
            };
            let (mut admitted, mut by_lease) = ([0, 0], 0);
            for round in 0..3_000 {
                let paid = round / 20 % 2 == 1;
                let decision = check(&limiters[round / 100 % 2], paid).await;
                admitted[usize::from(paid)] += u64::from(decision.is_admitted());
                by_lease += u64::from(decision.source() == DecisionSource::Lease);
            }
            scene.refund_leases(&limiters).await;
            while check(&limiters[0], true).await.is_admitted() {
                admitted[1] += 1;
            }
            assert!(by_lease > 0 && admitted[0] <= 500, "{strategy:?}");
            assert_eq!(admitted[0] + admitted[1], 1_500, "{strategy:?}");
            limiters[0].reset(KEY).await.expect("a response");
        }
    });
}

/// A short window: leases of the one before are not counted in the next.
#[test]
fn remaining_is_at_most_the_limit_also_after_a_window_has_ended() {
    scene(async |scene| {
        let policy = Fixed.policy("p", "5000/60ms");
        let limiter = scene.limiter([policy.lease(Lease::max_units(64).ttl(ms(50)))]);
        let mut by_lease = 0;
        for _ in 0..120 {
            scene.advance(ms(7));
            for _ in 0..20 {
                let decision = limiter.check(KEY).await;
                let shown = decision.left("p");
                assert!(shown <= 4_999 || !decision.is_admitted(), "{shown}");
                by_lease += u64::from(decision.source() == DecisionSource::Lease);
            }
        }
        assert!(by_lease > 0);
    });
}
