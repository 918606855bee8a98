//! Calls by entries of policies' handles.

use std::{iter, time::Duration};

use http::Response;
use tollgate::{
    Ban, CallError, Concurrency, Key, Limiter, Policy, Quota, RateLimitHeaders,
    access::KeyList,
    limiter::{CallEntry, DecisionKind, Keys, PolicyHandle},
};
use tollgate_tests::rng::Rng;

fn policy(name: &str, units: u64) -> Policy {
    Policy::new(name, Quota::units(units).per_month())
}

fn limiter(policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let builder = policies
        .into_iter()
        .fold(Limiter::builder(), |all, one| all.policy(one));
    builder.build().expect("a limiter")
}

fn handle(limiter: &Limiter, policy: &str) -> PolicyHandle {
    limiter.policy(policy).expect("a policy")
}

async fn used(limiter: &Limiter, policy: &str, key: &str) -> u64 {
    let status = limiter.peek((policy, key)).await.expect("a status");
    let policy = status.policy(policy).expect("the policy");
    policy.limit() - policy.remaining()
}

#[tokio::test]
async fn entries_of_one_counter_are_charged_together() {
    let limiter = limiter([policy("p", 10)]);
    let p = handle(&limiter, "p");
    let decision = limiter
        .check([p.entry("a").cost(2), p.entry("b"), p.entry("a").cost(4)])
        .await;
    assert!(decision.is_admitted());
    let policies: Vec<_> = decision
        .policies()
        .map(|own| (own.key(), own.cost()))
        .collect();
    assert_eq!(policies, [(Key::new("a"), 6), (Key::new("b"), 1)]);
    assert_eq!(used(&limiter, "p", "a").await, 6);
    // Each of them would fit.
    let decision = limiter
        .check([p.entry("a").cost(3), p.entry("a").cost(3)])
        .await;
    assert!(!decision.is_admitted());
    assert_eq!(used(&limiter, "p", "a").await, 6);
}

#[tokio::test]
async fn all_keys_are_charged_or_none() {
    let limiter = limiter([policy("p", 3), policy("q", 9)]);
    let (p, q) = (handle(&limiter, "p"), handle(&limiter, "q"));
    let call = || [q.entry("all").cost(2), p.entry("b"), p.entry("a").cost(2)];
    assert!(limiter.check(call()).await.is_admitted());
    let rejected = limiter.admit(call()).await.expect_err("`a` is used up");
    assert!(rejected.retry_after().duration() > Some(Duration::ZERO));
    assert_eq!(used(&limiter, "p", "a").await, 2);
    assert_eq!(used(&limiter, "p", "b").await, 1);
    assert_eq!(used(&limiter, "q", "all").await, 2);
}

#[tokio::test]
async fn what_an_admission_charged_is_refunded_for_each_key() {
    let limiter = limiter([policy("p", 3)]);
    let p = handle(&limiter, "p");
    let mut decision = limiter.check([p.entry("a"), p.entry("b").cost(2)]).await;
    decision.refund(u64::MAX).await.expect("a refund");
    assert_eq!(used(&limiter, "p", "a").await, 0);
    assert_eq!(used(&limiter, "p", "b").await, 0);
}

#[tokio::test]
async fn permits_of_several_keys_are_released_together() {
    let limit = Policy::new("p", Quota::concurrent(2)).strategy(Concurrency::new());
    let limiter = limiter([limit]);
    let p = handle(&limiter, "p");
    let admission = limiter
        .admit([p.entry("a"), p.entry("b"), p.entry("a")])
        .await;
    assert!(admission.is_ok() && !limiter.check(p.entry("a")).await.is_admitted());
    drop(admission);
    assert_eq!(used(&limiter, "p", "a").await, 0);
    assert_eq!(used(&limiter, "p", "b").await, 0);
}

