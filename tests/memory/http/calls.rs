//! The calls of a limiter by hand: what they take, what they return, and their errors.

use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::http::support::*;
use tollgate::limiter::{Keys, LimitStatus};

#[tokio::test]
async fn strings_numbers_and_addresses_convert_to_keys() {
    let limiter = limiter([Policy::new("p", quota("1/h"))]);
    let address: IpAddr = "2001:db8::1".parse().expect("an address");
    let dave = "dave".to_owned();
    for (key, same) in [
        (Keys::from("alice"), Key::new("alice")),
        (Keys::from("bob".to_owned()), Key::new("bob")),
        (Keys::from(&"carol".to_owned()), Key::new("carol")),
        (Keys::from(("p", &dave)), Key::from(&dave)),
        (Keys::from([("p", "eve")]), Key::from("eve".to_owned())),
        (Keys::from(u64::MAX), Key::new("18446744073709551615")),
        (Keys::from(7), Key::from(7)),
        (Keys::from(address), Key::ip(address)),
    ] {
        assert!(limiter.admit(key).await.is_ok(), "{same}");
        assert!(limiter.admit(same).await.is_err(), "{same}");
    }
}

#[tokio::test]
async fn a_manual_policy_applies_only_to_direct_calls() {
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
    assert!(stands(p.charge("alice", 3).await.expect("a response")));
    for (units, rejects) in [(1, true), (9, false)] {
        let credited = p.credit("alice", units).await.expect("a response");
        assert_eq!(stands(credited.status().clone()), rejects);
    }
}

