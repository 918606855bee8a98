//! Why a policy does not apply, and what decides a request before its policies. The differential test compares what policies say
//! that do apply.

use http::HeaderValue;
use tollgate::{
    access::OnUnknownAddress,
    explain::{Exemption, Explanation, NotApplied},
    extract::{self, PeerAddr},
};
use tollgate_tests::{log::Log, prelude::*, stores::limiter};
use tracing::Level;

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

/// The explanation of a request, which is then decided so.
async fn explain(limiter: &Limiter, parts: &Parts) -> Explanation {
    let explanation = limiter.explain(parts).await.expect("an explanation");
    let service = RateLimitLayer::new(limiter.clone()).layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let Ok(response) = service
        .oneshot(Request::from_parts(parts.clone(), ()))
        .await;
    let is_admitted = response.status().is_success();
    assert_eq!(explanation.would_admit(), is_admitted, "{explanation:?}");
    explanation
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

/// Leases, shadows and logs of it too.
#[tokio::test]
async fn an_explanation_counts_requests_and_logs_nothing_and_shows_no_secret() {
    let log = Log::default();
    let _guard = log.at(Level::TRACE);
    let world = World::redis();
    let by_key = |name| hourly(name).key(extract::header("x-api-key"));
    let shadow = by_key("shadow").shadow();
    // A quota that the strategy can't count, for a request.
    let odd = hourly("odd").quota_with(|_| Some(Quota::concurrent(1)));
    let shared = hourly("shared").key(extract::header("x-none"));
    let shared = shared.missing_key(MissingKey::Shared);
    let lease = Lease::max_units(500).ttl(secs(10));
    let leased = Policy::new("leased", Quota::requests(10_000_000).per_day());
    let leased = leased.key(extract::header("x-api-key")).lease(lease);
    let limiter = world.limiter([by_key("p"), shadow, odd, shared, leased]);
    let mut parts = head(Method::GET, "/");
    let secret = HeaderValue::from_static("sk_live_1");
    parts.headers.insert("x-api-key", secret);
    for _ in 0..5 {
        let explanations = (0..100).map(|_| limiter.explain(&parts));
        for explanation in join_all(explanations).await {
            let explanation = explanation.expect("an explanation");
            let status = explanation.policy("p").and_then(|policy| policy.status());
            let status = status.expect("it applies");
            assert_eq!(status.key(), Key::secret("sk_live_1"));
            assert_eq!((status.remaining(), status.limit()), (2, 2));
            assert!(!format!("{explanation:?}").contains("sk_live_1"));
        }
    }
    assert_eq!(world.server().keys(), [""; 0]);
    assert_eq!(
        limiter
            .shadow_stats("shadow")
            .map(|shadow| shadow.evaluated),
        Some(0)
    );
    assert!(limiter.stats().store.leases.is_empty());
    assert_eq!(log.text(), "");
    // A request that is made logs what an explanation does not.
    assert!(!explain(&limiter, &parts).await.would_admit());
    assert_contains(log.text(), ["has no key", "can't be counted"]);
}

#[tokio::test]
async fn a_store_failure_is_an_error_whatever_the_limiter_does_then() {
    let store = StubStore::failing(StoreError::timeout());
    let limiter = limiter(Limiter::builder().store(store), [hourly("p")]);
    let failed = limiter.explain(&head(Method::GET, "/")).await;
    let timeout = matches!(failed, Err(CallError::Store(StoreError::Timeout { .. })));
    assert!(timeout, "{failed:?}");
    assert!(limiter.check(KEY).await.is_admitted());
}
