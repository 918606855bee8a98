//! Several quotas under one key: no unit that one of them used comes back because of an operation under another.

use tollgate::{Policy, Quota, RetryAfter};

use crate::strategies::charges::charge;
use crate::strategies::support::{KEY, START, StrategyKind, World, admitted_by_store, ms, secs};

fn quota(text: &str) -> Quota {
    text.parse().expect(text)
}

/// Pairs of a quota that takes long to refill and one that does not, or is counted in coarser steps.
const PAIRS: [(&str, &str); 4] = [
    ("10000/day", "10/min"),
    ("10000/day", "100/month"),
    ("60/min burst 1440", "1/week"),
    ("1000000/month", "5/s"),
];

#[tokio::test]
async fn a_rejection_or_a_peek_under_one_tier_refunds_nothing_under_another() {
    for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
        for (large, small) in PAIRS {
            for world in World::both() {
                let case = format!("{strategy:?}, {large} and {small}, on {}", world.name());
                let policy = strategy.policy("p", large).tier_quotas([quota(small)]);
                let limiter = world.limiter([policy]);
                let capacity = quota(large).capacity();
                assert!(
                    admitted_by_store(&limiter.check(KEY).cost(capacity).await),
                    "{case}"
                );
                let ttl = |world: &World| {
                    let server = world.redis_server()?;
                    Some(server.command(&["PTTL", &server.only_key()]).int())
                };
                let before = ttl(&world);

                let all = quota(small).capacity();
                let peeked = limiter
                    .peek(KEY)
                    .quota_for("p", quota(small))
                    .cost(all)
                    .await
                    .expect("a response");
                assert!(!peeked.would_admit(), "{case}");
                let sent = limiter
                    .check(KEY)
                    .quota_for("p", quota(small))
                    .cost(all)
                    .await;
                assert!(!admitted_by_store(&sent), "{case}");
                assert_eq!(ttl(&world), before, "{case}");

                world.advance(secs(921));
                let back = quota(large).amount() * 921 / quota(large).period().as_secs();
                assert!(
                    !admitted_by_store(&limiter.check(KEY).cost(back + 2).await),
                    "{case}"
                );
                assert!(
                    back == 0 || admitted_by_store(&limiter.check(KEY).cost(back).await),
                    "{case}"
                );
            }
        }
    }
}

const WINDOWS: [StrategyKind; 5] = [
    StrategyKind::Fixed,
    StrategyKind::Calendar,
    StrategyKind::List,
    StrategyKind::Log,
    StrategyKind::Sliding(4),
];