#[tokio::test]
async fn a_quota_of_an_entry_is_used_and_two_for_one_counter_are_a_mistake() {
    let limiter = limiter([policy("p", 9)]);
    let p = handle(&limiter, "p");
    let quota = |units| Quota::units(units).per_month();
    let decision = limiter.check(p.entry("a").quota(quota(50)).cost(20)).await;
    assert!(decision.is_admitted());
    let twice = [p.entry("a"), p.entry("a").quota(quota(50))];
    let decision = limiter.check(twice).await;
    assert!(
        matches!(decision.kind(), DecisionKind::DuplicatePolicy { policy, .. } if &**policy == "p")
    );
    let each = [
        p.entry("a").quota(quota(50)),
        p.entry("b").quota(quota(5)).cost(5),
    ];
    assert!(limiter.check(each).await.is_admitted());
}

#[tokio::test]
async fn a_handle_follows_its_policy_when_the_policies_are_replaced() {
    let limiter = limiter([policy("first", 5), policy("second", 7)]);
    let (first, second) = (handle(&limiter, "first"), handle(&limiter, "second"));
    let builder = Limiter::builder()
        .policy(policy("new", 1))
        .policy(policy("second", 7));
    limiter.reconfigure(builder).expect("valid");
    assert!(limiter.check(second.entry("a").cost(7)).await.is_admitted());
    assert_eq!(used(&limiter, "second", "a").await, 7);
    assert_eq!(used(&limiter, "new", "a").await, 0);
    let decision = limiter.check([second.entry("b"), first.entry("b")]).await;
    assert!(
        matches!(decision.kind(), DecisionKind::UnknownPolicy(_)),
        "{decision:?}"
    );
    assert_eq!(used(&limiter, "second", "b").await, 0);
}

#[tokio::test]
async fn a_candidate_is_evaluated_if_its_live_policy_has_one_key() {
    let candidate = policy("next", 1).shadow_of("p");
    let limiter = limiter([policy("p", 5), candidate]);
    let p = handle(&limiter, "p");
    let decision = limiter.check([p.entry("a"), p.entry("a")]).await;
    let shadows: Vec<_> = decision
        .shadows()
        .map(|own| (own.key(), own.cost(), own.would_reject()))
        .collect();
    assert!(decision.is_admitted());
    assert_eq!(shadows, [(Key::new("a"), 2, true)], "{decision:?}");
    let decision = limiter.check([p.entry("a"), p.entry("b")]).await;
    assert!(decision.is_admitted() && decision.shadows().len() == 0);
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
    assert!(
        limits.starts_with("\"p\";r=1;") && limits.matches("r=").count() == 1,
        "{limits}"
    );
    // The cached field of other requests is not that of a call with as many entries.
    let [policies, _] = fields([p.entry("c"), q.entry("c")]).await;
    assert!(
        policies.contains("\"p\"") && policies.contains("\"q\""),
        "{policies}"
    );
    let rejected = limiter
        .admit([p.entry("a").cost(2), p.entry("b").cost(3)])
        .await;
    let text = rejected.expect_err("neither has room").to_string();
    assert!(text.starts_with("quota exceeded: \"p\"; "), "{text}");
}

#[tokio::test]
async fn a_call_of_too_many_entries_is_a_mistake_that_charges_nothing() {
    let limiter = limiter([policy("p", 9)]);
    let p = handle(&limiter, "p");
    let entries = |n: u64| (0..n).map(|key| p.entry(key)).collect::<Keys>();
    assert!(limiter.check(entries(128)).await.is_admitted());
    let decision = limiter.check(entries(129)).await;
    assert!(matches!(
        decision.kind(),
        DecisionKind::TooManyEntries { entries: 129, .. }
    ));
    assert_eq!(used(&limiter, "p", "0").await, 1);
}

