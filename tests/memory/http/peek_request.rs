//! The status of a request's caller, by the keys that the policies extract.

use crate::http::support::*;

fn usage(key: &str) -> Parts {
    let request = Request::get("/usage").header("x-api-key", key);
    request.body(()).expect("a request").into_parts().0
}

fn policies() -> [Policy; 4] {
    let by_key = extract::from_fn(|parts| {
        let text = parts.headers.get("x-api-key")?.to_str().ok()?;
        Some(Key::secret(text))
    });
    [
        Policy::new("tokens", Quota::units(1_000).per_month())
            .key(by_key)
            .cost_with(|parts| if parts.uri.path() == "/" { 200 } else { 1 })
            .skip_path("/usage"),
        Policy::new("budget", quota("50/month")).key(extract::global()),
        Policy::new("login", quota("5/month"))
            .key(extract::header("x-login"))
            .only_path("/login"),
        Policy::new("next", Quota::units(500).per_month()).shadow_of("tokens"),
    ]
}

#[tokio::test]
async fn peeking_at_a_request_uses_the_keys_of_the_layer() {
    let build =
        |b: tollgate::limiter::LimiterBuilder| policies().into_iter().fold(b, |b, p| b.policy(p));
    for (limiter, _server) in on_each_store(|b| build(b).skip_path("/usage")) {
        let app = hello(&RateLimitLayer::new(limiter.clone()));
        for key in ["sk_1", "sk_1", "sk_2"] {
            assert_eq!(send(&app, with("x-api-key", key)).await.status, 200);
        }
        let left = async |key: &str| {
            let status = limiter.peek_request(&usage(key)).await.expect("a response");
            assert!(status.would_admit(), "{status:?}");
            // The key of a login is another request's.
            assert!(status.policy("login").is_none());
            ["tokens", "budget", "next"].map(|name| status.left(name))
        };
        assert_eq!(left("sk_1").await, [600, 47, 100]);
        assert_eq!(left("sk_2").await, [800, 47, 300]);
        assert_eq!(left("sk_2").await, [800, 47, 300]);
        // A cost that is set comes first.
        let status = limiter.peek_request(&usage("sk_1")).cost(601).await;
        assert!(!status.expect("a response").would_admit());
    }
}

#[tokio::test]
async fn peeking_at_a_request_reports_why_it_would_be_rejected() {
    let by_header = |name| Policy::new("p", quota("5/min")).key(extract::header(name));
    let denied = KeyList::new("p", [Key::secret("sk_1")]);
    let builder = || Limiter::builder().policy(by_header("x-api-key"));
    let limiter = builder().deny(denied).built();
    let status = limiter.peek_request(&usage("sk_1")).await;
    let status = status.expect("a response");
    assert!(matches!(status.kind(), DecisionKind::DenyListed) && !status.would_admit());
    let (stranger, ()) = Request::new(()).into_parts();
    let status = limiter.peek_request(&stranger).await.expect("a response");
    let DecisionKind::MissingKey { missing, .. } = status.kind() else {
        panic!("{status:?}");
    };
    assert_eq!(&**missing, "the header x-api-key");
    assert!(!status.would_admit());
    let failing = builder().store(StubStore::unreachable()).built();
    let failed = failing.peek_request(&usage("sk_1")).await;
    assert!(matches!(failed, Err(CallError::Store(_))), "{failed:?}");
}
