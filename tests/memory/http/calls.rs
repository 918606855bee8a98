//! The calls of a limiter by hand: what they take, and what they return.

use crate::http::support::*;
use tollgate::limiter::{Keys, LimitStatus};

#[tokio::test]
async fn a_request_is_admitted_until_its_quota_is_used_up_and_then_rejected() {
    let limiter = limiter([Policy::new("mail", quota("2/h"))]);
    let admission = limiter.admit("alice").await.expect("admitted");
    assert_eq!(admission.remaining("mail"), Some(1));
    let admission = limiter.admit("alice").cost(1).await.expect("admitted");
    assert_eq!(admission.remaining("mail"), Some(0));
    let rejected = limiter.admit("alice").await.expect_err("rejected");
    assert!(matches!(rejected.decision().kind(), DecisionKind::Rejected));
}

#[tokio::test]
async fn a_rejection_lists_its_policies_with_the_key_of_each() {
    let hourly = |name| Policy::new(name, quota("1/h"));
    let limiter = limiter([hourly("per ip"), hourly("per minute")]);
    let alice = [
        ("per ip", Key::new("alice")),
        ("per minute", Key::secret("sk")),
    ];
    let admission = limiter.admit(alice).await.expect("admitted");
    let decisions = admission.decisions();
    let rejected = limiter.admit(alice).await.expect_err("rejected");
    let text = rejected.to_string();
    let names = r#"quota exceeded: "per ip", "per minute"; retry after "#;
    assert!(text.starts_with(names), "{text}");
    for decision in [rejected.decision(), &decisions[0]] {
        let keys = decision.policies().map(|policy| policy.key());
        assert!(keys.eq([Key::new("alice"), Key::secret("sk")]));
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
    let limiter = limiter([
        Policy::new("a", quota("9/h")),
        Policy::new("b", quota("9/h")),
    ]);
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
        let policies = response.field("ratelimit-policy");
        assert!(!policies.contains("account"), "{policies}");
    }
    drop(guard);
    assert_eq!(log.lines(""), [""; 0]);
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
    let charged = limiter.charge("alice", 1).await.expect("a response");
    assert!(stands(charged), "another unit");
    let seen = limiter.peek("alice").await.expect("a response");
    assert!(stands(seen));
    let stood = limiter.reset("alice").await.expect("a response");
    assert!(stands(stood), "before the reset");
    let seen = limiter.peek("alice").await.expect("a response");
    assert!(!stands(seen));
    let blocked = limiter.block("alice", secs(60));
    blocked.await.expect("blocked");
    let stood = limiter.reset("alice").await.expect("a response");
    assert!(stands(stood), "blocked before the reset");
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
    for outcome in [
        limiter.peek([("acount", alice)]).await.map(drop),
        limiter.reset([("acount", alice)]).await.map(drop),
        limiter.charge([("acount", alice)], 1).await.map(drop),
        limiter.block([("acount", alice)], second).await,
        limiter.unblock([("acount", alice)]).await.map(drop),
    ] {
        assert!(matches!(outcome, Err(CallError::UnknownPolicy(_))));
    }
    // Nothing was charged or blocked.
    let seen = limiter.peek("alice").await.expect("a response");
    assert!(
        seen.policies()
            .all(|own| own.retry_after() == RetryAfter::Now)
    );
    assert_eq!(seen.left("account"), 5);
}

#[tokio::test]
async fn a_policy_that_is_not_named_does_not_apply_to_the_call() {
    let limiter = two();
    let (log, _guard) = Log::of_errors();
    for (client, left) in [("alice", [4, 3, 2, 1, 0]), ("bob", [4, 3, 2, 1, 0])] {
        for left in left {
            let decision = limiter.check([("account", Key::new(client))]).await;
            assert!(decision.is_admitted());
            let policies: Vec<_> = decision.policies().map(|v| v.policy()).collect();
            assert_eq!(policies, ["account"]);
            let remaining = decision.left("account");
            assert_eq!(remaining, left, "{client}");
        }
        // A ban that is not named counts no rejection.
        for _ in 0..5 {
            let waits = ms(1);
            let decision = limiter.check([("account", Key::new(client))]).await;
            assert!(decision.retry_after() != RetryAfter::Now);
            let rejected = limiter.wait([("account", Key::new(client))], waits).await;
            assert!(rejected.is_err());
        }
        let seen = limiter.peek(client).await.expect("a response");
        assert_eq!(seen.left("address"), 2);
        let abuse = seen.policy("abuse").expect("a policy");
        assert_eq!(abuse.retry_after(), RetryAfter::Now);
    }
    assert_eq!(log.lines("").len(), 0, "{:?}", log.lines(""));
}