fn two() -> Limiter {
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
    for _ in 0..100 {
        let rejected = limiter.admit([("acount", "alice")]).await;
        let rejected = rejected.expect_err("a rejection");
        assert_eq!(rejected.status(), 503);
        let DecisionKind::Invalid(CallError::UnknownPolicy(unknown)) = rejected.decision().kind()
        else {
            panic!("{rejected:?}");
        };
        assert_eq!(unknown.name(), "acount");
        assert_eq!(unknown.known(), ["address", "account", "abuse"]);
    }
    let text = r#"no policy "acount"; expected one of ["address", "account", "abuse"]"#;
    assert_eq!(log.throttled("", start), log.throttled(text, start));

    // So are names that settings are for.
    for check in [
        limiter.check("alice").cost_for("acount", 3),
        limiter.check("alice").quota_for("acount", quota("1/min")),
    ] {
        let decision = check.await;
        assert!(matches!(
            decision.kind(),
            DecisionKind::Invalid(CallError::UnknownPolicy(_))
        ));
    }
    let keys = || [("acount", "alice")];
    let waited = limiter.wait(keys(), secs(1)).await;
    assert_eq!(waited.expect_err("a rejection").status(), 503);
    for outcome in [
        limiter.peek(keys()).await.map(drop),
        limiter.reset(keys()).await.map(drop),
        limiter.charge(keys(), 1).await.map(drop),
        limiter.block(keys(), secs(1)).await,
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
    let named = || [("account", "alice")];
    for left in [4, 3, 2, 1, 0] {
        let decision = limiter.check(named()).await;
        assert!(decision.is_admitted());
        assert!(decision.policies().map(|own| own.policy()).eq(["account"]));
        assert_eq!(decision.left("account"), left);
    }
    // A ban that is not named counts no rejection.
    for _ in 0..5 {
        assert!(!limiter.check(named()).await.is_admitted());
        assert!(limiter.wait(named(), ms(1)).await.is_err());
    }
    let seen = limiter.peek("alice").await.expect("a response");
    assert_eq!(seen.left("address"), 2);
    assert_eq!(seen.count("abuse").retry_after(), RetryAfter::Now);
}

#[tokio::test]
async fn a_policy_handle_operates_on_its_policy_only() {
    let limiter = two();
    let [account, abuse] = ["account", "abuse"].map(|name| limiter.policy(name).expect(name));
    let alice = Key::new("alice");
    let left = async || {
        let seen = limiter.peek(alice).await.expect("a response");
        ["address", "account"].map(|name| seen.left(name))
    };
    account.charge(alice, 4).await.expect("a response");
    assert_eq!(left().await, [2, 1]);
    account.credit(alice, 2).await.expect("a response");
    assert_eq!(left().await, [2, 3]);
    let stood = account.reset(alice).await.expect("a response");
    assert_eq!(stood.left("account"), 3);
    assert_eq!(left().await, [2, 5]);
    abuse.block(alice, secs(60)).await.expect("a ban");
    assert!(!limiter.check(alice).await.is_admitted());
    abuse.unblock(alice).await.expect("a response");
    assert!(limiter.check(alice).await.is_admitted());
    let blocked = account.block(alice, secs(60)).await;
    assert!(matches!(blocked, Err(CallError::NotABan { .. })));
}

/// A policy that takes all of its settings from requests: the quota from one header, the cost from another.
fn by_request() -> Policy {
    let number = |parts: &Parts, name| -> Option<u64> {
        parts.headers.get(name)?.to_str().ok()?.parse().ok()
    };
    Policy::new("p", quota("10/h"))
        .quota_with(move |parts| Some(Quota::requests(number(parts, "x-quota")?).per_hour()))
        .cost_with(move |parts| number(parts, "x-cost").unwrap_or(1))
        .skip_path("/health")
}

#[tokio::test]
async fn a_call_with_a_request_uses_the_policies_extractors_unless_the_call_sets_a_value() {
    let limiter = limiter([by_request()]);
    let head_of = |path: &str| {
        let request = Request::get(path).header("x-quota", "100");
        head(request.header("x-cost", "30"))
    };
    let (paid, health) = (head_of("/"), head_of("/health"));
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
    let own = limiter.check("bob").parts(&paid).cost(2);
    let decision = own.quota_for("p", quota("50/h")).await;
    assert_eq!(of(decision.count("p")), (50, 2, 48));
    // A request that the policy skips is free.
    let decision = limiter.check("carol").parts(&health).await;
    assert!(decision.is_admitted() && decision.policies().len() == 0);
}

#[tokio::test]
async fn a_call_without_a_request_is_an_error_if_a_policy_needs_one() {
    let policy = by_request();
    let shadow = Policy::new("next", quota("9/h")).cost_with(|_| 2).shadow();
    for (limiter, name) in [
        (limiter([policy.clone()]), "p"),
        (limiter([Policy::new("p", quota("9/h")), shadow]), "next"),
    ] {
        let (log, start) = (Log::default(), Instant::now());
        let _guard = log.errors();
        for _ in 0..3 {
            let rejected = limiter.admit("alice").await.expect_err("a rejection");
            assert_eq!(rejected.status(), 503);
            let kind = rejected.decision().kind();
            assert!(
                matches!(kind, DecisionKind::Invalid(CallError::PartsRequired { policy, .. }) if &**policy == name)
            );
        }
        let line = log.throttled("call `parts`", start);
        assert_eq!(log.throttled("", start), line);
        let waited = limiter.wait("alice", secs(1)).await;
        assert_eq!(waited.expect_err("a rejection").status(), 503);
        let lacking = |error: CallError| matches!(error, CallError::PartsRequired { .. });
        assert!(lacking(limiter.peek("alice").await.expect_err("an error")));
    }
    let limiter = limiter([policy]);
    // What operators do depends on no condition and no cost of a request, and a reset not even on a quota.
    let charged = limiter.charge("alice", 1).await;
    charged.expect_err("its quota is not known");
    limiter.reset("alice").await.expect("a response");
    let charge = limiter.charge("alice", 3).quota_for("p", quota("9/h"));
    assert_eq!(charge.await.expect("a response").left("p"), 6);

    // A policy that is named, with a quota and a cost, takes nothing from a request.
    let named = || limiter.check(("p", "bob")).quota_for("p", quota("50/h"));
    assert!(!named().await.is_admitted(), "its cost is not known");
    assert_eq!(named().cost(2).await.left("p"), 48);
    let unnamed = limiter.admit("bob").quota_for("p", quota("50/h")).cost(2);
    let error = unnamed.await.expect_err("its conditions");
    let expected = "\"p\" takes its conditions from a request: call `parts`, or name the policy";
    assert_contains(error, [expected]);
}

/// An explanation of a request has the status of its caller, under the keys and costs of the policies.
#[tokio::test]
async fn explaining_a_request_uses_the_keys_of_the_layer() {
    let by_key = || extract::header("x-api-key");
    let cost = |parts: &Parts| if parts.uri.path() == "/" { 200 } else { 1 };
    let by_key = |name, units| {
        let policy = Policy::new(name, Quota::units(units).per_month()).key(by_key());
        policy.cost_with(cost).skip_path("/usage")
    };
    let login = Policy::new("login", quota("5/month")).key(extract::header("x-login"));
    let limiter = limiter([
        by_key("tokens", 1_000),
        shared("budget", "50/month"),
        login.only_path("/login"),
        by_key("next", 500).shadow(),
    ]);
    let app = hello(&RateLimitLayer::new(limiter.clone()));
    for key in ["sk_1", "sk_1", "sk_2"] {
        assert_eq!(send(&app, with("x-api-key", key)).await.status, 200);
    }
    let explain = async |path: &str, key: &str| {
        let head = head(Request::get(path).header("x-api-key", key));
        limiter.explain(&head).await.expect("a response")
    };
    for (key, expected) in [("sk_1", [600, 47, 100]), ("sk_2", [800, 47, 300])] {
        let explained = explain("/", key).await;
        assert!(explained.would_admit(), "{explained:?}");
        let left = ["tokens", "budget", "next"].map(|name| {
            let policy = explained.policy(name).and_then(|policy| policy.status());
            policy.expect(name).remaining()
        });
        assert_eq!(left, expected, "{key}");
        // A login is another request's.
        let login = explained.policy("login").expect("a policy");
        assert!(login.status().is_none() && login.not_applied().is_some());
    }
    // One that is free of a policy has no status under it.
    let usage = explain("/usage", "sk_1").await;
    assert!(
        usage
            .policy("tokens")
            .is_some_and(|tokens| tokens.status().is_none())
    );
}

/// A handler's call and a layer's check meet the same store. The next probe of it is no time for clients, which would come back within
/// milliseconds.
#[tokio::test]
async fn layers_and_handlers_report_the_same_retry_after_for_a_failed_store() {
    let open = |pause| StoreError::circuit_open(ms(pause), None);
    for (error, seconds) in [(StoreError::timeout(), 1), (open(4), 1), (open(2_500), 3)] {
        let store = StubStore::failing(error.clone());
        let layer = rejecting(store, Policy::new("p", quota("1/h")));
        let by_layer = send(&hello(&layer), to("/")).await.retry_after();
        assert_eq!(by_layer, Some(seconds));
        let by_handler = error.clone().into_response();
        assert_eq!(by_handler.headers()["retry-after"], seconds.to_string());
        let rejected = layer.limiter().admit("alice").await.expect_err("rejected");
        assert_eq!(rejected.retry_after(), RetryAfter::Unknown, "{error}");
        let delay = |status: Status| {
            let retry = status.get_details_retry_info().expect("details");
            retry.retry_delay.expect("a delay")
        };
        assert_eq!(delay(rejected.into()), delay(error.into()));
    }
}

#[tokio::test]
async fn errors_of_calls_are_responses_and_never_500() {
    let store = || StoreError::Unsupported("anything");
    let unknown = || two().policy("acount").expect_err("an error");
    let lacking = || async {
        let seen = limiter([by_request()]).peek("alice").await;
        seen.expect_err("an error")
    };
    for (response, status, retry_after) in [
        (store().into_response(), Status::from(store()), Some("1")),
        (
            CallError::from(store()).into_response(),
            CallError::from(store()).into(),
            Some("1"),
        ),
        (unknown().into_response(), unknown().into(), None),
        (
            CallError::from(unknown()).into_response(),
            CallError::from(unknown()).into(),
            None,
        ),
        (
            lacking().await.into_response(),
            lacking().await.into(),
            None,
        ),
    ] {
        assert_eq!(response.status(), 503);
        let media_type = &response.headers()["content-type"];
        assert_eq!(media_type, "application/problem+json");
        assert_eq!(response.headers()["cache-control"], "no-store");
        let shown = response.headers().get("retry-after");
        assert_eq!(shown.and_then(|value| value.to_str().ok()), retry_after);
        assert_eq!(status.code(), Code::Unavailable);
        let retries = status.get_details_retry_info().is_some();
        assert_eq!(retries, retry_after.is_some());
    }
}
