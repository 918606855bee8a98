//! Why a policy does not apply, and what decides a request before its policies.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{Method, Request, request::Parts};
use tollgate::{
    AddressList, CallError, Decision, InvalidValue, Key, KeyList, Limiter, MissingKey,
    OnUnknownAddress, PeerAddr, Policy, Quota, RetryAfter, StoreError,
    explain::{Exemption, Explanation, NotApplied},
    extract,
    observe::DecisionOutcome,
    store::{CallersFuture, CounterOp, LimitHandle, Op, Store, StoreResponse},
    strategy::Rule,
};

fn hourly(name: &str) -> Policy {
    Policy::new(name, Quota::requests(2).per_hour()).key(extract::global())
}

fn head(method: Method, uri: &str) -> Parts {
    let request = Request::builder().method(method).uri(uri).body(());
    request.expect("a request").into_parts().0
}

fn from(address: [u8; 4]) -> Parts {
    let mut parts = head(Method::GET, "/");
    parts
        .extensions
        .insert(PeerAddr(SocketAddr::from((address, 1))));
    parts
}

async fn explain(limiter: &Limiter, parts: &Parts) -> Explanation {
    limiter.explain(parts).await.expect("an explanation")
}

/// The reason of the policy `p`, as operators see it.
async fn reason(limiter: &Limiter, parts: &Parts) -> Option<String> {
    let explanation = explain(limiter, parts).await;
    let policy = explanation.policy("p").expect("a policy");
    assert_eq!(policy.applies(), policy.status().is_some());
    policy.not_applied().map(ToString::to_string)
}

#[tokio::test]
async fn an_exempt_policy_names_its_condition() {
    let get = || head(Method::GET, "/static/a.css");
    for (policy, expected) in [
        (hourly("p"), None),
        (
            hourly("p").skip_path("/static/*"),
            Some("skip_path /static/*"),
        ),
        (
            hourly("p").skip_method(Method::GET),
            Some("skip_method GET"),
        ),
        (
            hourly("p").skip_with(|_| false).skip_with(|_| true),
            Some("skip_with #2"),
        ),
        (
            hourly("p")
                .only_method(Method::POST)
                .only_method(Method::PUT),
            Some("only_method POST, PUT"),
        ),
        (
            hourly("p").only_path("/login").only_path("/a/*"),
            Some("only_path /login, /a/*"),
        ),
        (
            hourly("p").only_with(|_| true).only_with(|_| false),
            Some("only_with #2"),
        ),
        (hourly("p").by_hand(), Some("by hand")),
        (
            hourly("p")
                .key(extract::header("x-user"))
                .missing_key(MissingKey::Skip),
            Some("exempt without the header x-user"),
        ),
        (
            hourly("p")
                .key(extract::header("x-user"))
                .missing_key(MissingKey::Reject),
            Some("rejected without the header x-user"),
        ),
    ] {
        let limiter = Limiter::builder()
            .policy(policy)
            .build()
            .expect("a limiter");
        assert_eq!(reason(&limiter, &get()).await.as_deref(), expected);
    }
}

#[tokio::test]
async fn the_policy_that_rejects_a_request_without_a_key_would_not_admit_it() {
    let by_user = |missing| {
        let policy = hourly("p").key(extract::header("x-user"));
        Limiter::builder()
            .policy(policy.missing_key(missing))
            .policy(hourly("other"))
            .build()
            .expect("a limiter")
    };
    for (missing, admits) in [(MissingKey::Reject, false), (MissingKey::Skip, true)] {
        let limiter = by_user(missing);
        let explanation = explain(&limiter, &head(Method::GET, "/")).await;
        let would_admit = |name| explanation.policy(name).expect("a policy").would_admit();
        assert_eq!(explanation.would_admit(), admits);
        assert_eq!(would_admit("p"), admits);
        assert!(would_admit("other"), "it is not what rejects");
    }
}

#[tokio::test]
async fn a_condition_of_the_limiter_exempts_from_all_policies() {
    let limiter = Limiter::builder()
        .policy(hourly("p"))
        .skip_path("/health")
        .build();
    let limiter = limiter.expect("a limiter");
    let explanation = explain(&limiter, &head(Method::GET, "/health")).await;
    assert_eq!(explanation.outcome(), DecisionOutcome::Skipped);
    assert_eq!(
        explanation.exemption(),
        Some(&Exemption::SkipPath("/health".into()))
    );
    let reason = explanation
        .policy("p")
        .and_then(|policy| policy.not_applied().cloned());
    assert_eq!(reason, Some(NotApplied::NotEvaluated));
    let mut preflight = head(Method::OPTIONS, "/");
    for (name, value) in [
        ("origin", "https://a.test"),
        ("access-control-request-method", "PUT"),
    ] {
        preflight
            .headers
            .insert(name, value.parse().expect("a value"));
    }
    let explanation = explain(&limiter, &preflight).await;
    assert_eq!(explanation.exemption(), Some(&Exemption::Preflight));
    assert!(explanation.would_admit());
}

