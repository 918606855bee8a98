//! Calls by hand whose policies take their settings from a request: with its head, and without one.

use crate::http::support::*;

/// A policy that takes all of its settings from requests: the quota from one header, the cost from another.
pub(crate) fn by_request() -> Policy {
    let number = |parts: &Parts, name| -> Option<u64> {
        parts.headers.get(name)?.to_str().ok()?.parse().ok()
    };
    Policy::new("p", quota("10/h"))
        .quota_with(move |parts| Some(Quota::requests(number(parts, "x-quota")?).per_hour()))
        .cost_with(move |parts| number(parts, "x-cost").unwrap_or(1))
        .skip_path("/health")
}

fn head(path: &str, quota: &str, cost: &str) -> Parts {
    let request = Request::get(path)
        .header("x-quota", quota)
        .header("x-cost", cost);
    request.body(()).expect("a request").into_parts().0
}

#[tokio::test]
async fn a_call_with_a_request_uses_the_policies_extractors() {
    let limiter = limiter([by_request()]);
    let paid = head("/", "100", "30");
    let seen = limiter.peek("alice").parts(&paid).await;
    let seen = seen.expect("a response");
    let p = seen.policy("p").expect("a policy");
    assert_eq!((p.limit(), p.cost(), p.remaining()), (100, 30, 100));
    let decision = limiter.check("alice").parts(&paid).await;
    let p = decision.policy("p").expect("a policy");
    assert_eq!((p.limit(), p.cost(), p.remaining()), (100, 30, 70));
    let admission = limiter.admit("alice").parts(&paid).await.expect("admitted");
    assert_eq!(admission.remaining("p"), Some(40));
    let second = secs(1);
    let waited = limiter.wait("alice", second).parts(&paid).await;
    assert_eq!(waited.expect("admitted").remaining("p"), Some(10));
    let waited = limiter.wait("alice", second).parts(&paid).await;
    assert!(waited.is_err(), "30 units are more than 10");

    // Settings of the call take precedence.
    let quota = Quota::requests(50).per_hour();
    let own = limiter.check("bob").parts(&paid).cost(2);
    let decision = own.quota_for("p", quota).await;
    let p = decision.policy("p").expect("a policy");
    assert_eq!((p.limit(), p.cost(), p.remaining()), (50, 2, 48));

    // A request that the policy skips is free.
    let health = head("/health", "1", "30");
    for _ in 0..3 {
        let decision = limiter.check("carol").parts(&health).await;
        assert!(decision.is_admitted() && decision.policies().len() == 0);
        let waited = limiter.wait("carol", second).parts(&health).await;
        assert_eq!(waited.expect("admitted").remaining("p"), None);
    }
}

#[tokio::test]
async fn a_call_without_a_request_is_an_error_if_a_policy_needs_one() {
    let limiter = limiter([by_request()]);
    let (log, start) = (Log::default(), Instant::now());
    let _guard = log.errors();
    for _ in 0..100 {
        let rejected = limiter.admit("alice").await.expect_err("a rejection");
        assert_eq!(rejected.status(), 503);
        let kind = rejected.decision().kind();
        assert!(matches!(kind, DecisionKind::PartsRequired { policy, .. } if &**policy == "p"));
    }
    assert_eq!(
        log.throttled("", start),
        log.throttled("call `parts`", start)
    );
    let second = secs(1);
    let waited = limiter.wait("alice", second).await;
    assert_eq!(waited.expect_err("a rejection").status(), 503);
    let lacking = |error: CallError| matches!(error, CallError::PartsRequired { .. });
    assert!(lacking(limiter.peek("alice").await.expect_err("an error")));
    let charged = limiter.charge("alice", 1).await;
    assert!(lacking(charged.expect_err("an error")));
    // What a reset removes doesn't depend on a request.
    limiter.reset("alice").await.expect("a response");

    // A policy that is named, with a quota and a cost, takes nothing from a request.
    let quota = Quota::requests(50).per_hour();
    let by_name = [("p", Key::new("alice"))];
    let named = || limiter.check(by_name).quota_for("p", quota);
    assert!(!named().await.is_admitted(), "its cost is not known");
    let decision = named().cost(2).await;
    assert_eq!(decision.left("p"), 48);
    let decision = limiter.check("alice").quota_for("p", quota).cost(2).await;
    assert!(!decision.is_admitted(), "its conditions are not known");
}

/// The errors of a peek that names the policy, and of one that does not.
async fn errors_of(policy: Policy) -> [Option<String>; 2] {
    let limiter = limiter([policy]);
    let named = limiter.peek(("p", Key::new("alice"))).await;
    let unnamed = limiter.peek("alice").await;
    [named, unnamed].map(|status| status.err().map(|error| error.to_string()))
}

#[tokio::test]
async fn the_error_of_a_call_without_a_request_names_what_it_lacks_alone() {
    let hourly = || Policy::new("p", Quota::requests(9).per_hour());
    let quota = |policy: Policy| policy.quota_with(|_| None);
    let cost = |policy: Policy| policy.cost_with(|_| 2);
    let path = |policy: Policy| policy.only_path("/login");
    let takes = |text: &str| Some(format!("policy \"p\" takes {text}"));
    let a_cost = takes("its cost from a request: call `parts`, `cost` or `cost_for`");
    let a_quota = takes("its quota from a request: call `parts` or `quota_for`");
    let both =
        "its quota and cost from a request: call `parts`, or both `quota_for` and `cost_for`";
    let name = "from a request: call `parts`, or name the policy with its key";
    for (policy, expected) in [
        (hourly(), [None, None]),
        (cost(hourly()), [a_cost.clone(), a_cost.clone()]),
        (quota(hourly()), [a_quota.clone(), a_quota.clone()]),
        (quota(cost(hourly())), [takes(both), takes(both)]),
        (
            path(hourly()),
            [None, takes(&format!("its conditions {name}"))],
        ),
        (
            path(quota(hourly())),
            [
                a_quota,
                takes(&format!(
                    "its quota and conditions {name} and call `quota_for`"
                )),
            ],
        ),
        (
            path(cost(hourly())),
            [
                a_cost,
                takes(&format!(
                    "its cost and conditions {name} and call `cost_for`"
                )),
            ],
        ),
        (
            path(quota(cost(hourly()))),
            [
                takes(both),
                takes(&format!(
                    "its quota, cost and conditions {name} and call `quota_for` and `cost_for`"
                )),
            ],
        ),
    ] {
        assert_eq!(errors_of(policy).await, expected);
    }
}

#[tokio::test]
async fn a_call_without_a_request_is_an_error_if_only_a_shadow_needs_one() {
    let hourly = |name| Policy::new(name, quota("9/h"));
    let limiter = limiter([hourly("p"), hourly("next").cost_with(|_| 2).shadow()]);
    let decision = limiter.check("alice").await;
    let kind = decision.kind();
    assert!(matches!(kind, DecisionKind::PartsRequired { policy, .. } if &**policy == "next"));
}