#[tokio::test]
async fn a_denied_key_rejects_the_call_and_an_allowed_one_admits_it_free() {
    let denied = KeyList::new("p", [Key::new("mallory")]);
    let allowed = KeyList::new("p", [Key::new("root")]);
    let limiter = Limiter::builder()
        .policy(policy("p", 1))
        .deny(denied)
        .allow(allowed)
        .build()
        .expect("a limiter");
    let p = handle(&limiter, "p");
    let kind = async |keys: &[&str]| {
        let entries: Vec<CallEntry> = keys.iter().map(|key| p.entry(*key).cost(9)).collect();
        limiter.check(entries).await.kind().clone()
    };
    assert!(matches!(
        kind(&["alice", "mallory", "root"]).await,
        DecisionKind::DenyListed
    ));
    assert!(matches!(
        kind(&["alice", "root"]).await,
        DecisionKind::Admitted
    ));
    assert!(matches!(kind(&["alice"]).await, DecisionKind::Rejected));
}

#[tokio::test]
async fn a_wait_for_one_key_does_not_hold_up_another_key_of_the_policy() {
    let limiter = limiter([policy("p", 1)]);
    let p = handle(&limiter, "p");
    assert!(limiter.check(p.entry("a")).await.is_admitted());
    let day = Duration::from_secs(86_400);
    let mut waits = Box::pin(
        limiter
            .wait([p.entry("a"), p.entry("b")], 40 * day)
            .into_future(),
    );
    assert!(futures_util::poll!(&mut waits).is_pending());
    drop(limiter.wait(p.entry("b"), day).await.expect("room"));
    drop(waits);
    assert_eq!(used(&limiter, "p", "b").await, 1);
}

#[tokio::test]
async fn each_key_is_blocked_and_reset() {
    let ban = Policy::new("ban", Quota::requests(5).per_minute())
        .strategy(Ban::for_duration(Duration::from_secs(60)));
    let limiter = limiter([policy("p", 5), ban]);
    let (p, ban) = (handle(&limiter, "p"), handle(&limiter, "ban"));
    let both = [ban.entry("a"), ban.entry("b")];
    limiter
        .block(both, Duration::from_secs(60))
        .await
        .expect("blocked");
    for key in ["a", "b"] {
        assert!(!limiter.check(key).await.is_admitted(), "{key}");
        limiter.charge(p.entry(key), 3).await.expect("charged");
    }
    let none = limiter.block(p.entry("a"), Duration::from_secs(60)).await;
    assert!(matches!(none, Err(CallError::NotABan { .. })), "{none:?}");
    limiter
        .reset([p.entry("a"), p.entry("b")])
        .await
        .expect("reset");
    assert_eq!(
        used(&limiter, "p", "a").await + used(&limiter, "p", "b").await,
        0
    );
}

/// An entry for each policy is the same as its name with the key.
#[tokio::test]
async fn calls_by_entries_and_by_names_decide_alike() {
    let mut rng = Rng::new(7);
    let policies = || (0..5).map(|number| policy(&format!("p{number}"), 20 + number));
    let (by_entry, by_name) = (limiter(policies()), limiter(policies()));
    let handles: Vec<_> = by_entry
        .policies()
        .iter()
        .map(|own| handle(&by_entry, own.name()))
        .collect();
    for _ in 0..2_000 {
        let cost = rng.below(5);
        let chosen = iter::repeat_with(|| rng.below(5)).take(3);
        let mut chosen: Vec<_> = chosen.map(|number| number as usize).collect();
        chosen.sort_unstable();
        chosen.dedup();
        let key = |number: usize| Key::new(format!("{}", (number + cost as usize) % 3));
        let entries: Vec<CallEntry> = chosen
            .iter()
            .map(|number| handles[*number].entry(key(*number)).cost(cost))
            .collect();
        let names: Vec<_> = chosen
            .iter()
            .map(|number| (handles[*number].name(), key(*number)))
            .collect();
        let (own, other) = (
            by_entry.check(entries).await,
            by_name.check(names).cost(cost).await,
        );
        assert_eq!(own.is_admitted(), other.is_admitted());
        let states = own.policies().zip(other.policies());
        for (own, other) in states {
            assert_eq!(
                (own.policy(), own.remaining()),
                (other.policy(), other.remaining())
            );
        }
    }
}
