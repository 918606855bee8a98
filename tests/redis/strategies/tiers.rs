//! Quotas that can't be a policy's tiers, and settings that are not put in force.

use tollgate_tests::prelude::*;

use super::support::*;

const WINDOWS: [StrategyKind; 5] = [
    StrategyKind::Fixed,
    StrategyKind::Calendar,
    StrategyKind::List,
    StrategyKind::Log,
    StrategyKind::Sliding(4),
];

#[tokio::test]
async fn a_tier_that_cannot_be_counted_as_its_policy_is_a_config_error() {
    let built = |strategy: StrategyKind, tier: &str| {
        let policy = strategy.policy("daily", "10/day");
        let builder = Limiter::builder().policy(policy.tier_quotas([quota(tier)]));
        builder.build()
    };
    for strategy in WINDOWS {
        let error = built(strategy, "2/min").expect_err("a tier of another period");
        assert_contains(error, ["daily", "2/min", "10/day", "a policy of its own"]);
        assert!(built(strategy, "2/day").is_ok(), "{strategy:?}");
    }
    let error = built(StrategyKind::Gcra, "1/401days");
    let error = error.expect_err("a tier past what GCRA counts");
    assert_contains(error, ["daily", "CalendarWindow"]);
}

/// As a peek by an operator, or a look-up that fails over to another plan.
#[tokio::test]
async fn a_request_with_a_quota_of_another_period_does_not_end_a_window() {
    each_of(&WINDOWS, "10/day", async |scene| {
        let (limiter, key) = (&scene.limiter, scene.key);
        assert!(scene.admits(10).await);
        for _ in 0..3 {
            scene.world.advance(secs(60));
            for other in ["1/min", "1/s", "20/week"].map(quota) {
                let peeked = limiter.peek(key).quota_for("p", other).await;
                let peeked = peeked.expect("a response");
                let checked = limiter.check(key).quota_for("p", other).await;
                assert!(!peeked.would_admit() && !checked.is_admitted(), "{other}");
                for policy in [peeked.policy("p"), checked.policy("p")] {
                    assert_eq!(policy.map(|policy| policy.limit()), Some(10), "{other}");
                }
            }
        }
        assert!(!scene.admits(1).await);
    })
    .await;
}

/// A debt that is deeper than any tier of the policies in force allows is cut to one burst, also after settings with a longer
/// tier were tried, and not put in force.
#[tokio::test]
async fn a_reload_that_fails_leaves_the_deepest_debt_as_it_was() {
    for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
        for world in World::both() {
            let _case = Case(format!("{strategy:?} in {}", world.name()));
            let live = || strategy.policy("p", "10/min");
            let limiter = world.limiter([live()]);
            let long = || live().tier_quotas([quota("1/400days")]);
            let invalid = Policy::new("q", quota("0/min"));
            let builder = || Limiter::builder().policy(long());
            let failed = limiter.reconfigure(builder().policy(invalid));
            assert_eq!(failed.expect_err("a mistake").policy(), Some("q"));
            let text = "[policies.p]\nquota = '10/min'\ntier_quotas = ['1/400days']\n[policies.q]\nquota = '0/min'";
            let document = Document::parse(text, Format::Toml).expect("a document");
            let failed = document.reconfigure(&limiter, &Registry::new());
            failed.expect_err("a mistake");

            // Another process has a tier that takes a day to refill.
            let day = quota("10/day");
            let other = world.limiter([live().tier_quotas([day])]);
            let use_up = async |key: &str| {
                let used = other.check(key).quota_for("p", day).cost(10).await;
                assert!(admitted_by_store(&used));
            };
            let reset_after = async |key: &str| {
                let peeked = limiter.peek(key).await.expect("a response");
                peeked.count("p").reset_after()
            };
            use_up("alice").await;
            assert_eq!(reset_after("alice").await, secs(60));
            // Put in force, the longer tier keeps the debt of the day.
            use_up("bob").await;
            limiter.reconfigure(builder()).expect("valid");
            assert_eq!(reset_after("bob").await, secs(86_400));
        }
    }
}
