//! Why a policy does not apply, and what decides a request before its policies.

use http::HeaderValue;
use tollgate::{
    access::OnUnknownAddress,
    explain::{Exemption, Explanation, NotApplied},
    extract::{self, PeerAddr},
};
use tollgate_tests::{prelude::*, stores::limiter};

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
    let p = || hourly("p");
    let by_user = || p().key(extract::header("x-user"));
    let two_methods = p().only_method(Method::POST).only_method(Method::PUT);
    let skips = by_user().missing_key(MissingKey::Skip);
    let rejects = by_user().missing_key(MissingKey::Reject);
    for (policy, expected) in [
        (p(), ""),
        (p().skip_path("/static/*"), "skip_path /static/*"),
        (p().skip_method(Method::GET), "skip_method GET"),
        (p().skip_with(|_| false).skip_with(|_| true), "skip_with #2"),
        (two_methods, "only_method POST, PUT"),
        (
            p().only_path("/login").only_path("/a/*"),
            "only_path /login, /a/*",
        ),
        (p().only_with(|_| true).only_with(|_| false), "only_with #2"),
        (p().by_hand(), "by hand"),
        (skips, "exempt without the header x-user"),
        (rejects, "rejected without the header x-user"),
    ] {
        let limiter = limiter(Limiter::builder(), [policy]);
        let reason = reason(&limiter, &get()).await;
        assert_eq!(reason.unwrap_or_default(), expected);
    }
}

#[tokio::test]
async fn the_policy_that_rejects_a_request_without_a_key_would_not_admit_it() {
    for (missing, admits) in [(MissingKey::Reject, false), (MissingKey::Skip, true)] {
        let by_user = hourly("p").key(extract::header("x-user"));
        let policies = [by_user.missing_key(missing), hourly("other")];
        let limiter = limiter(Limiter::builder(), policies);
        let explanation = explain(&limiter, &head(Method::GET, "/")).await;
        let would_admit = |name| explanation.policy(name).expect("a policy").would_admit();
        assert_eq!(explanation.would_admit(), admits);
        assert_eq!(would_admit("p"), admits);
        assert!(would_admit("other"), "it is not what rejects");
    }
}

#[tokio::test]
async fn a_condition_of_the_limiter_exempts_from_all_policies() {
    let limiter = limiter(Limiter::builder().skip_path("/health"), [hourly("p")]);
    let explanation = explain(&limiter, &head(Method::GET, "/health")).await;
    assert_eq!(explanation.outcome(), DecisionOutcome::Skipped);
    let health = Exemption::SkipPath("/health".into());
    assert_eq!(explanation.exemption(), Some(&health));
    let p = explanation.policy("p").expect("a policy");
    assert_eq!(p.not_applied(), Some(&NotApplied::NotEvaluated));
    let mut preflight = head(Method::OPTIONS, "/");
    for (name, value) in [
        ("origin", "https://a.test"),
        ("access-control-request-method", "PUT"),
    ] {
        preflight
            .headers
            .insert(name, HeaderValue::from_static(value));
    }
    let explanation = explain(&limiter, &preflight).await;
    assert_eq!(explanation.exemption(), Some(&Exemption::Preflight));
    assert!(explanation.would_admit());
}

#[tokio::test]
async fn the_access_list_that_decides_is_named() {
    let addresses = |list: &str| AddressList::new([list]).expect("a list");
    let builder = Limiter::builder()
        .deny(addresses("198.51.100.1"))
        .deny(addresses("192.0.2.0/28"))
        .allow(KeyList::new("by-user", [Key::new("monitoring")]))
        .on_unknown_address(OnUnknownAddress::Reject);
    let by_user = hourly("by-user").key(extract::header("x-user"));
    let limiter = limiter(builder, [hourly("p"), by_user]);
    let list = async |parts: &Parts| {
        let explanation = explain(&limiter, parts).await;
        let list = explanation.list().map(ToString::to_string);
        (explanation.outcome(), list.unwrap_or_default())
    };
    let mut allowed = from([203, 0, 113, 1]);
    let user = HeaderValue::from_static("monitoring");
    allowed.headers.insert("x-user", user);
    let by_key = "allow list 1, of keys of policy \"by-user\"";
    let unknown = "its address is unknown, and on_unknown_address rejects";
    use DecisionOutcome::{AllowListed, DenyListed};
    for (parts, outcome, name) in [
        (
            from([192, 0, 2, 7]),
            DenyListed,
            "deny list 2, of addresses",
        ),
        (allowed, AllowListed, by_key),
        (head(Method::GET, "/"), DenyListed, unknown),
    ] {
        assert_eq!(list(&parts).await, (outcome, name.to_owned()));
    }
}

#[tokio::test]
async fn a_secret_key_is_shown_as_its_hash() {
    let policy = hourly("p").key(extract::header("x-api-key"));
    let limiter = limiter(Limiter::builder(), [policy]);
    let mut parts = head(Method::GET, "/");
    let secret = HeaderValue::from_static("sk_live_1");
    parts.headers.insert("x-api-key", secret);
    let explanation = explain(&limiter, &parts).await;
    let status = explanation.policy("p").and_then(|policy| policy.status());
    assert_eq!(status.expect("it applies").key(), Key::secret("sk_live_1"));
    assert!(!format!("{explanation:?}").contains("sk_live_1"));
}

#[tokio::test]
async fn a_store_failure_is_an_error_whatever_the_limiter_does_then() {
    let store = StubStore::failing(StoreError::Timeout);
    let limiter = limiter(Limiter::builder().store(store), [hourly("p")]);
    let failed = limiter.explain(&head(Method::GET, "/")).await;
    let timeout = matches!(failed, Err(CallError::Store(StoreError::Timeout)));
    assert!(timeout, "{failed:?}");
    assert!(limiter.check(KEY).await.is_admitted());
}
