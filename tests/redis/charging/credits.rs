//! Units that are credited manually.

use tollgate::access::KeyList;
use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// Credits units; returns how many, and how many are left.
async fn credit(limiter: &Limiter, units: u64) -> Result<(u64, u64), CallError> {
    let policy = limiter.policy("p").expect("a policy");
    let credited = policy.credit(KEY, units).await?;
    let left = credited.status().policy("p").expect("p").remaining();
    assert_eq!(credited.status().would_admit(), left > 0);
    Ok((credited.units(), left))
}

#[tokio::test]
async fn a_credit_returns_units_in_use_also_of_a_debt_and_no_more() {
    on_each_strategy(async |world, strategy, limiter, name| {
        let charge = async |units| drop(limiter.charge(KEY, units).await.expect("a response"));
        charge(7).await;
        if let StrategyKind::Log | StrategyKind::List | StrategyKind::Sliding(_) = strategy {
            let error = credit(limiter, 3).await.expect_err("it is unsupported");
            assert!(matches!(error, CallError::CreditUnsupported { .. }), "{name}");
            assert_eq!(
                error.to_string(),
                "policy \"p\" can't be credited: its strategy stores each charge separately; use `reset` to return all units"
            );
            assert_eq!(used(limiter, "p").await, 7, "{name}");
            return;
        }
        let credits = async |units| credit(limiter, units).await.expect("a response");
        assert_eq!(credits(3).await, (3, 6), "{name}");
        assert_eq!(used(limiter, "p").await, 4, "{name}");
        assert_eq!(credits(u64::MAX).await, (4, 10), "{name}");
        assert_eq!(used(limiter, "p").await, 0, "{name}");
        // A debt of one capacity.
        charge(20).await;
        assert_eq!(credits(10).await, (10, 0), "{name}");
        assert_eq!(credits(2).await, (2, 2), "{name}");
        assert_eq!(used(limiter, "p").await, 8, "{name}");
        world.advance(secs(300));
        assert_eq!(credits(5).await, (0, 10), "{name}");
        assert_eq!(used(limiter, "p").await, 0, "{name}");
    })
    .await;
}

/// The head of a request of a plan.
fn head(plan: &str) -> Parts {
    let request = Request::get("/").header("x-plan", plan);
    request.body(()).expect("a request").into_parts().0
}

fn pro() -> Quota {
    Quota::units(20_000).per_minute()
}

#[tokio::test]
async fn a_credit_goes_by_the_quota_of_the_callers_tier() {
    for world in World::both() {
        for strategy in [
            StrategyKind::Gcra,
            StrategyKind::Bucket,
            StrategyKind::Fixed,
            StrategyKind::Calendar,
        ] {
            let _case = Case(format!("{strategy:?}"));
            let policy = together(strategy, "tokens", "1000/min").tier_quotas([pro()]);
            let limiter = world.limiter([policy]);
            let tokens = limiter.policy("tokens").expect("a policy");
            let _ = tokens.reset(KEY).await.expect("a response");
            let charged = tokens.charge(KEY, 15_000).quota_for("tokens", pro()).await;
            let charged = charged.expect("a response");
            assert_eq!(charged.policy("tokens").expect("it").remaining(), 5_000);
            let credited = tokens.credit(KEY, 500).quota_for("tokens", pro()).await;
            let credited = credited.expect("a response");
            let seen = credited.status().policy("tokens").expect("it");
            assert_eq!((seen.limit(), seen.remaining()), (20_000, 5_500));
            assert_eq!(credited.units(), 500);
            let peeked = tokens.peek(KEY).quota_for("tokens", pro()).await;
            let peeked = peeked.expect("a response");
            let left = peeked.policy("tokens").expect("it").remaining();
            assert_eq!(left, 5_500);
            world.advance(secs(120));
        }
    }
}

#[tokio::test]
async fn a_credit_under_a_policy_of_tiers_needs_a_quota_or_a_request() {
    for world in World::both() {
        let policy = Policy::new("tokens", Quota::units(1_000).per_minute())
            .cost_with(|_| 50)
            .only_path("/chat")
            .quota_with(|parts| (parts.headers.get("x-plan")? == "pro").then(pro));
        let limiter = world.limiter([policy]);
        let tokens = limiter.policy("tokens").expect("a policy");
        let alice = Key::new("alice");
        let _ = tokens.reset(alice).await.expect("a response");
        let error = tokens.credit(alice, 500).await.expect_err("no quota");
        assert!(
            matches!(&error, CallError::PartsRequired { policy, .. } if &**policy == "tokens"),
            "{error}"
        );
        let unknown = tokens.credit(alice, 5).quota_for("token", pro()).await;
        assert!(matches!(unknown, Err(CallError::UnknownPolicy(_))));
        let charged = tokens.charge(alice, 15_000).parts(&head("pro")).await;
        let _ = charged.expect("a response");
        // A condition of requests is none of a credit, nor is what a request costs.
        let credited = tokens.credit(alice, 500).parts(&head("pro")).await;
        let credited = credited.expect("a response");
        let seen = credited.status().policy("tokens").expect("it");
        assert_eq!((credited.units(), seen.remaining()), (500, 5_500));
        assert_eq!(seen.retry_after(), RetryAfter::Now);
    }
}

#[tokio::test]
async fn a_shadow_candidate_is_credited_with_its_policy() {
    for world in World::both() {
        let next = together(StrategyKind::Fixed, "next", "500/min").shadow_of("tokens");
        let limiter = world.limiter([together(StrategyKind::Gcra, "tokens", "1000/min"), next]);
        let tokens = limiter.policy("tokens").expect("a policy");
        let _ = tokens.charge(KEY, 300).await.expect("a response");
        let credited = tokens.credit(KEY, 100).await.expect("a response");
        assert_eq!(credited.units(), 100);
        assert_eq!(used(&limiter, "tokens").await, 200);
        assert_eq!(used(&limiter, "next").await, 200);
    }
}

#[tokio::test]
async fn the_units_of_a_credit_are_those_of_the_policy_that_was_named() {
    for world in World::both() {
        let next = together(StrategyKind::Fixed, "next", "2/min").shadow_of("tokens");
        let limiter = world.limiter([together(StrategyKind::Fixed, "tokens", "9/min"), next]);
        for _ in 0..5 {
            let _ = limiter.check(KEY).await;
        }
        let tokens = limiter.policy("tokens").expect("a policy");
        let credited = tokens.credit(KEY, 4).await.expect("a response");
        assert_eq!(credited.units(), 4);
        for (name, left) in [("tokens", 1), ("next", 0)] {
            assert_eq!(used(&limiter, name).await, left, "{name}");
        }
    }
}

#[tokio::test]
async fn a_credit_is_made_for_a_key_on_an_allow_or_a_deny_list() {
    for world in World::both() {
        let policy = || together(StrategyKind::Gcra, "p", "10/min");
        let _ = world
            .limiter([policy()])
            .charge(KEY, 7)
            .await
            .expect("a response");
        for allows in [true, false] {
            let builder = world.builder().policy(policy());
            let list = KeyList::new("p", [KEY]);
            let builder = if allows {
                builder.allow(list)
            } else {
                builder.deny(list)
            };
            let limiter = builder.build().expect("a limiter");
            let left = if allows { 4 } else { 5 };
            assert_eq!(credit(&limiter, 1).await.expect("a credit"), (1, left));
        }
    }
}
