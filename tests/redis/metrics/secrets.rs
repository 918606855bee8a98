//! Nothing of a request is exposed.

use std::net::SocketAddr;

use http::{Request, Response};
use testkit::Server;
use tollgate::{Key, PeerAddr, Policy, Quota, RateLimitLayer, RedisStore, extract};
use tower::{Layer, ServiceExt, service_fn};

use crate::metrics::{support::Observed, until::TEST_TIMEOUT};

const SECRETS: [&str; 9] = [
    "sk-live-0a1b2c",
    "session-9z8y7x",
    "tenant-4242",
    "/private/path-77",
    "path-77",
    "q-5151",
    "203.0.113.77",
    "gold-tier",
    "db-password-1",
];

#[tokio::test]
async fn no_key_path_tier_or_password_is_exposed() {
    let server = Server::builder().password("db-password-1").start();
    let observed = Observed::new();
    let quota = Quota::requests(1).per_hour();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let layer = RateLimitLayer::builder()
        .observe(observed.metrics.clone())
        .store(store.build().expect("a store"))
        .policy(Policy::new("key", quota).key(extract::header("x-api-key")))
        .policy(Policy::new("session", quota).key(extract::cookie("session").readable()))
        .policy(Policy::new("tenant", quota).key((extract::header("x-tenant"), extract::path())))
        .policy(Policy::new("query", quota).key(extract::query("q")))
        .policy(
            Policy::new("peer", quota)
                .key(extract::peer())
                .quota_with(|parts| {
                    let tier = parts.headers.get("x-tier")?;
                    (tier == "gold-tier").then(|| Quota::requests(7).per_hour())
                }),
        )
        .build()
        .expect("a layer");
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(()))
    }));
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let request = Request::get("/private/path-77?q=q-5151")
            .header("x-api-key", "sk-live-0a1b2c")
            .header("cookie", "session=session-9z8y7x")
            .header("x-tenant", "tenant-4242")
            .header("x-tier", "gold-tier");
        let mut request = request.body(()).expect("a request");
        let peer = PeerAddr(SocketAddr::from(([203, 0, 113, 77], 4321)));
        request.extensions_mut().insert(peer);
        let response = service.clone().oneshot(request).await.expect("a response");
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 429, 429]);
    let limiter = layer.limiter();
    let tenant = Key::new("tenant-4242");
    limiter
        .charge([("query", tenant)], 3)
        .await
        .expect("charged");

    let text = observed.text();
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} in:\n{text}");
    }
    // All of it was counted.
    let policies = ["key", "session", "tenant", "query", "peer"];
    for policy in policies {
        let exposition = observed.exposition();
        let labels = [("policy", policy)];
        assert_eq!(
            exposition.value("tollgate_policy_requests_total", &labels),
            3.0,
            "{policy}"
        );
    }
    let node = server.addr().to_string();
    let calls = [("node", &*node), ("result", "ok")];
    assert!(observed.value("tollgate_store_calls_total", &calls) >= 1.0);
}