#[tokio::test]
async fn a_tier_of_a_window_has_the_period_of_its_policy() {
    for strategy in WINDOWS {
        let policy = strategy
            .policy("daily", "10/day")
            .tier_quotas([quota("2/min")]);
        let error = tollgate::Limiter::builder().policy(policy).build();
        let error = error.expect_err("a tier of another period").to_string();
        for part in ["daily", "2/min", "10/day", "a policy of its own"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let policy = strategy
            .policy("daily", "10/day")
            .tier_quotas([quota("2/day")]);
        let built = tollgate::Limiter::builder().policy(policy).build();
        assert!(built.is_ok(), "{strategy:?}: {built:?}");
    }
}

/// As a peek by an operator, or a look-up that fails over to another plan.
#[tokio::test]
async fn a_request_with_a_quota_of_another_period_does_not_end_a_window() {
    for strategy in WINDOWS {
        for world in World::both() {
            let case = format!("{strategy:?} on {}", world.name());
            let limiter = world.limiter([strategy.policy("p", "10/day")]);
            assert!(
                admitted_by_store(&limiter.check(KEY).cost(10).await),
                "{case}"
            );
            for _ in 0..3 {
                world.advance(secs(60));
                for other in ["1/min", "1/s", "20/week"] {
                    let peeked = limiter
                        .peek(KEY)
                        .quota_for("p", quota(other))
                        .await
                        .expect("a response");
                    let checked = limiter.check(KEY).quota_for("p", quota(other)).await;
                    assert!(
                        !peeked.would_admit() && !checked.is_admitted(),
                        "{case}, {other}"
                    );
                    for policy in [peeked.policy("p"), checked.policy("p")] {
                        let limit = policy.map(|policy| policy.limit());
                        assert_eq!(limit, Some(10), "{case}, {other}");
                    }
                }
            }
            assert!(!admitted_by_store(&limiter.check(KEY).await), "{case}");
        }
    }
}

#[tokio::test]
async fn a_charge_or_a_refund_under_a_small_tier_refunds_nothing_under_a_large_one() {
    let (large, small) = (quota("1000/10s"), "10/10s");
    for strategy in StrategyKind::ALL {
        for world in World::both() {
            let case = format!("{strategy:?} on {}", world.name());
            let limiter = world.limiter([strategy.policy("p", small).tier_quotas([large])]);
            let check = limiter.check(KEY).quota_for("p", large).cost(900);
            assert!(admitted_by_store(&check.await), "{case}");
            // Into debt, where the small tier has no room.
            let mut charged = charge(&limiter, KEY, 1).await;
            charged.refund(1).await.expect("a response");
            let check = limiter.check(KEY).quota_for("p", large).times(1_000);
            let admitted = check.await.admitted();
            assert!(admitted <= 100, "{case}: {admitted} of 100 that were left");
        }
    }
}

#[tokio::test]
async fn a_sliding_window_under_a_small_tier_weighs_all_that_a_large_one_used() {
    let (large, small) = (quota("1000/10s"), "10/10s");
    for world in World::both() {
        let limiter = world.limiter([StrategyKind::Sliding(1).policy("p", small)]);
        let check = limiter.check(KEY).quota_for("p", large).cost(900);
        assert!(admitted_by_store(&check.await), "{}", world.name());
        // 900 weigh 9 in the last hundredth of the next bucket.
        let rejected = limiter.check(KEY).await;
        assert_eq!(
            rejected.retry_after(),
            RetryAfter::In(ms(19_900)),
            "{rejected:?}"
        );
        world.set(START + 19_899_999);
        assert!(
            !admitted_by_store(&limiter.check(KEY).await),
            "{}",
            world.name()
        );
        world.set(START + 19_900_000);
        assert!(
            admitted_by_store(&limiter.check(KEY).await),
            "{}",
            world.name()
        );
        assert!(
            !admitted_by_store(&limiter.check(KEY).await),
            "{}",
            world.name()
        );
    }
}

#[tokio::test]
async fn a_tier_that_cannot_be_counted_is_a_config_error() {
    let policy = Policy::new("p", quota("10/min")).tier_quotas([quota("1/401days")]);
    let error = tollgate::Limiter::builder().policy(policy).build();
    let error = error.expect_err("a tier past what GCRA counts").to_string();
    assert!(
        error.contains('p') && error.contains("CalendarWindow"),
        "{error}"
    );
}

/// The deepest debt is two bursts, and one more request is evaluated on top of it.
#[tokio::test]
async fn the_deepest_debt_admits_nothing() {
    for world in World::both() {
        for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
            for text in [
                "1/s burst 100000",
                "1000/s burst 100000000",
                "1/400days",
                "1/s",
            ] {
                let case = format!("{strategy:?}, {text}, on {}", world.name());
                let limiter = world.single(strategy, text);
                let _ = limiter
                    .charge(KEY, u64::from(u32::MAX))
                    .await
                    .expect("a response");
                // Singly, and merged.
                assert!(!admitted_by_store(&limiter.check(KEY).await), "{case}");
                assert_eq!(
                    limiter.check(KEY).times(1_000).await.admitted(),
                    0,
                    "{case}"
                );
                let responses = limiter.peek(KEY).await.expect("a response").retry_after();
                assert_eq!(responses, limiter.check(KEY).await.retry_after(), "{case}");
                let _ = limiter.reset(KEY).await.expect("a response");
            }
        }
    }
}

#[tokio::test]
async fn a_clock_that_steps_by_a_day_either_way_has_the_same_effect_on_both_stores() {
    const DAY: i64 = 86_400_000_000;
    // Before and behind the end of a round, which is at START.
    for start in [-DAY / 2, -1, 0, 1, DAY / 2, 40 * DAY] {
        for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
            for text in ["10/min", "1000/day", "100000/month", "3/400days"] {
                let mut responses = Vec::new();
                for world in World::both() {
                    let limiter = world.single(strategy, text);
                    let capacity = quota(text).capacity();
                    let mut seen = Vec::new();
                    for step in [0, -DAY, 0, DAY, 0, 2 * DAY, DAY, DAY - 1] {
                        world.set(START.strict_add_signed(start + step));
                        let decision = limiter.check(KEY).times(capacity / 2 + 1).await;
                        seen.push((decision.admitted(), limiter.check(KEY).await.retry_after()));
                    }
                    // The clock goes forward by four days in all.
                    let admitted: u64 = seen.iter().map(|(admitted, _)| admitted).sum();
                    let days = quota(text).amount() * 4 * 86_400 / quota(text).period().as_secs();
                    assert!(
                        admitted <= capacity + days,
                        "{strategy:?} {text} {start}: {seen:?}"
                    );
                    responses.push(seen);
                }
                assert_eq!(responses[0], responses[1], "{strategy:?} {text} {start}");
            }
        }
    }
}
