//! The calls of a limiter by hand: what they take, and what they return.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::response::IntoResponse;

use http::{Method, Request, request::Parts};
use tollgate::{
    Ban, CallError, DecisionKind, Key, Keys, LimitStatus, Limiter, LocalFallback, OnStoreError,
    PeerAddr, Policy, Quota, RateLimitLayer, RetryAfter, StoreError,
    extract::{self, KeyExtractor},
};

use crate::{
    log::Log,
    responses::on_a_dead_store,
    support::{FailingStore, hello, send, to},
};

pub(crate) fn limiter(policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let builder = policies
        .into_iter()
        .fold(Limiter::builder(), |builder, policy| builder.policy(policy));
    builder.build().expect("a limiter")
}

#[tokio::test]
async fn a_request_is_admitted_until_its_quota_is_used_up_and_then_rejected() {
    let limiter = limiter([Policy::new("mail", Quota::requests(2).per_hour())]);
    let admission = limiter.admit("alice").await.expect("admitted");
    assert_eq!(admission.remaining("mail"), Some(1));
    let admission = limiter.admit("alice").cost(1).await.expect("admitted");
    assert_eq!(admission.remaining("mail"), Some(0));
    let rejected = limiter.admit("alice").await.expect_err("rejected");
    assert!(matches!(rejected.decision().kind(), DecisionKind::Rejected));
}

#[tokio::test]
async fn a_rejection_lists_its_policies_with_the_key_of_each() {
    let hourly = |name| Policy::new(name, Quota::requests(1).per_hour());
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
        assert_eq!(
            keys.collect::<Vec<_>>(),
            [Key::new("alice"), Key::secret("sk")]
        );
    }
}

#[tokio::test]
async fn strings_numbers_and_addresses_convert_to_keys() {
    async fn used_up(limiter: &Limiter, keys: impl Into<Keys>) -> bool {
        limiter.admit(keys).await.is_err()
    }

    let limiter = limiter([Policy::new("p", Quota::requests(1).per_hour())]);
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
        Policy::new("a", Quota::requests(9).per_hour()),
        Policy::new("b", Quota::requests(9).per_hour()),
    ]);
    let alice = "alice".to_owned();
    let _ = limiter.admit(("a", "alice")).await.expect("admitted");
    let _ = limiter.admit(("a", &alice)).await.expect("admitted");
    let _ = limiter.admit([("a", "alice"), ("b", "alice")]).await;
    let a = limiter.policy("a").expect("a policy");
    let _ = a.charge(&alice, 1).await.expect("a response");
    let seen = a.peek("alice").await.expect("a response");
    assert_eq!(seen.policy("a").expect("a").remaining(), 5);
    let seen = limiter.peek(("b", Key::new("alice"))).await;
    let seen = seen.expect("a response");
    assert_eq!(seen.policy("b").expect("b").remaining(), 8);
    assert!(seen.policy("a").is_none());
    let _ = a.reset("alice").await.expect("a response");
    let credited = a.credit("alice", 1).await.expect("a response");
    assert_eq!(credited.units(), 0);
    assert_eq!(a.callers("alice").await.expect("a response"), []);
}

#[tokio::test]
async fn a_manual_policy_applies_only_to_direct_calls_and_builds_their_keys() {
    let limiter = limiter([
        Policy::new("address", Quota::requests(99).per_hour()).key(extract::global()),
        Policy::new("account", Quota::requests(2).per_hour()).by_hand(),
    ]);
    let log = Log::default();
    let guard = log.errors();
    let app = hello(&RateLimitLayer::new(limiter.clone()));
    for _ in 0..10 {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, 200);
        let policies = response.field("ratelimit-policy").expect("policies");
        assert!(!policies.contains("account"), "{policies}");
    }
    drop(guard);
    assert_eq!(log.lines(""), [""; 0]);
    let account = limiter.policy("account").expect("a policy");
    assert_eq!(account.key("alice"), Some(Key::new("alice")));
    for left in [1, 0] {
        let _ = limiter.admit(("account", "alice")).await.expect("admitted");
        let seen = account.peek("alice").await.expect("a response");
        assert_eq!(seen.policy("account").expect("p").remaining(), left);
    }
    assert!(limiter.admit("alice").await.is_err(), "not named either");
}

