//! The status of a request's caller, by the keys that the policies extract.

use crate::http::support::*;

fn usage(key: &str) -> Parts {
    head(Request::get("/usage").header("x-api-key", key))
}

fn policies() -> [Policy; 4] {
    let by_key = extract::from_fn(|parts| {
        let text = parts.headers.get("x-api-key")?.to_str().ok()?;
        Some(Key::secret(text))
    });
    let cost = |parts: &Parts| if parts.uri.path() == "/" { 200 } else { 1 };
    [
        Policy::new("tokens", Quota::units(1_000).per_month())
            .key(by_key.clone())
            .cost_with(cost)
            .skip_path("/usage"),
        Policy::new("budget", quota("50/month")).key(extract::global()),
        Policy::new("login", quota("5/month"))
            .key(extract::header("x-login"))
            .only_path("/login"),
        Policy::new("next", Quota::units(500).per_month())
            .key(by_key)
            .cost_with(cost)
            .skip_path("/usage")
            .shadow(),
    ]
}

#[tokio::test]
async fn peeking_at_a_request_uses_the_keys_of_the_layer() {
    let build = |b: LimiterBuilder| policies().into_iter().fold(b, LimiterBuilder::policy);
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
