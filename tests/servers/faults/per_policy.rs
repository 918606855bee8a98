//! Each policy has its own action: a login stays closed while a read stays open.

use crate::faults::support::*;

fn named(name: &'static str, response: impl Into<OnStoreError>) -> Policy {
    Policy::new(name, quota(4)).on_store_error(response)
}

fn of(response: OnStoreError, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let limiter = Limiter::builder().store(nowhere()).on_store_error(response);
    let limiter = policies
        .into_iter()
        .fold(limiter, |l, policy| l.policy(policy));
    limiter.built()
}

fn names(decision: &Decision) -> Vec<&str> {
    decision.policies().map(|policy| policy.policy()).collect()
}

const HALF: LocalFallback = LocalFallback::shared_by(2);

#[tokio::test]
async fn a_login_stays_closed_while_a_read_stays_open() {
    let policies = [
        Policy::new("read", quota(4)).missing_key(MissingKey::Skip),
        named("login", OnStoreError::Reject).missing_key(MissingKey::Skip),
    ];
    let limiter = of(OnStoreError::Admit, policies);
    let (key, read, login) = (KEY, "read", "login");
    assert!(limiter.check([(read, key)]).await.is_admitted());
    for decision in [
        limiter.check([(login, key)]).await,
        limiter.check([(read, key), (login, key)]).await,
    ] {
        let code = store_error(&decision).code();
        assert!(["connection", "circuit_open"].contains(&code), "{code}");
    }
    assert!(limiter.check([(read, key)]).await.is_admitted());
}

#[tokio::test]
async fn one_policy_that_rejects_rejects_for_all_and_nothing_is_charged_in_process() {
    let policies = [named("shared", HALF), named("closed", OnStoreError::Reject)];
    let limiter = of(OnStoreError::Admit, policies);
    for _ in 0..3 {
        store_error(&limiter.check(KEY).await);
    }
    // Alone it still has all of its share.
    let seen = limiter.check([("shared", KEY)]).cost(0).await;
    assert_eq!(seen.left("shared"), 2);
}

#[tokio::test]
async fn policies_that_fall_back_are_evaluated_and_those_that_admit_are_not() {
    let policies = [named("open", OnStoreError::Admit), named("shared", HALF)];
    let limiter = of(OnStoreError::Reject, policies);
    let check = || limiter.check(KEY);
    for remaining in [1, 0] {
        let decision = check().await;
        assert!(decision.is_admitted());
        assert_eq!(names(&decision), ["shared"]);
        let policy = decision.policy("shared").expect("a policy");
        assert_eq!((policy.limit(), policy.remaining()), (2, remaining));
    }
    let rejected = check().await;
    assert!(matches!(rejected.kind(), DecisionKind::Rejected));
    assert_eq!(rejected.source(), DecisionSource::Fallback);
}

#[tokio::test]
async fn several_policies_that_fall_back_are_all_charged_or_none() {
    let policies = [
        named("two", HALF),
        Policy::new("one", quota(1)).on_store_error(LocalFallback::shared_by(9)),
    ];
    let limiter = of(OnStoreError::Admit, policies);
    assert!(limiter.check(KEY).await.is_admitted());
    for _ in 0..3 {
        let rejected = limiter.check(KEY).await;
        assert!(!rejected.is_admitted());
        assert!(rejected.policy("one").expect("a policy").rejected());
        assert_eq!(rejected.left("two"), 1);
    }
}

#[tokio::test]
async fn a_shadows_action_is_ignored() {
    for response in [OnStoreError::Reject, HALF.into()] {
        let policies = [
            named("live", OnStoreError::Admit),
            named("shadow", response).shadow(),
        ];
        let limiter = of(response, policies);
        for _ in 0..5 {
            let decision = limiter.check(KEY).await;
            assert!(decision.is_admitted() && decision.shadows().len() == 0);
        }
    }
}