#[tokio::test]
async fn the_access_list_that_decides_is_named() {
    let addresses = |list: &str| AddressList::new([list]).expect("a list");
    let limiter = Limiter::builder()
        .policy(hourly("p"))
        .policy(
            Policy::new("by-user", Quota::requests(2).per_hour()).key(extract::header("x-user")),
        )
        .deny(addresses("198.51.100.1"))
        .deny(addresses("192.0.2.0/28"))
        .allow(KeyList::new("by-user", [Key::new("monitoring")]))
        .on_unknown_address(OnUnknownAddress::Reject)
        .build()
        .expect("a limiter");
    let list = async |parts: &Parts| {
        let explanation = explain(&limiter, parts).await;
        let list = explanation.list().map(ToString::to_string);
        (explanation.outcome(), list.unwrap_or_default())
    };
    let denied = (
        DecisionOutcome::DenyListed,
        "deny list 2, of addresses".to_owned(),
    );
    assert_eq!(list(&from([192, 0, 2, 7])).await, denied);
    let mut allowed = from([203, 0, 113, 1]);
    allowed
        .headers
        .insert("x-user", "monitoring".parse().expect("a value"));
    let expected = "allow list 1, of keys of policy \"by-user\"".to_owned();
    assert_eq!(
        list(&allowed).await,
        (DecisionOutcome::AllowListed, expected)
    );
    let unknown = "its address is unknown, and on_unknown_address rejects".to_owned();
    let expected = (DecisionOutcome::DenyListed, unknown);
    assert_eq!(list(&head(Method::GET, "/")).await, expected);
}

#[tokio::test]
async fn a_rejection_is_explained_by_the_policy_that_rejects_and_its_wait() {
    let limiter = Limiter::builder()
        .policy(hourly("p"))
        .policy(hourly("free").cost(0))
        .build();
    let limiter = limiter.expect("a limiter");
    assert_eq!(limiter.check(Key::global()).times(2).await.admitted(), 2);
    let explanation = explain(&limiter, &head(Method::GET, "/")).await;
    assert_eq!(explanation.outcome(), DecisionOutcome::Rejected);
    let [p, free] = ["p", "free"].map(|name| explanation.policy(name).expect(name));
    assert!(!p.would_admit() && free.would_admit());
    let status = p.status().expect("it applies");
    assert_eq!(
        (status.key(), status.remaining(), status.limit()),
        (Key::global(), 0, 2)
    );
    assert_eq!(explanation.retry_after(), status.retry_after());
    let wait = explanation.retry_after();
    assert!(
        wait > RetryAfter::In(Duration::from_secs(1_790)),
        "{wait:?}"
    );
}

#[tokio::test]
async fn a_secret_key_is_shown_as_its_hash() {
    let policy = hourly("p").key(extract::header("x-api-key"));
    let limiter = Limiter::builder()
        .policy(policy)
        .build()
        .expect("a limiter");
    let mut parts = head(Method::GET, "/");
    parts
        .headers
        .insert("x-api-key", "sk_live_1".parse().expect("a value"));
    let explanation = explain(&limiter, &parts).await;
    let status = explanation.policy("p").and_then(|policy| policy.status());
    assert_eq!(
        status.map(|status| status.key()),
        Some(Key::secret("sk_live_1"))
    );
    assert!(!format!("{explanation:?}").contains("sk_live_1"));
}

/// Knows neither inspections nor anything else, or fails.
#[derive(Clone, Debug)]
struct Failing(StoreError);

impl Store for Failing {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        Ok(LimitHandle::new(policy, rule, ()))
    }

    fn execute(&self, op: Op, _: &[CounterOp<'_>]) -> StoreResponse {
        StoreResponse::Ready(Err(match op {
            Op::Inspect => StoreError::Unsupported("inspecting"),
            _ => self.0.clone(),
        }))
    }

    fn execute_detached(&self, _: Op, _: &[CounterOp<'_>]) {}

    fn callers(&self, _: &LimitHandle, _: &Key) -> CallersFuture {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

#[tokio::test]
async fn a_store_failure_is_an_error_whatever_the_limiter_does_then() {
    let limiter = Limiter::builder()
        .store(Failing(StoreError::Timeout))
        .policy(hourly("p"));
    let limiter = limiter.build().expect("a limiter");
    let failed = limiter.explain(&head(Method::GET, "/")).await;
    assert!(
        matches!(failed, Err(CallError::Store(StoreError::Timeout))),
        "{failed:?}"
    );
    let decision: Decision = limiter.check(Key::global()).await;
    assert!(decision.is_admitted());
}
