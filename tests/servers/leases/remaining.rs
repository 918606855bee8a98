//! What is reported as remaining by a lease: what the store reports, and the units that this process holds.

use std::time::{Duration, Instant};

use testkit::Server;
use tollgate::{Decision, DecisionSource, Lease, Limiter};

use crate::leases::support::{KEY, StrategyKind, held, hold_units, limiter, ms, store, until};

/// A limiter whose leases last so long that none is refunded while the test runs.
fn leasing(server: &Server, strategy: StrategyKind, quota: &str, ttl: Duration) -> Limiter {
    let policy = strategy.policy("p", quota);
    limiter(store(server), [policy.lease(Lease::max_units(64).ttl(ttl))])
}

fn remaining(decision: &Decision) -> u64 {
    decision.policy("p").expect("a policy").remaining()
}

/// What remains by the store's count, where leased units are used.
async fn in_store(limiter: &Limiter) -> u64 {
    let seen = limiter.peek(KEY).await.expect("a response");
    seen.policy("p").expect("a policy").remaining()
}

/// Sends requests until so many were admitted by leases, and looks at each of these decisions; returns how many were admitted.
async fn send(limiter: &Limiter, requests: u64, mut look: impl FnMut(u64, &Decision)) -> u64 {
    let (mut admitted, mut by_lease) = (0, 0);
    while by_lease < requests {
        let decision = limiter.check(KEY).await;
        assert!(decision.is_admitted(), "{decision:?}");
        admitted += 1;
        if decision.source() == DecisionSource::Lease {
            by_lease += 1;
            look(admitted, &decision);
        }
    }
    admitted
}

/// Of quotas that do not refill meanwhile.
#[tokio::test]
async fn remaining_is_what_the_store_has_and_what_is_held() {
    const OTHERS: u64 = 500;
    for strategy in StrategyKind::ALL {
        let server = Server::start();
        let start = || leasing(&server, strategy, "100000/month", Duration::from_secs(10));
        let [own, other] = [start(), start()];
        let limit = own.stats().policies[0].limit;
        // One process sees each unit that is left: in the store, held, or on its way.
        let mut left = limit - hold_units(&own, KEY).await;
        left -= send(&own, 300, |admitted, decision| {
            let (shown, exact) = (remaining(decision), left - admitted);
            // It may lack one request, which the store has decided since its last response.
            assert!(
                (exact - 1..=exact).contains(&shown),
                "{strategy:?}: {shown} of {exact}"
            );
        })
        .await;
        until("no lease is on its way", async || {
            in_store(&other).await + held(&own) == left
        })
        .await;

        // It sees what others charge by the next response at the latest.
        assert!(other.check(KEY).cost(OTHERS).await.is_admitted());
        left -= OTHERS;
        let mut last = u64::MAX;
        send(&own, 300, |admitted, decision| {
            let (shown, least) = (remaining(decision), left - admitted);
            assert!(
                (least..=least + OTHERS).contains(&shown),
                "{strategy:?}: {shown} of {least}"
            );
            last = shown - least;
        })
        .await;
        assert_eq!(last, 0, "{strategy:?}");

        // What others hold counts as used.
        let charged = hold_units(&other, KEY).await + held(&other);
        let shown = remaining(&own.check(KEY).await);
        let least = in_store(&other).await;
        // One more lease may be on its way.
        let most = least + held(&own) + charged + 64;
        assert!(
            (least..=most).contains(&shown),
            "{strategy:?}: {shown} of {least} to {most}"
        );
    }
}

/// A unit refills every 10 ms.
#[tokio::test]
async fn remaining_of_a_rate_is_no_more_than_the_store_has_and_what_is_held() {
    for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
        let server = Server::start();
        let ttl = Duration::from_secs(2);
        let [own, other] = [0, 1].map(|_| leasing(&server, strategy, "100/s burst 4000", ttl));
        hold_units(&own, KEY).await;
        let (mut by_lease, mut last) = (0, 0);
        while by_lease < 60 {
            let decision = own.check(KEY).await;
            assert!(decision.is_admitted(), "{decision:?}");
            let shown = remaining(&decision);
            if decision.source() == DecisionSource::Lease {
                by_lease += 1;
                // It is as of the last response: it falls by the request alone.
                assert!(shown + 1 >= last, "{strategy:?}: {shown} after {last}");
                // A lease that is on its way is neither in the store nor held.
                let decided = Instant::now();
                until(
                    "it is no more than the store had and what is held",
                    async || {
                        let refilled = decided.elapsed().as_millis() as u64 / 10;
                        shown + refilled <= in_store(&other).await + held(&own)
                    },
                )
                .await;
                tokio::time::sleep(ms(5)).await;
            }
            last = shown;
        }
    }
}
