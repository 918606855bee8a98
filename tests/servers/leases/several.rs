//! Several policies, costs and tiers.

use http::{Request, request::Parts};
use testkit::Server;
use tollgate::{DecisionSource, Key, Lease, Limiter, Policy, Quota, RetryAfter};

use crate::leases::{
    support::{
        KEY, StrategyKind, TTL, hold_units, leased, leases, limiter, single, store, until, used,
        used_of,
    },
    traffic::until_nothing_is_held,
};

fn both(server: &Server, policies: [Policy; 2]) -> Limiter {
    limiter(store(server), policies)
}

/// Sends so many requests one by one; returns how many were admitted, and how many of them by leases.
async fn send(limiter: &Limiter, requests: u64) -> (u64, u64) {
    let (mut admitted, mut by_lease) = (0, 0);
    for _ in 0..requests {
        let decision = limiter.check(KEY).await;
        admitted += u64::from(decision.is_admitted());
        by_lease += u64::from(decision.source() == DecisionSource::Lease);
    }
    (admitted, by_lease)
}

#[tokio::test]
async fn beside_a_policy_without_leases_none_are_used() {
    let server = Server::start();
    let limiter = both(
        &server,
        [
            leased(StrategyKind::Fixed, "p", "1000/month"),
            StrategyKind::Fixed.policy("q", "300/month"),
        ],
    );
    assert_eq!(send(&limiter, 400).await, (300, 0));
    assert!(leases(&limiter, "p").is_none());
    for policy in ["p", "q"] {
        assert_eq!(used_of(&limiter, KEY, policy).await, 300);
    }
}

#[tokio::test]
async fn two_leased_policies_are_charged_together_or_not_at_all() {
    for [p, q] in [
        [StrategyKind::Fixed, StrategyKind::List],
        [StrategyKind::Log, StrategyKind::Fixed],
        [StrategyKind::Fixed, StrategyKind::Sliding(10)],
    ] {
        let server = Server::start();
        let two = || [leased(p, "p", "2000/month"), leased(q, "q", "900/month")];
        let limiters = [0, 1].map(|_| both(&server, two()));
        let mut sums = (0, 0);
        for _ in 0..60 {
            for limiter in &limiters {
                let (admitted, by_lease) = send(limiter, 20).await;
                sums = (sums.0 + admitted, sums.1 + by_lease);
            }
        }
        for policy in ["p", "q"] {
            until_nothing_is_held(&limiters, policy).await;
        }
        for limiter in &limiters {
            sums.0 += send(limiter, 300).await.0;
        }
        assert_eq!(sums.0, 900, "{p:?} {q:?}");
        assert!(sums.1 > 0, "{p:?} {q:?}");
        for policy in ["p", "q"] {
            until_nothing_is_held(&limiters, policy).await;
            until("what was left is refunded", async || {
                used_of(&limiters[0], KEY, policy).await == 900
            })
            .await;
        }
    }
}

#[tokio::test]
async fn two_policies_with_keys_of_their_own_are_leased_by_pairs() {
    let server = Server::start();
    let two = [
        leased(StrategyKind::Fixed, "p", "500/month"),
        leased(StrategyKind::Fixed, "q", "100000/month"),
    ];
    let limiter = both(&server, two);
    let keys = |user: &str| [("p", Key::new("all")), ("q", Key::new(user))];
    let mut admitted = 0;
    let mut by_lease = 0;
    for round in 0..900 {
        let user = ["alice", "bob"][round / 30 % 2];
        let decision = limiter.check(keys(user)).await;
        admitted += u64::from(decision.is_admitted());
        by_lease += u64::from(decision.source() == DecisionSource::Lease);
    }
    assert!(by_lease > 0);
    // The others may have been held for the other user.
    until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
    let mut more = 0;
    while limiter.check(keys("alice")).await.is_admitted() {
        more += 1;
    }
    assert_eq!(admitted + more, 500);
}

#[tokio::test]
async fn requests_of_any_cost_are_charged_what_they_cost() {
    for costs in [&[3][..], &[1, 3, 2, 7], &[1, 0, 5]] {
        let server = Server::start();
        let limiters = [0, 1].map(|_| single(&server, StrategyKind::Fixed, "3000/month"));
        let (mut units, mut by_lease) = (0, 0);
        for round in 0..900 {
            let cost = costs[round % costs.len()];
            let decision = limiters[round / 50 % 2].check(KEY).cost(cost).await;
            if decision.is_admitted() {
                units += cost;
            }
            by_lease += u64::from(decision.source() == DecisionSource::Lease);
        }
        assert!(by_lease > 0, "{costs:?}");
        until_nothing_is_held(&limiters, "p").await;
        until("the store's count is what was admitted", async || {
            used(&limiters[1], KEY).await == units
        })
        .await;
    }
}

