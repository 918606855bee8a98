//! The calls of a limiter by hand: what they take, and what they return.

use crate::http::support::*;
use tollgate::limiter::{Keys, LimitStatus};

#[tokio::test]
async fn a_rejection_lists_its_policies_with_the_key_of_each() {
    let hourly = |name| Policy::new(name, quota("1/h"));
    let limiter = limiter([hourly("per ip"), hourly("per minute")]);
    let (user, token) = (Key::new("alice"), Key::secret("sk"));
    let alice = [("per ip", user), ("per minute", token)];
    let admission = limiter.admit(alice).await.expect("admitted");
    assert_eq!(admission.remaining("per ip"), Some(0));
    let decisions = admission.decisions();
    let rejected = limiter.admit(alice).await.expect_err("rejected");
    assert!(matches!(rejected.decision().kind(), DecisionKind::Rejected));
    let text = rejected.to_string();
    let names = r#"quota exceeded: "per ip", "per minute"; retry after "#;
    assert!(text.starts_with(names), "{text}");
    for decision in [rejected.decision(), &decisions[0]] {
        let keys = decision.policies().map(|policy| policy.key());
        assert!(keys.eq([user, token]));
    }
}

#[tokio::test]
async fn strings_numbers_and_addresses_convert_to_keys() {
    async fn used_up(limiter: &Limiter, keys: impl Into<Keys>) -> bool {
        limiter.admit(keys).await.is_err()
    }

    let limiter = limiter([Policy::new("p", quota("1/h"))]);
    let address: IpAddr = "2001:db8::1".parse().expect("an address");
    for (key, same) in [
        (Keys::from("alice"), Key::new("alice")),
        (Keys::from("bob".to_owned()), Key::new("bob")),
        (Keys::from(&"carol".to_owned()), Key::new("carol")),
        (Keys::from(7), Key::new("7")),
        (Keys::from(u64::MAX), Key::new("18446744073709551615")),
        (Keys::from(address), Key::ip(address)),
    ] {
        assert!(!used_up(&limiter, key).await, "{same}");
        assert!(used_up(&limiter, same).await, "{same}");
    }
    assert_eq!(Key::from("x".to_owned()), Key::new("x"));
    assert_eq!(Key::from(&"x".to_owned()), Key::new("x"));
    assert_eq!(Key::from(42), Key::new("42"));
}

#[tokio::test]
async fn keys_by_policy_may_be_strings_in_lists_pairs_and_by_handle() {
    let limiter = limiter(["a", "b"].map(|name| Policy::new(name, quota("9/h"))));
    let alice = "alice".to_owned();
    let _ = limiter.admit(("a", "alice")).await.expect("admitted");
    let _ = limiter.admit(("a", &alice)).await.expect("admitted");
    let _ = limiter.admit([("a", "alice"), ("b", "alice")]).await;
    let a = limiter.policy("a").expect("a policy");
    let _ = a.charge(&alice, 1).await.expect("a response");
    let seen = a.peek("alice").await.expect("a response");
    assert_eq!(seen.left("a"), 5);
    let seen = limiter.peek(("b", Key::new("alice"))).await;
    let seen = seen.expect("a response");
    assert_eq!(seen.left("b"), 8);
    assert!(seen.policy("a").is_none());
    let _ = a.reset("alice").await.expect("a response");
    let credited = a.credit("alice", 1).await.expect("a response");
    assert_eq!(credited.units(), 0);
    assert_eq!(a.callers("alice").await.expect("a response"), []);
}

#[tokio::test]
async fn a_manual_policy_applies_only_to_direct_calls_and_builds_their_keys() {
    let limiter = limiter([
        Policy::new("address", quota("99/h")).key(extract::global()),
        Policy::new("account", quota("2/h")).by_hand(),
    ]);
    let (log, guard) = Log::of_errors();
    let app = hello(&RateLimitLayer::new(limiter.clone()));
    for _ in 0..10 {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, 200);
        assert!(!response.field("ratelimit-policy").contains("account"));
    }
    drop(guard);
    assert_eq!(log.text(), "");
    let account = limiter.policy("account").expect("a policy");
    assert_eq!(account.key("alice"), Some(Key::new("alice")));
    for left in [1, 0] {
        let _ = limiter.admit(("account", "alice")).await.expect("admitted");
        let seen = account.peek("alice").await.expect("a response");
        assert_eq!(seen.left("account"), left);
    }
    assert!(limiter.admit("alice").await.is_err(), "not named either");
}