#[tokio::test]
async fn no_call_but_a_check_reports_success_while_the_store_is_down() {
    for response in [
        OnStoreError::Admit,
        OnStoreError::Reject,
        LocalFallback::shared_by(1).into(),
    ] {
        let layer = on_a_dead_store(response);
        let limiter = layer.limiter();
        for outcome in [
            limiter.peek("alice").await,
            limiter.reset("alice").await,
            limiter.charge("alice", 3).await,
        ] {
            let error = outcome.expect_err("an error");
            assert!(
                matches!(error, CallError::Store(_)),
                "{response:?}: {error}"
            );
        }
        let admitted = limiter.check("alice").await.is_admitted();
        assert_eq!(admitted, response != OnStoreError::Reject, "{response:?}");
    }
}

#[tokio::test]
async fn peek_charge_and_reset_return_the_status_of_a_request() {
    let limiter = limiter([Policy::new("p", Quota::requests(5).per_hour())]);
    let seen = limiter.peek("alice").await.expect("a response");
    assert!(seen.would_admit());
    assert_eq!(seen.policy("p").expect("a policy").remaining(), 5);
    let charged = limiter.charge("alice", 4).await.expect("a response");
    assert!(!charged.would_admit(), "another 4 units");
    assert_eq!(charged.policy("p").expect("a policy").remaining(), 1);
    let charged = limiter.charge("alice", 4).await.expect("a response");
    assert!(!charged.would_admit());
    assert!(
        !limiter
            .peek("alice")
            .await
            .expect("a response")
            .would_admit()
    );
    let stood = limiter.reset("alice").await.expect("a response");
    assert_eq!(stood.policy("p").expect("a policy").remaining(), 0);
    assert!(!stood.would_admit());
    assert!(
        limiter
            .peek("alice")
            .await
            .expect("a response")
            .would_admit()
    );
}

/// The next probe is no time for clients, which would come back within milliseconds.
#[tokio::test]
async fn a_failed_store_reports_no_wait_whatever_its_error() {
    let open = StoreError::circuit_open(Duration::from_millis(4), None);
    for error in [StoreError::Timeout, open] {
        let limiter = Limiter::builder()
            .store(FailingStore::with(error.clone()))
            .policy(Policy::new("p", Quota::requests(1).per_hour()))
            .on_store_error(OnStoreError::Reject)
            .build()
            .expect("a limiter");
        let rejected = limiter.admit("alice").await.expect_err("a rejection");
        assert_eq!(rejected.retry_after(), RetryAfter::Unknown, "{error}");
        assert_eq!(
            rejected.into_response().headers()["retry-after"],
            "1",
            "{error}"
        );
    }
}

