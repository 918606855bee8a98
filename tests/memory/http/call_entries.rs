//! Calls by entries of policies' handles, of which several may be of one policy.

use crate::http::{support, support::*};
use tollgate::limiter::{CallEntry, PolicyHandle};

fn policy(name: &str, units: u64) -> Policy {
    Policy::new(name, Quota::units(units).per_month())
}

fn handle(limiter: &Limiter, policy: &str) -> PolicyHandle {
    limiter.policy(policy).expect("a policy")
}

/// How many units are used under a policy, by each of these keys.
async fn used<const N: usize>(limiter: &Limiter, policy: &str, keys: [&str; N]) -> [u64; N] {
    let mut used = [0; N];
    for (used, key) in used.iter_mut().zip(keys) {
        *used = support::used(limiter, policy, Key::new(key)).await;
    }
    used
}

#[tokio::test]
async fn all_keys_are_charged_or_none_and_entries_of_one_counter_together() {
    let limiter = limiter([policy("p", 10), policy("q", 9)]);
    let (p, q) = (handle(&limiter, "p"), handle(&limiter, "q"));
    let entries = [p.entry("a").cost(2), p.entry("b"), p.entry("a").cost(4)];
    let admission = limiter.admit(entries).await.expect("room");
    let decision = admission.decision();
    let policies = decision.policies().map(|own| (own.key(), own.cost()));
    let expected = [(Key::new("a"), 6), (Key::new("b"), 1)];
    assert_eq!(policies.collect::<Vec<_>>(), expected);
    assert_eq!(used(&limiter, "p", ["a", "b"]).await, [6, 1]);
    // Each of them would fit.
    let entries = || [q.entry("all"), p.entry("a").cost(3), p.entry("a").cost(3)];
    let rejected = limiter.admit(entries()).await.expect_err("no room");
    assert!(rejected.retry_after().duration() > Some(Duration::ZERO));
    assert_eq!(used(&limiter, "p", ["a"]).await, [6]);
    assert_eq!(used(&limiter, "q", ["all"]).await, [0]);
    // A charge takes all, a refund gives all back.
    admission.refund(u64::MAX).await.expect("a refund");
    assert_eq!(used(&limiter, "p", ["a", "b"]).await, [0, 0]);
    assert!(limiter.check(entries()).await.is_admitted());
    limiter
        .reset([p.entry("a"), q.entry("all")])
        .await
        .expect("reset");
    assert_eq!(used(&limiter, "p", ["a"]).await, [0]);
}

#[tokio::test]
async fn permits_of_several_keys_are_released_together() {
    let limiter = limiter([Policy::new("p", Quota::concurrent(2))]);
    let p = handle(&limiter, "p");
    let entries = [p.entry("a"), p.entry("b"), p.entry("a")];
    let admission = limiter.admit(entries).await;
    assert!(admission.is_ok() && limiter.admit(p.entry("a")).await.is_err());
    drop(admission);
    assert_eq!(used(&limiter, "p", ["a", "b"]).await, [0, 0]);
}

#[tokio::test]
async fn two_quotas_for_one_counter_and_too_many_entries_are_mistakes_that_charge_nothing() {
    let limiter = limiter([policy("p", 9)]);
    let p = handle(&limiter, "p");
    let quota = |units| Quota::units(units).per_month();
    let decision = limiter.check(p.entry("a").quota(quota(50)).cost(20)).await;
    assert!(decision.is_admitted());
    let twice = [p.entry("b"), p.entry("b").quota(quota(50))];
    let decision = limiter.check(twice).await;
    let kind = decision.kind();
    assert!(
        matches!(kind, DecisionKind::Invalid(CallError::DuplicatePolicy { policy, .. }) if &**policy == "p"),
        "{kind:?}"
    );
    let entries = |n: u64| (0..n).map(|key| p.entry(key)).collect::<Keys>();
    assert!(limiter.check(entries(128)).await.is_admitted());
    let decision = limiter.check(entries(129)).await;
    let kind = decision.kind();
    assert!(
        matches!(
            kind,
            DecisionKind::Invalid(CallError::TooManyEntries { entries: 129, .. })
        ),
        "{kind:?}"
    );
    assert_eq!(used(&limiter, "p", ["b", "0"]).await, [0, 1]);
}

#[tokio::test]
async fn a_handle_follows_its_policy_when_the_policies_are_replaced() {
    let limiter = limiter([policy("first", 5), policy("second", 7)]);
    let (first, second) = (handle(&limiter, "first"), handle(&limiter, "second"));
    let builder = Limiter::builder().policy(policy("new", 1));
    let replaced = limiter.reconfigure(builder.policy(policy("second", 7)));
    replaced.expect("valid");
    assert!(limiter.check(second.entry("a").cost(7)).await.is_admitted());
    let decision = limiter.check([second.entry("b"), first.entry("b")]).await;
    let is_unknown = matches!(
        decision.kind(),
        DecisionKind::Invalid(CallError::UnknownPolicy(_))
    );
    assert!(is_unknown, "{decision:?}");
    assert_eq!(used(&limiter, "second", ["a", "b"]).await, [7, 0]);
    assert_eq!(used(&limiter, "new", ["a"]).await, [0]);
}

#[tokio::test]
async fn clients_see_one_key_of_a_policy() {
    let limiter = limiter([policy("p", 3), policy("q", 9)]);
    let (p, q) = (handle(&limiter, "p"), handle(&limiter, "q"));
    let fields = async |entries: [CallEntry; 2]| {
        let admission = limiter.admit(entries).await.expect("room");
        let mut response = Response::new(());
        RateLimitHeaders::draft().add_to(&mut response, &admission);
        ["ratelimit-policy", "ratelimit"].map(|name| {
            let value = response.headers().get(name).expect("a field").to_str();
            value.expect("text").to_owned()
        })
    };
    let [policies, limits] = fields([p.entry("a").cost(2), p.entry("b")]).await;
    assert_eq!(policies.matches("q=").count(), 1, "{policies}");
    assert!(limits.starts_with("\"p\";r=1;"), "{limits}");
    assert_eq!(limits.matches("r=").count(), 1, "{limits}");
    // The cached field of other requests is not that of a call with as many entries.
    let [policies, _] = fields([p.entry("c"), q.entry("c")]).await;
    assert_contains(&policies, ["\"p\"", "\"q\""]);
    let entries = [p.entry("a").cost(2), p.entry("b").cost(3)];
    let rejected = limiter.admit(entries).await;
    let text = rejected.expect_err("neither has room").to_string();
    assert!(text.starts_with("quota exceeded: \"p\"; "), "{text}");
}

#[tokio::test]
async fn a_wait_for_one_key_does_not_hold_up_another_key_of_the_policy() {
    let limiter = limiter([policy("p", 1)]);
    let p = handle(&limiter, "p");
    assert!(limiter.check(p.entry("a")).await.is_admitted());
    let days = 40 * secs(86_400);
    let wait = |keys: Keys| Box::pin(limiter.wait(keys, days).into_future());
    let both = [p.entry("a"), p.entry("b")];
    let mut waits = [wait(both.into()), wait(p.entry("a").into())];
    for wait in &mut waits {
        assert!(futures_util::poll!(wait).is_pending());
    }
    let free = limiter.wait(p.entry("b"), Duration::ZERO).await;
    drop(free.expect("room"));
    drop(waits);
    assert_eq!(used(&limiter, "p", ["b"]).await, [1]);
}
