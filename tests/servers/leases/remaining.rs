//! What is reported as remaining by a lease: what the store reports, and the units that this process holds.

use crate::leases::support::*;

fn remaining(decision: &Decision) -> u64 {
    decision.left("p")
}

/// What remains by the store's count, where leased units are used.
async fn in_store(limiter: &Limiter, key: Key) -> u64 {
    let seen = limiter.peek(key).await.expect("a response");
    seen.left("p")
}

/// Sends requests until so many were admitted by leases, and looks at each of these decisions; returns how many were admitted.
async fn send(limiter: &Limiter, key: Key, requests: u64, mut look: impl FnMut(u64, u64)) -> u64 {
    let (mut admitted, mut by_lease) = (0, 0);
    while by_lease < requests {
        let decision = limiter.check(key).await;
        assert!(decision.is_admitted(), "{decision:?}");
        admitted += 1;
        if decision.source() == DecisionSource::Lease {
            by_lease += 1;
            look(admitted, remaining(&decision));
        }
    }
    admitted
}

/// Of quotas that do not refill meanwhile.
#[test]
fn remaining_is_what_the_store_has_and_what_is_held() {
    const OTHERS: u64 = 500;
    scene(async |scene| {
        for strategy in StrategyKind::ALL {
            let [own, other] = [0, 1].map(|_| scene.single(strategy, "100000/month"));
            let key = Key::new(format!("{strategy:?}"));
            let limit = own.stats().policies[0].limit;
            // One process sees each unit that is left: in the store, held, or on its way.
            let mut left = limit - hold(&own, key).await;
            left -= send(&own, key, 300, |admitted, shown| {
                let exact = left - admitted;
                // It may lack one request, which the store has decided since its last response.
                let expected = exact - 1..=exact;
                assert!(expected.contains(&shown), "{strategy:?}: {shown} {exact}");
            })
            .await;
            let none_on_its_way = async || in_store(&other, key).await + held(&own) == left;
            until("no lease is on its way", none_on_its_way).await;

            // It sees what others charge by the next response at the latest.
            assert!(other.check(key).cost(OTHERS).await.is_admitted());
            left -= OTHERS;
            let mut last = u64::MAX;
            send(&own, key, 300, |admitted, shown| {
                let least = left - admitted;
                let expected = least..=least + OTHERS;
                assert!(expected.contains(&shown), "{strategy:?}: {shown} {least}");
                last = shown - least;
            })
            .await;
            assert_eq!(last, 0, "{strategy:?}");

            // What others hold counts as used.
            let charged = hold(&other, key).await + held(&other);
            let shown = remaining(&own.check(key).await);
            let least = in_store(&other, key).await;
            // One more lease may be on its way.
            let expected = least..=least + held(&own) + charged + 64;
            assert!(expected.contains(&shown), "{strategy:?}: {shown} {least}");
        }
    });
}

/// A unit refills every 10 ms.
#[test]
fn remaining_of_a_rate_is_no_more_than_the_store_has_and_what_is_held() {
    scene(async |scene| {
        for strategy in [Gcra, Bucket] {
            let [own, other] = [0, 1].map(|_| scene.single(strategy, "100/s burst 4000"));
            let key = Key::new(format!("{strategy:?}"));
            hold(&own, key).await;
            let (mut by_lease, mut last) = (0, 0);
            while by_lease < 60 {
                let decision = own.check(key).await;
                assert!(decision.is_admitted(), "{decision:?}");
                let shown = remaining(&decision);
                if decision.source() == DecisionSource::Lease {
                    by_lease += 1;
                    // It is as of the last response: it falls by the request alone.
                    assert!(shown + 1 >= last, "{strategy:?}: {shown} after {last}");
                    // A lease that is on its way is neither in the store nor held.
                    let what = "it is no more than the store has and what is held";
                    until(what, async || {
                        shown <= in_store(&other, key).await + held(&own)
                    })
                    .await;
                    scene.advance(ms(5));
                }
                last = shown;
            }
        }
    });
}

/// Cheap requests beside expensive ones, which the store decides: it admits some, and rejects others, since they cost more than there
/// ever is.
#[test]
fn beside_expensive_and_rejected_requests_remaining_is_within_one_lease_of_what_the_store_has() {
    const LEASE: u64 = 1_000;
    const COSTS: [&[u64]; 3] = [
        &[20_000],
        &[u64::MAX],
        &[20_000, 50_000_001, 1_000, u64::MAX],
    ];
    scene(async |scene| {
        for strategy in [Gcra, Bucket, Fixed] {
            for costs in COSTS {
                let lease = Lease::max_units(LEASE).ttl(TTL);
                let policy = |name, quota| strategy.policy(name, quota).lease(lease);
                let policies = || {
                    [
                        policy("p", "100000/month"),
                        policy("bytes", "50000000/month"),
                    ]
                };
                let [own, other] = [0, 1].map(|_| scene.limiter(policies()));
                let key = Key::new(format!("{strategy:?} {costs:?}"));
                let mut expensive = costs.iter().cycle();
                let mut by_lease = 0;
                for number in 0..600 {
                    let cost = match number % 10 {
                        9 => *expensive.next().expect("a cost"),
                        _ => 1,
                    };
                    let decision = own.check(key).cost_for("bytes", cost).await;
                    if decision.source() != DecisionSource::Lease {
                        continue;
                    }
                    by_lease += 1;
                    let seen = other.peek(key).await;
                    let seen = seen.expect("a response");
                    for policy in ["p", "bytes"] {
                        let in_store = seen.left(policy);
                        let held = leases(&own, policy).map_or(0, |stats| stats.held);
                        let shown = decision.left(policy);
                        let off = shown.abs_diff(in_store + held);
                        let text = format!("{strategy:?}, {policy}: {shown}, {in_store} + {held}");
                        assert!(off <= LEASE, "{text}");
                    }
                }
                assert!(by_lease > 100, "{strategy:?} {costs:?}: {by_lease}");
            }
        }
    });
}