/// What is shown of a key by each method of its status agrees.
#[tokio::test]
async fn the_methods_of_a_status_agree_with_each_other() {
    let limiter = limiter([
        Policy::new("p", Quota::requests(1).per_hour()),
        Policy::new("ban", Quota::requests(9).per_hour())
            .strategy(Ban::for_duration(Duration::from_secs(60))),
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
    limiter
        .block("alice", Duration::from_secs(60))
        .await
        .expect("blocked");
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

fn two() -> Limiter {
    limiter([
        Policy::new("address", Quota::requests(2).per_minute()),
        Policy::new("account", Quota::requests(5).per_minute()),
        Policy::new("abuse", Quota::requests(2).per_minute())
            .strategy(Ban::for_duration(Duration::from_secs(60))),
    ])
}

#[tokio::test]
async fn an_unknown_policy_name_rejects_the_call_and_is_logged_once_in_ten_seconds() {
    let limiter = two();
    let log = Log::default();
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
    assert_eq!(log.lines("").len(), 1, "{:?}", log.lines(""));
    let text = r#"no policy "acount"; expected one of ["address", "account", "abuse"]"#;
    assert_eq!(log.lines(text).len(), 1);

    // So are names that settings are for.
    let quota = Quota::requests(1).per_minute();
    for check in [
        limiter.check("alice").cost_for("acount", 3),
        limiter.check("alice").quota_for("acount", quota),
    ] {
        let decision = check.await;
        assert!(matches!(decision.kind(), DecisionKind::UnknownPolicy(_)));
    }
    let second = Duration::from_secs(1);
    let waited = limiter.wait([("acount", alice)], second).await;
    assert_eq!(waited.expect_err("a rejection").status(), 503);
    for outcome in [
        limiter.peek([("acount", alice)]).await.map(drop),
        limiter.reset([("acount", alice)]).await.map(drop),
        limiter.charge([("acount", alice)], 1).await.map(drop),
        limiter.block([("acount", alice)], second).await,
        limiter.unblock([("acount", alice)]).await,
    ] {
        assert!(matches!(outcome, Err(CallError::UnknownPolicy(_))));
    }
    // Nothing was charged or blocked.
    let seen = limiter.peek("alice").await.expect("a response");
    assert!(
        seen.policies()
            .all(|policy| policy.retry_after() == RetryAfter::Now)
    );
    assert_eq!(seen.policy("account").expect("a policy").remaining(), 5);
}

#[tokio::test]
async fn a_policy_that_is_not_named_does_not_apply_to_the_call() {
    let limiter = two();
    let log = Log::default();
    let _guard = log.errors();
    for (client, left) in [("alice", [4, 3, 2, 1, 0]), ("bob", [4, 3, 2, 1, 0])] {
        for left in left {
            let decision = limiter.check([("account", Key::new(client))]).await;
            assert!(decision.is_admitted());
            let policies: Vec<_> = decision.policies().map(|v| v.policy()).collect();
            assert_eq!(policies, ["account"]);
            let remaining = decision.policy("account").expect("a policy").remaining();
            assert_eq!(remaining, left, "{client}");
        }
        // A ban that is not named counts no rejection.
        for _ in 0..5 {
            let waits = Duration::from_millis(1);
            assert!(
                limiter
                    .check([("account", Key::new(client))])
                    .await
                    .retry_after()
                    != RetryAfter::Now
            );
            let rejected = limiter.wait([("account", Key::new(client))], waits).await;
            assert!(rejected.is_err());
        }
        let seen = limiter.peek(client).await.expect("a response");
        assert_eq!(seen.policy("address").expect("a policy").remaining(), 2);
        let abuse = seen.policy("abuse").expect("a policy");
        assert_eq!(abuse.retry_after(), RetryAfter::Now);
    }
    assert_eq!(log.lines("").len(), 0, "{:?}", log.lines(""));
}

/// A policy that takes all of its settings from requests: the quota from one header, the cost from another.
fn by_request() -> Policy {
    let number = |parts: &Parts, name| -> Option<u64> {
        parts.headers.get(name)?.to_str().ok()?.parse().ok()
    };
    Policy::new("p", Quota::requests(10).per_hour())
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
    let seen = limiter
        .peek("alice")
        .parts(&paid)
        .await
        .expect("a response");
    let p = seen.policy("p").expect("a policy");
    assert_eq!((p.limit(), p.cost(), p.remaining()), (100, 30, 100));
    let decision = limiter.check("alice").parts(&paid).await;
    let p = decision.policy("p").expect("a policy");
    assert_eq!((p.limit(), p.cost(), p.remaining()), (100, 30, 70));
    let admission = limiter.admit("alice").parts(&paid).await.expect("admitted");
    assert_eq!(admission.remaining("p"), Some(40));
    let second = Duration::from_secs(1);
    let waited = limiter.wait("alice", second).parts(&paid).await;
    assert_eq!(waited.expect("admitted").remaining("p"), Some(10));
    let waited = limiter.wait("alice", second).parts(&paid).await;
    assert!(waited.is_err(), "30 units are more than 10");

    // Settings of the call take precedence.
    let quota = Quota::requests(50).per_hour();
    let own = limiter
        .check("bob")
        .parts(&paid)
        .cost(2)
        .quota_for("p", quota);
    let decision = own.await;
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
async fn the_limiters_conditions_apply_to_calls_with_a_request() {
    let limiter = Limiter::builder()
        .policy(Policy::new("p", Quota::requests(1).per_hour()))
        .skip_method(Method::GET)
        .build()
        .expect("a limiter");
    let parts = head("/", "1", "1");
    for _ in 0..3 {
        assert!(limiter.check("alice").parts(&parts).await.is_admitted());
        let second = Duration::from_secs(1);
        assert!(limiter.wait("alice", second).parts(&parts).await.is_ok());
    }
    let seen = limiter.peek("alice").await.expect("a response");
    assert_eq!(seen.policy("p").expect("a policy").remaining(), 1);
}

#[tokio::test]
async fn a_call_without_a_request_is_an_error_if_a_policy_needs_one() {
    let limiter = limiter([by_request()]);
    let log = Log::default();
    let _guard = log.errors();
    for _ in 0..100 {
        let rejected = limiter.admit("alice").await.expect_err("a rejection");
        assert_eq!(rejected.status(), 503);
        let kind = rejected.decision().kind();
        assert!(matches!(kind, DecisionKind::PartsRequired { policy, .. } if &**policy == "p"));
    }
    assert_eq!(log.lines("").len(), 1, "{:?}", log.lines(""));
    assert_eq!(log.lines("call `parts`").len(), 1);
    let second = Duration::from_secs(1);
    let waited = limiter.wait("alice", second).await;
    assert_eq!(waited.expect_err("a rejection").status(), 503);
    let lacking = |error: CallError| matches!(error, CallError::PartsRequired { .. });
    assert!(lacking(limiter.peek("alice").await.expect_err("an error")));
    assert!(lacking(
        limiter.charge("alice", 1).await.expect_err("an error")
    ));
    // What a reset removes doesn't depend on a request.
    limiter.reset("alice").await.expect("a response");

    // A policy that is named, with a quota and a cost, takes nothing from a request.
    let quota = Quota::requests(50).per_hour();
    let named = || {
        limiter
            .check([("p", Key::new("alice"))])
            .quota_for("p", quota)
    };
    assert!(!named().await.is_admitted(), "its cost is not known");
    let decision = named().cost(2).await;
    assert_eq!(decision.policy("p").expect("a policy").remaining(), 48);
    let decision = limiter.check("alice").quota_for("p", quota).cost(2).await;
    assert!(!decision.is_admitted(), "its conditions are not known");
}

#[tokio::test]
async fn a_call_without_a_request_is_an_error_if_only_a_shadow_needs_one() {
    let hourly = |name| Policy::new(name, Quota::requests(9).per_hour());
    let limiter = limiter([hourly("p"), hourly("next").cost_with(|_| 2).shadow()]);
    let decision = limiter.check("alice").await;
    let kind = decision.kind();
    assert!(matches!(kind, DecisionKind::PartsRequired { policy, .. } if &**policy == "next"));
}

#[tokio::test]
async fn errors_of_calls_are_responses_and_never_500() {
    let store = || StoreError::Unsupported("anything");
    let unknown = || two().policy("acount").expect_err("an error");
    let lacking = limiter([by_request()]).peek("alice").await;
    let responses = [
        (store().into_response(), Some("1")),
        (CallError::from(store()).into_response(), Some("1")),
        (unknown().into_response(), None),
        (CallError::from(unknown()).into_response(), None),
        (lacking.expect_err("an error").into_response(), None),
    ];
    for (response, retry_after) in responses {
        assert_eq!(response.status(), 503);
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        assert_eq!(response.headers()["cache-control"], "no-store");
        let shown = response.headers().get("retry-after");
        assert_eq!(shown.and_then(|value| value.to_str().ok()), retry_after);
    }
}

/// A handler's call and a layer's check meet the same store.
#[tokio::test]
async fn layers_and_handlers_report_the_same_retry_after_for_a_failed_store() {
    for (pause, seconds) in [(50, 1), (2_500, 3)] {
        let error = StoreError::circuit_open(Duration::from_millis(pause), None);
        let layer = RateLimitLayer::builder()
            .store(FailingStore::with(error.clone()))
            .policy(Policy::new("p", Quota::requests(1).per_hour()))
            .on_store_error(OnStoreError::Reject)
            .build()
            .expect("a layer");
        let by_layer = send(&hello(&layer), to("/")).await.retry_after();
        assert_eq!(by_layer, Some(seconds));
        let by_handler = error.clone().into_response();
        assert_eq!(by_handler.headers()["retry-after"], seconds.to_string());
        #[cfg(feature = "tonic")]
        {
            use tonic_types::StatusExt;

            let rejected = layer.limiter().admit("alice").await.expect_err("rejected");
            let delay = |status: tonic::Status| {
                let retry = status.get_details_retry_info().expect("details");
                retry.retry_delay.expect("a delay")
            };
            assert_eq!(delay(rejected.into()), delay(error.into()));
        }
    }
}

#[cfg(feature = "tonic")]
#[test]
fn errors_of_calls_are_grpc_statuses_of_unavailable() {
    use tonic::{Code, Status};
    use tonic_types::StatusExt;

    let store = || StoreError::Unsupported("anything");
    let unknown = || two().policy("acount").expect_err("an error");
    for (status, retries) in [
        (Status::from(store()), true),
        (Status::from(CallError::from(store())), true),
        (Status::from(unknown()), false),
    ] {
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.get_details_retry_info().is_some(), retries);
    }
}

#[tokio::test]
async fn a_policy_handle_builds_the_keys_that_its_policy_extracts() {
    let key = |extractor: Arc<dyn KeyExtractor>, texts: &[&str]| {
        let policy = Policy::new("p", Quota::requests(1).per_hour()).key(extractor);
        let handle = limiter([policy]).policy("p").expect("a policy");
        handle.keys(texts.iter().copied())
    };
    let tenant = || extract::header("x-tenant");
    let secret = || extract::header("x-api-key");
    let [v4, v6] = ["192.0.2.1", "2001:db8::1"].map(|ip| Key::ip(ip.parse().expect("an address")));
    let tuple = Key::tuple([Key::new("acme"), Key::secret("sk_1")]);
    for (extractor, texts, expected) in [
        (
            Arc::new(tenant()) as Arc<dyn KeyExtractor>,
            &["acme"][..],
            Some(Key::new("acme")),
        ),
        (Arc::new(secret()), &["sk_1"], Some(Key::secret("sk_1"))),
        (
            Arc::new(extract::cookie("id")),
            &["c"],
            Some(Key::secret("c")),
        ),
        (Arc::new(extract::bearer()), &["t"], Some(Key::secret("t"))),
        (Arc::new(extract::query("map")), &["m"], Some(Key::new("m"))),
        (Arc::new(extract::peer()), &["192.0.2.1"], Some(v4)),
        (Arc::new(extract::peer()), &["2001:db8::ffff"], Some(v6)),
        (
            Arc::new(extract::client_ip()),
            &["2001:db8::ffff"],
            Some(v6),
        ),
        (Arc::new(extract::peer()), &["no address"], None),
        (Arc::new(extract::global()), &[], Some(Key::global())),
        (
            Arc::new((tenant(), secret())),
            &["acme", "sk_1"],
            Some(tuple),
        ),
        (Arc::new((tenant(), secret())), &["acme"], None),
        (
            Arc::new(secret().or_else(extract::peer())),
            &["1", "sk_1"],
            Some(Key::tuple([Key::new("1"), Key::secret("sk_1")])),
        ),
        (
            Arc::new(secret().or_else(extract::peer())),
            &["2", "192.0.2.1"],
            Some(Key::tuple([Key::new("2"), v4])),
        ),
        (Arc::new(extract::from_fn(|_| None)), &["alice"], None),
    ] {
        let text = format!("{extractor:?} {texts:?}");
        assert_eq!(key(extractor, texts), expected, "{text}");
    }
}

/// The same text, in a request and by hand.
#[test]
fn a_policy_handle_builds_the_key_of_a_request_with_the_same_text() {
    let with = |uri: &str, name: &'static str, value: &str| {
        let request = Request::get(uri).header(name, value);
        request.body(()).expect("a request").into_parts().0
    };
    let from = |address: &str| {
        let mut parts = with("/", "x-any", "thing");
        let peer = format!("{address}:1").parse().expect("an address");
        parts.extensions.insert(PeerAddr(peer));
        parts
    };
    let token = || with("/", "authorization", "Bearer  sk_1 ");
    let host = |host: &str| with("/", "host", host);
    let cases: Vec<(Arc<dyn KeyExtractor>, Parts, &str)> = vec![
        (
            Arc::new(extract::header("x-tenant")),
            with("/", "x-tenant", "acme"),
            "acme",
        ),
        (
            Arc::new(extract::header("x-api-key")),
            with("/", "x-api-key", "sk_1"),
            "sk_1",
        ),
        (Arc::new(extract::bearer()), token(), " sk_1 "),
        (
            Arc::new(extract::bearer().hash_key([7; 32])),
            token(),
            "sk_1",
        ),
        (
            Arc::new(extract::cookie("id")),
            with("/", "cookie", "a=b; id= 1 ;c=d"),
            " 1 ",
        ),
        (
            Arc::new(extract::query("q")),
            with("/?q=a+b%C3%A9", "x-any", "thing"),
            "a bé",
        ),
        (
            Arc::new(extract::host()),
            host("Example.COM"),
            "Example.COM",
        ),
        (
            Arc::new(extract::host()),
            host("example.com:8080"),
            "example.com:8080",
        ),
        (
            Arc::new(extract::host()),
            host("example.com.:80"),
            "example.com.:80",
        ),
        (
            Arc::new(extract::host()),
            host("[2001:DB8::1]:80"),
            "[2001:DB8::1]:80",
        ),
        (
            Arc::new(extract::path()),
            with("/a/b", "x-any", "thing"),
            "/a/b",
        ),
        (
            Arc::new(extract::method()),
            with("/", "x-any", "thing"),
            "GET",
        ),
        (
            Arc::new(extract::grpc_service()),
            with("/a.B/C", "x-any", "thing"),
            "a.B",
        ),
        (
            Arc::new(extract::grpc_method()),
            with("/a.B/C", "x-any", "thing"),
            "a.B/C",
        ),
        (
            Arc::new(extract::peer()),
            from("[2001:db8::1]"),
            "2001:db8::2",
        ),
        (
            Arc::new(extract::peer().ipv4_prefix(24)),
            from("192.0.2.1"),
            "192.0.2.9",
        ),
        (
            Arc::new(extract::client_ip().ipv6_prefix(48)),
            from("[2001:db8::1]"),
            "2001:db8:0:1::1",
        ),
    ];
    for (extractor, parts, text) in cases {
        let name = format!("{extractor:?} {text:?}");
        let found = extractor.key(&parts);
        assert!(found.is_some(), "{name}");
        let policy = Policy::new("p", Quota::requests(1).per_hour()).key(extractor);
        let policy = limiter([policy]).policy("p").expect("a policy");
        assert_eq!(policy.key(text), found, "{name}");
        let none = policy.key("").or(policy.keys([text, text]));
        assert_eq!(none, None, "{name}");
    }
    // No request has such texts there.
    let none = |extractor: Arc<dyn KeyExtractor>, text| extractor.key_from_text(&[text]);
    assert_eq!(none(Arc::new(extract::host()), "a@b"), None);
    assert_eq!(none(Arc::new(extract::grpc_service()), "a.B/C"), None);
    assert_eq!(none(Arc::new(extract::grpc_method()), "a.B"), None);
}

#[tokio::test]
async fn a_policy_handle_operates_on_its_policy_only() {
    let limiter = two();
    let [account, abuse] = ["account", "abuse"].map(|name| limiter.policy(name).expect(name));
    let alice = Key::new("alice");
    let charged = account.charge(alice, 4).await.expect("a response");
    assert_eq!(charged.policies().len(), 1);
    let left = async || {
        let seen = limiter.peek(alice).await.expect("a response");
        ["address", "account"].map(|name| seen.policy(name).expect(name).remaining())
    };
    assert_eq!(left().await, [2, 1]);
    let credited = account.credit(alice, 2).await.expect("a response");
    assert_eq!(
        credited
            .status()
            .policy("account")
            .expect("a policy")
            .remaining(),
        3
    );
    assert_eq!(left().await, [2, 3]);
    // No more than there are.
    account.credit(alice, u64::MAX).await.expect("a response");
    assert_eq!(left().await, [2, 5]);
    account.charge(alice, 5).await.expect("a response");
    let stood = account.reset(alice).await.expect("a response");
    assert_eq!(stood.policy("account").expect("a policy").remaining(), 0);
    assert_eq!(left().await, [2, 5]);
    abuse
        .block(alice, Duration::from_secs(60))
        .await
        .expect("a ban");
    assert!(!limiter.check(alice).await.is_admitted());
    abuse.unblock(alice).await.expect("a response");
    assert!(limiter.check(alice).await.is_admitted());
    assert!(account.block(alice, Duration::from_secs(60)).await.is_err());
}

#[tokio::test]
async fn a_peek_that_fails_is_logged_as_an_error_that_it_returned() {
    let log = Log::default();
    let _guard = log.warnings();
    let policy = Policy::new("p", Quota::requests(5).per_minute());
    let limiter = Limiter::builder().store(FailingStore::default());
    let limiter = limiter
        .policy(policy)
        .on_store_error(LocalFallback::shared_by(2));
    let limiter = limiter.build().expect("a limiter");
    assert!(limiter.peek("alice").await.is_err());
    let text = log.text();
    assert!(text.contains("action=Error"), "{text}");
}