/// A request of which a process holds a part only is charged as a whole.
#[tokio::test]
async fn a_request_that_costs_more_than_is_held_is_up_to_the_store() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "100000/month");
    let mut units = hold_units(&limiter, KEY).await;
    for _ in 0..5 {
        let decision = limiter.check(KEY).cost(1_000).await;
        assert_eq!(decision.source(), DecisionSource::Store);
        assert!(decision.is_admitted());
        units += 1_000;
    }
    until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
    assert_eq!(used(&limiter, KEY).await, units);
}

#[derive(Clone)]
struct Paid;

fn parts(paid: bool) -> Parts {
    let request = Request::get("/");
    let request = match paid {
        true => request.extension(Paid),
        false => request,
    };
    request.body(()).expect("a request").into_parts().0
}

#[tokio::test]
async fn tiers_lease_units_of_one_count() {
    for (strategy, [low, high]) in [
        (StrategyKind::Fixed, ["500/month", "1500/month"]),
        (StrategyKind::List, ["500/month", "1500/month"]),
    ] {
        let server = Server::start();
        let quota: Quota = high.parse().expect("a quota");
        let policy = || {
            leased(strategy, "p", low).quota_with(move |parts| {
                let paid = parts.extensions.get::<Paid>().is_some();
                paid.then_some(quota)
            })
        };
        let limiters = [0, 1].map(|_| limiter(store(&server), [policy()]));
        let (mut admitted, mut by_lease) = ([0, 0], 0);
        for round in 0..3_000 {
            let paid = round / 20 % 2 == 1;
            let limiter = &limiters[round / 100 % 2];
            let decision = limiter.check(KEY).parts(&parts(paid)).await;
            admitted[usize::from(paid)] += u64::from(decision.is_admitted());
            by_lease += u64::from(decision.source() == DecisionSource::Lease);
        }
        assert!(by_lease > 0, "{strategy:?}");
        until_nothing_is_held(&limiters, "p").await;
        let mut more = 0;
        while limiters[0]
            .check(KEY)
            .parts(&parts(true))
            .await
            .is_admitted()
        {
            more += 1;
        }
        assert_eq!(admitted[0] + admitted[1] + more, 1_500, "{strategy:?}");
        assert!(admitted[0] <= 500, "{strategy:?}: {admitted:?}");
    }
}

#[tokio::test]
async fn a_burst_is_smaller_by_what_refills_within_a_lease() {
    for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
        let server = Server::start();
        let policy = strategy.policy("p", "100/s").lease(Lease::max_units(8));
        let limiter = limiter(store(&server), [policy]);
        // 51.05 ms, in which more than five units refill.
        let decision = limiter.check(KEY).await;
        let policy = decision.policy("p").expect("a policy");
        assert_eq!(
            (policy.limit(), policy.remaining()),
            (94, 93),
            "{strategy:?}"
        );
        assert_eq!(limiter.stats().policies[0].limit, 94);
        for cost in [95, 100] {
            let never = limiter.check(KEY).cost(cost).await;
            let policy = never.policy("p").expect("a policy");
            assert!(!never.is_admitted());
            assert_eq!(policy.retry_after(), RetryAfter::Never, "{strategy:?}");
        }
        limiter.reset(KEY).await.expect("a response");
        assert!(limiter.check(KEY).cost(94).await.is_admitted());
    }
}

/// One process alone sees each unit that is left: in its own leases, or in the store.
#[tokio::test]
async fn remaining_of_one_process_counts_what_it_holds() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "5000/month");
    let mut by_lease = 0;
    let mut admitted = 0;
    while by_lease < 500 {
        let decision = limiter.check(KEY).await;
        assert!(decision.is_admitted());
        admitted += 1;
        let shown = decision.policy("p").expect("a policy").remaining();
        if decision.source() == DecisionSource::Lease {
            by_lease += 1;
            // At most a lease that is on its way, or what was refunded since.
            assert!(shown <= 5_000 - admitted, "{shown} after {admitted}");
            assert!(
                shown + 2 * 64 >= 5_000 - admitted,
                "{shown} after {admitted}"
            );
        }
    }
    tokio::time::sleep(2 * TTL).await;
    until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
    assert_eq!(used(&limiter, KEY).await, admitted);
}

/// A short window: leases of the one before are not counted in the next.
#[tokio::test]
async fn remaining_is_at_most_the_limit_also_after_a_window_has_ended() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "5000/60ms");
    let start = std::time::Instant::now();
    let mut by_lease = 0;
    while start.elapsed().as_millis() < 900 {
        for _ in 0..20 {
            let decision = limiter.check(KEY).await;
            let shown = decision.policy("p").expect("a policy").remaining();
            assert!(shown <= 4_999 || !decision.is_admitted(), "{shown}");
            by_lease += u64::from(decision.source() == DecisionSource::Lease);
        }
        tokio::task::yield_now().await;
    }
    assert!(by_lease > 0);
}
