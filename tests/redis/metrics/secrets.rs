//! Nothing of a request is exposed.

use tollgate_tests::{prelude::*, service, stores::limiter};

use crate::metrics::support::*;

/// What must not be exposed.
const SECRETS: &str = "sk-live-0a1b2c session-9z8y7x tenant-4242 /private/path-77 path-77 q-5151 203.0.113.77 gold-tier db-password-1";

#[tokio::test]
async fn no_key_path_tier_or_password_is_exposed() {
    let server = Server::builder().password("db-password-1").start();
    let observed = Observed::default();
    let policy = |name: &str| Policy::new(name, Quota::requests(1).per_hour());
    let by_tier = policy("peer").key(extract::peer()).quota_with(|parts| {
        let tier = parts.headers.get("x-tier")?;
        (tier == "gold-tier").then(|| Quota::requests(7).per_hour())
    });
    let policies = [
        policy("key").key(extract::header("x-api-key")),
        policy("session").key(extract::cookie("session").readable()),
        policy("tenant").key((extract::header("x-tenant"), extract::path())),
        policy("query").key(extract::query("q")),
        by_tier,
    ];
    let limiter = limiter(observed.limiter().store(redis(&server)), policies);
    let layer = RateLimitLayer::new(limiter.clone());
    for expected in [200, 429, 429] {
        let request = Request::get("/private/path-77?q=q-5151")
            .header("x-api-key", "sk-live-0a1b2c")
            .header("cookie", "session=session-9z8y7x")
            .header("x-tenant", "tenant-4242")
            .header("x-tier", "gold-tier")
            .extension(PeerAddr(SocketAddr::from(([203, 0, 113, 77], 4321))));
        assert_eq!(service::send(&layer, request).await, expected);
    }
    let charge = limiter.charge([("query", Key::new("tenant-4242"))], 3);
    charge.await.expect("charged");

    let text = observed.text();
    for secret in SECRETS.split(' ') {
        assert!(!text.contains(secret), "{secret} in:\n{text}");
    }
    // All of it was counted.
    for policy in ["key", "session", "tenant", "query", "peer"] {
        let series = format!("policy_requests_total policy={policy}");
        assert_eq!(value_now(&observed, &series), 3.0, "{policy}");
    }
    let series = format!("store_calls_total node={} result=ok", server.addr());
    assert!(value_now(&observed, &series) >= 1.0);
}
