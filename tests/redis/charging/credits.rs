//! Units that are credited manually.

use tollgate_tests::{prelude::*, script::play};

use crate::charging::support::*;

#[tokio::test]
async fn a_credit_returns_units_in_use_also_of_a_debt_and_no_more() {
    let all = u64::MAX;
    let used = format!("10/min, charge 7, credit 3: 3, left: 6, credit {all}: 4, left: 10");
    // A debt of one capacity.
    let debt = "charge 20, credit 10: 10, left: 0, credit 2: 2, left: 2";
    let script = format!("{used}, {debt}, +300s, credit 5: 0, left: 10");
    play("gcra bucket fixed calendar", &script).await;
}

#[tokio::test]
async fn a_strategy_that_stores_each_charge_cannot_be_credited() {
    let strategies = [
        StrategyKind::Log,
        StrategyKind::List,
        StrategyKind::Sliding(10),
    ];
    on_each(&strategies, async |_, _, limiter| {
        let _ = limiter.charge(KEY, 7).await.expect("a response");
        let credited = limiter.policy("p").expect("a policy").credit(KEY, 3);
        let error = credited.await.expect_err("it is unsupported");
        assert!(matches!(error, CallError::CreditUnsupported { .. }));
        assert_eq!(
            error.to_string(),
            "policy \"p\" can't be credited: its strategy stores each charge separately; use `reset` to return all units"
        );
        assert_eq!(used(limiter, "p").await, 7);
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
    use StrategyKind::{Bucket, Calendar, Fixed, Gcra};
    for world in World::both() {
        for strategy in [Gcra, Bucket, Fixed, Calendar] {
            let _case = Case(format!("{strategy:?}"));
            let policy = together(strategy, "tokens", "1000/min").tier_quotas([pro()]);
            let limiter = world.limiter([policy]);
            let tokens = limiter.policy("tokens").expect("a policy");
            let _ = tokens.reset(KEY).await.expect("a response");
            let charged = tokens.charge(KEY, 15_000).quota_for("tokens", pro()).await;
            assert_eq!(charged.expect("a response").left("tokens"), 5_000);
            let credited = tokens.credit(KEY, 500).quota_for("tokens", pro()).await;
            let credited = credited.expect("a response");
            let status = credited.status();
            assert_eq!((credited.units(), status.left("tokens")), (500, 5_500));
            assert_eq!(status.count("tokens").limit(), 20_000);
            let peeked = tokens.peek(KEY).quota_for("tokens", pro()).await;
            assert_eq!(peeked.expect("a response").left("tokens"), 5_500);
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
        assert!(matches!(&error, CallError::PartsRequired { policy, .. } if &**policy == "tokens"));
        let unknown = tokens.credit(alice, 5).quota_for("token", pro()).await;
        assert!(matches!(unknown, Err(CallError::UnknownPolicy(_))));
        let charged = tokens.charge(alice, 15_000).parts(&head("pro")).await;
        let _ = charged.expect("a response");
        // A condition of requests is none of a credit, nor is what a request costs.
        let credited = tokens.credit(alice, 500).parts(&head("pro")).await;
        let credited = credited.expect("a response");
        let seen = credited.status().count("tokens");
        assert_eq!((credited.units(), seen.remaining()), (500, 5_500));
        assert_eq!(seen.retry_after(), RetryAfter::Now);
    }
}

#[tokio::test]
async fn a_credit_is_made_for_a_key_on_an_allow_or_a_deny_list() {
    for world in World::both() {
        let policy = || even("p", "10/min");
        let charged = world.limiter([policy()]).charge(KEY, 7).await;
        let _ = charged.expect("a response");
        let builder = || world.builder().policy(policy());
        let list = || KeyList::new("p", [KEY]);
        for (builder, left) in [(builder().allow(list()), 4), (builder().deny(list()), 5)] {
            let limiter = builder.build().expect("a limiter");
            let credited = limiter.policy("p").expect("a policy").credit(KEY, 1).await;
            let credited = credited.expect("a credit");
            assert_eq!(credited.units(), 1);
            assert_eq!(credited.status().left("p"), left);
        }
    }
}
