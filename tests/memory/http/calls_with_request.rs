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

fn head_of(path: &str, quota: &str, cost: &str) -> Parts {
    head(
        Request::get(path)
            .header("x-quota", quota)
            .header("x-cost", cost),
    )
}

#[tokio::test]
async fn a_call_with_a_request_uses_the_policies_extractors() {
    let limiter = limiter([by_request()]);
    let paid = head_of("/", "100", "30");
    let of = |p: PolicyDecision<'_>| (p.limit(), p.cost(), p.remaining());
    let seen = limiter.peek("alice").parts(&paid).await;
    assert_eq!(of(seen.expect("a response").count("p")), (100, 30, 100));
    let decision = limiter.check("alice").parts(&paid).await;
    assert_eq!(of(decision.count("p")), (100, 30, 70));
    let admission = limiter.admit("alice").parts(&paid).await.expect("admitted");
    assert_eq!(admission.remaining("p"), Some(40));
    let wait = || limiter.wait("alice", secs(1)).parts(&paid);
    assert_eq!(wait().await.expect("admitted").remaining("p"), Some(10));
    assert!(wait().await.is_err(), "30 units are more than 10");

    // Settings of the call take precedence.
    let own = limiter.check("bob").parts(&paid).cost(2);
    let decision = own.quota_for("p", quota("50/h")).await;
    assert_eq!(of(decision.count("p")), (50, 2, 48));

    // A request that the policy skips is free.
    let health = head_of("/health", "1", "30");
    for _ in 0..3 {
        let decision = limiter.check("carol").parts(&health).await;
        assert!(decision.is_admitted() && decision.policies().len() == 0);
        let waited = limiter.wait("carol", secs(1)).parts(&health).await;
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
    let line = log.throttled("call `parts`", start);
    assert_eq!(log.throttled("", start), line);
    let waited = limiter.wait("alice", secs(1)).await;
    assert_eq!(waited.expect_err("a rejection").status(), 503);
    let lacking = |error: CallError| matches!(error, CallError::PartsRequired { .. });
    assert!(lacking(limiter.peek("alice").await.expect_err("an error")));
    let charged = limiter.charge("alice", 1).await;
    assert!(lacking(charged.expect_err("an error")));
    // What a reset removes doesn't depend on a request.
    limiter.reset("alice").await.expect("a response");

    // A policy that is named, with a quota and a cost, takes nothing from a request.
    let quota = quota("50/h");
    let named = || limiter.check(("p", "alice")).quota_for("p", quota);
    assert!(!named().await.is_admitted(), "its cost is not known");
    let decision = named().cost(2).await;
    assert_eq!(decision.left("p"), 48);
    let decision = limiter.check("alice").quota_for("p", quota).cost(2).await;
    assert!(!decision.is_admitted(), "its conditions are not known");
}

#[tokio::test]
async fn the_error_of_a_call_without_a_request_names_what_it_lacks_alone() {
    let policy = || Policy::new("p", quota("9/h"));
    let quota = |policy: Policy| policy.quota_with(|_| None);
    let cost = |policy: Policy| policy.cost_with(|_| 2);
    let path = |policy: Policy| policy.only_path("/login");
    let a_cost = "its cost from a request: call `parts`, `cost` or `cost_for`";
    let a_quota = "its quota from a request: call `parts` or `quota_for`";
    let both =
        "its quota and cost from a request: call `parts`, or both `quota_for` and `cost_for`";
    let call = "from a request: call `parts`, or name the policy with its key";
    let conditions = |all: &str, also: &str| format!("{all} {call}{also}");
    // The errors of a peek that names the policy, and of one that does not.
    #[rustfmt::skip]
    let rows = [
        (policy(), "", String::new()),
        (cost(policy()), a_cost, a_cost.to_owned()),
        (quota(policy()), a_quota, a_quota.to_owned()),
        (quota(cost(policy())), both, both.to_owned()),
        (path(policy()), "", conditions("its conditions", "")),
        (path(quota(policy())), a_quota, conditions("its quota and conditions", " and call `quota_for`")),
        (path(cost(policy())), a_cost, conditions("its cost and conditions", " and call `cost_for`")),
        (path(quota(cost(policy()))), both, conditions("its quota, cost and conditions", " and call `quota_for` and `cost_for`")),
    ];
    for (policy, named, unnamed) in rows {
        let limiter = limiter([policy]);
        let errors = [
            limiter.peek(("p", "alice")).await.err(),
            limiter.peek("alice").await.err(),
        ];
        let errors = errors.map(|error| error.map_or(String::new(), |error| error.to_string()));
        let takes = |text: &str| match text {
            "" => String::new(),
            text => format!("policy \"p\" takes {text}"),
        };
        assert_eq!(errors, [takes(named), takes(&unnamed)], "{unnamed}");
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
