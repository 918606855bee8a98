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
fn two_leased_policies_are_charged_together_or_not_at_all() {
    scene(async |scene| {
        for [p, q] in [[Fixed, List], [Log, Fixed], [Fixed, Sliding(10)]] {
            let two = || [leased(p, "p", "2000/month"), leased(q, "q", "900/month")];
            let limiters = [0, 1].map(|_| scene.limiter(two()));
            let mut sums = (0, 0);
            for round in 0..60 {
                let (admitted, by_lease) = send(&limiters[round % 2], 20).await;
                sums = (sums.0 + admitted, sums.1 + by_lease);
            }
            scene.refund_leases(&limiters).await;
            sums.0 += send(&limiters[0], 900).await.0;
            assert!(sums.0 == 900 && sums.1 > 0, "{p:?} {q:?}: {sums:?}");
            scene.refund_leases(&limiters).await;
            for policy in ["p", "q"] {
                let is_refunded = async || used_of(&limiters[0], KEY, policy).await == 900;
                until("what was left is refunded", is_refunded).await;
            }
            limiters[0].reset(KEY).await.expect("a response");
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
fn requests_of_any_cost_are_charged_what_they_cost() {
    scene(async |scene| {
        for costs in [&[3][..], &[1, 3, 2, 7], &[1, 0, 5]] {
            let limiters = [0, 1].map(|_| scene.single(Fixed, "3000/month"));
            let key = Key::new(format!("{costs:?}"));
            let (mut units, mut by_lease) = (0, 0);
            for (round, cost) in costs.iter().cycle().take(900).enumerate() {
                let decision = limiters[round / 50 % 2].check(key).cost(*cost).await;
                units += cost * u64::from(decision.is_admitted());
                by_lease += u64::from(decision.source() == DecisionSource::Lease);
            }
            assert!(by_lease > 0, "{costs:?}");
            scene.refund_leases(&limiters).await;
            until_used(&limiters[1], key, units).await;
        }
    });
}

/// A request of which a process holds a part only is charged as a whole.
#[test]
fn a_request_that_costs_more_than_is_held_is_up_to_the_store() {
    scene(async |scene| {
        let limiter = scene.single(Fixed, "100000/month");
        let units = hold(&limiter, KEY).await;
        for _ in 0..5 {
            let decision = limiter.check(KEY).cost(1_000).await;
            assert_eq!(decision.source(), DecisionSource::Store);
            assert!(decision.is_admitted());
        }
        scene.refund_leases(std::slice::from_ref(&limiter)).await;
        until_used(&limiter, KEY, units + 5_000).await;
    });
}

#[derive(Clone)]
struct Paid;

fn parts(paid: bool) -> Parts {
    let mut request = Request::new(());
    if paid {
        request.extensions_mut().insert(Paid);
    }
    request.into_parts().0
}

#[test]
fn tiers_lease_units_of_one_count() {
    scene(async |scene| {
        for strategy in [Fixed, List] {
            let policy = || {
                let policy = leased(strategy, "p", "500/month");
                policy.quota_with(|parts| {
                    let quota: Quota = "1500/month".parse().expect("a quota");
                    parts.extensions.get::<Paid>().map(|Paid| quota)
                })
            };
            let limiters = [0, 1].map(|_| scene.limiter([policy()]));
            let (mut admitted, mut by_lease) = ([0, 0], 0);
            for round in 0..3_000 {
                let paid = round / 20 % 2 == 1;
                let limiter = &limiters[round / 100 % 2];
                let decision = limiter.check(KEY).parts(&parts(paid)).await;
                admitted[usize::from(paid)] += u64::from(decision.is_admitted());
                by_lease += u64::from(decision.source() == DecisionSource::Lease);
            }
            scene.refund_leases(&limiters).await;
            let paid = parts(true);
            while limiters[0].check(KEY).parts(&paid).await.is_admitted() {
                admitted[1] += 1;
            }
            assert!(by_lease > 0 && admitted[0] <= 500, "{strategy:?}");
            assert_eq!(admitted[0] + admitted[1], 1_500, "{strategy:?}");
            limiters[0].reset(KEY).await.expect("a response");
        }
    });
}

#[test]
fn a_burst_is_smaller_by_what_refills_within_a_lease() {
    scene(async |scene| {
        for strategy in [Gcra, Bucket] {
            let policy = strategy.policy("p", "100/s").lease(Lease::max_units(8));
            let limiter = scene.limiter([policy]);
            // 51.05 ms, in which more than five units refill.
            let decision = limiter.check(KEY).await;
            let policy = decision.policy("p").expect("a policy");
            let shown = (policy.limit(), policy.remaining());
            assert_eq!(shown, (94, 93), "{strategy:?}");
            assert_eq!(limiter.stats().policies[0].limit, 94);
            for cost in [95, 100] {
                let never = limiter.check(KEY).cost(cost).await;
                let policy = never.policy("p").expect("a policy");
                assert!(!never.is_admitted());
                assert_eq!(policy.retry_after(), RetryAfter::Never, "{strategy:?}");
            }
            limiter.reset(KEY).await.expect("a response");
            assert!(limiter.check(KEY).cost(94).await.is_admitted());
            limiter.reset(KEY).await.expect("a response");
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
