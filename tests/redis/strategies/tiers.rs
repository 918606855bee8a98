//! Several quotas under one key: no unit that one of them used comes back because of an operation under another.

use tollgate_tests::prelude::*;

use super::support::*;

/// Pairs of a quota that takes long to refill and one that does not, or is counted in coarser steps.
const PAIRS: [(&str, &str); 4] = [
    ("10000/day", "10/min"),
    ("10000/day", "100/month"),
    ("60/min burst 1440", "1/week"),
    ("1000000/month", "5/s"),
];

#[tokio::test]
async fn a_rejection_or_a_peek_under_one_tier_refunds_nothing_under_another() {
    for (large, small) in PAIRS {
        let strategies = [StrategyKind::Gcra, StrategyKind::Bucket];
        each_of(&strategies, large, async |scene| {
            let _case = Case(format!("tier {small}"));
            let (world, small, large) = (scene.world, quota(small), quota(large));
            let policy = scene.strategy.count("p", large).tier_quotas([small]);
            let limiter = world.limiter([policy]);
            let check = |cost| limiter.check(scene.key).cost(cost).into_future();
            assert!(admitted_by_store(&check(large.capacity()).await));
            let ttl = || {
                let server = world.redis_server()?;
                Some(server.command(&["PTTL", &server.only_key()]).int())
            };
            let before = ttl();

            let all = small.capacity();
            let peek = limiter.peek(scene.key).quota_for("p", small);
            let peeked = peek.cost(all).await.expect("a response");
            assert!(!peeked.would_admit());
            let sent = limiter.check(scene.key).quota_for("p", small);
            assert!(!admitted_by_store(&sent.cost(all).await));
            assert_eq!(ttl(), before);

            world.advance(secs(921));
            let back = large.amount() * 921 / large.period().as_secs();
            assert!(!admitted_by_store(&check(back + 2).await));
            assert!(back == 0 || admitted_by_store(&check(back).await));
        })
        .await;
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

#[tokio::test]
async fn a_charge_or_a_refund_under_a_small_tier_refunds_nothing_under_a_large_one() {
    let (large, small) = (quota("1000/10s"), quota("10/10s"));
    each("10/10s", async |scene| {
        let policy = scene.strategy.count("p", small).tier_quotas([large]);
        let limiter = scene.world.limiter([policy]);
        let under_large = || limiter.check(scene.key).quota_for("p", large);
        assert!(admitted_by_store(&under_large().cost(900).await));
        // Into debt, where the small tier has no room.
        let mut charged = charge(&limiter, scene.key, 1).await;
        charged.refund(1).await.expect("a response");
        let admitted = under_large().times(1_000).await.admitted();
        assert!(admitted <= 100, "{admitted} of 100 that were left");
    })
    .await;
}

#[tokio::test]
async fn a_sliding_window_under_a_small_tier_weighs_all_that_a_large_one_used() {
    each_of(&[StrategyKind::Sliding(1)], "10/10s", async |scene| {
        let large = scene.limiter.check(scene.key).cost(900);
        let large = large.quota_for("p", quota("1000/10s")).await;
        assert!(admitted_by_store(&large));
        // 900 weigh 9 in the last hundredth of the next bucket.
        let rejected = scene.check(1).await;
        assert_eq!(rejected.retry_after(), RetryAfter::In(ms(19_900)));
        scene.world.set(START + 19_899_999);
        assert_eq!(scene.send(1).await, 0);
        scene.world.set(START + 19_900_000);
        assert_eq!(scene.send(2).await, 1);
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

/// The deepest debt is two bursts, and one more request is evaluated on top of it.
#[tokio::test]
async fn the_deepest_debt_admits_nothing() {
    let bursts = ["1/s burst 100000", "1000/s burst 100000000"];
    for quota in bursts.into_iter().chain(["1/400days", "1/s"]) {
        let strategies = [StrategyKind::Gcra, StrategyKind::Bucket];
        each_of(&strategies, quota, async |scene| {
            scene.charge(u32::MAX.into()).await;
            // Singly, and merged.
            let rejected = scene.check(1).await;
            assert!(!admitted_by_store(&rejected));
            assert_eq!(scene.times(1_000).await, 0);
            let wait = rejected.retry_after().duration();
            assert_eq!(Some(scene.wait().await), wait);
        })
        .await;
    }
}