/// What is shown of a key by each method of its status agrees.
#[tokio::test]
async fn the_methods_of_a_status_agree_with_each_other() {
    let limiter = limiter([
        Policy::new("p", quota("1/h")),
        Policy::new("ban", quota("9/h")).strategy(Ban::for_duration(secs(60))),
    ]);
    let stands = |status: LimitStatus| {
        let rejects = status.policies().any(|policy| policy.would_reject());
        let rejected = matches!(status.kind(), DecisionKind::Rejected);
        let waits = status.retry_after() != RetryAfter::Now;
        assert_eq!(rejects, rejected, "{status:?}");
        assert_eq!(rejects, waits, "{status:?}");
        assert_eq!(rejects, !status.would_admit(), "{status:?}");
        rejects
    };
    let peek = async || limiter.peek("alice").await.expect("a response");
    let reset = async || limiter.reset("alice").await.expect("a response");
    let charged = limiter.charge("alice", 1).await.expect("a response");
    assert!(stands(charged), "another unit");
    assert!(stands(peek().await));
    assert!(stands(reset().await), "before the reset");
    assert!(!stands(peek().await));
    let blocked = limiter.block("alice", secs(60));
    blocked.await.expect("blocked");
    assert!(stands(reset().await), "blocked before the reset");
    let p = limiter.policy("p").expect("a policy");
    let alice = Key::new("alice");
    assert!(stands(p.charge(alice, 3).await.expect("a response")));
    for (units, rejects) in [(1, true), (9, false)] {
        let credited = p.credit(alice, units).await.expect("a response");
        assert_eq!(stands(credited.status().clone()), rejects);
    }
}

pub(crate) fn two() -> Limiter {
    limiter([
        Policy::new("address", quota("2/min")),
        Policy::new("account", quota("5/min")),
        Policy::new("abuse", quota("2/min")).strategy(Ban::for_duration(secs(60))),
    ])
}

#[tokio::test]
async fn an_unknown_policy_name_rejects_the_call_and_is_logged_once_in_ten_seconds() {
    let (limiter, log, start) = (two(), Log::default(), Instant::now());
    let _guard = log.errors();
    let alice = Key::new("alice");
    for _ in 0..1_000 {
        let rejected = limiter.admit([("acount", alice)]).await;
        let rejected = rejected.expect_err("a rejection");
        assert_eq!(rejected.status(), 503);
        let DecisionKind::UnknownPolicy(unknown) = rejected.decision().kind() else {
            panic!("{rejected:?}");
        };
        assert_eq!(unknown.name(), "acount");
        assert_eq!(unknown.known(), ["address", "account", "abuse"]);
    }
    let text = r#"no policy "acount"; expected one of ["address", "account", "abuse"]"#;
    assert_eq!(log.throttled("", start), log.throttled(text, start));

    // So are names that settings are for.
    let quota = Quota::requests(1).per_minute();
    for check in [
        limiter.check("alice").cost_for("acount", 3),
        limiter.check("alice").quota_for("acount", quota),
    ] {
        let decision = check.await;
        assert!(matches!(decision.kind(), DecisionKind::UnknownPolicy(_)));
    }
    let second = secs(1);
    let waited = limiter.wait([("acount", alice)], second).await;
    assert_eq!(waited.expect_err("a rejection").status(), 503);
    let keys = || [("acount", alice)];
    for outcome in [
        limiter.peek(keys()).await.map(drop),
        limiter.reset(keys()).await.map(drop),
        limiter.charge(keys(), 1).await.map(drop),
        limiter.block(keys(), second).await,
        limiter.unblock(keys()).await.map(drop),
    ] {
        assert!(matches!(outcome, Err(CallError::UnknownPolicy(_))));
    }
    // Nothing was charged or blocked.
    let seen = limiter.peek("alice").await.expect("a response");
    assert!(seen.would_admit(), "{seen:?}");
    assert_eq!(seen.left("account"), 5);
}

#[tokio::test]
async fn a_policy_that_is_not_named_does_not_apply_to_the_call() {
    let limiter = two();
    let (log, _guard) = Log::of_errors();
    for client in ["alice", "bob"] {
        let named = || [("account", Key::new(client))];
        for left in [4, 3, 2, 1, 0] {
            let decision = limiter.check(named()).await;
            assert!(decision.is_admitted());
            assert!(decision.policies().map(|own| own.policy()).eq(["account"]));
            assert_eq!(decision.left("account"), left, "{client}");
        }
        // A ban that is not named counts no rejection.
        for _ in 0..5 {
            let decision = limiter.check(named()).await;
            assert!(decision.retry_after() != RetryAfter::Now);
            assert!(limiter.wait(named(), ms(1)).await.is_err());
        }
        let seen = limiter.peek(client).await.expect("a response");
        assert_eq!(seen.left("address"), 2);
        assert_eq!(seen.count("abuse").retry_after(), RetryAfter::Now);
    }
    assert_eq!(log.text(), "");
}
