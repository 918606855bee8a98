//! What is reported as remaining by a lease: what the store reports, and the units that this process holds.

use crate::leases::support::*;

/// Sends requests until so many were admitted by leases, and looks at each of these decisions; returns how many were admitted.
async fn send(limiter: &Limiter, key: Key, requests: u64, mut look: impl FnMut(u64, u64)) -> u64 {
    let (mut admitted, mut by_lease) = (0, 0);
    while by_lease < requests {
        let decision = limiter.check(key).await;
        assert!(decision.is_admitted(), "{decision:?}");
        admitted += 1;
        if decision.source() == DecisionSource::Lease {
            by_lease += 1;
            look(admitted, decision.left("p"));
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
            // The replies to merged requests all show what remains after the last one: each would count units that come with the next.
            let [own, other] = [0, 1].map(|_| scene.single_here(strategy, "100000/month"));
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
            until("no lease is on its way", async || {
                limit - used(&other, key).await + held(&own) == left
            })
            .await;

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
        }
    });
}
