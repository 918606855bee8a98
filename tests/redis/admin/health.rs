//! `GET /health` with and without a token, and clients that don't wait for the answer.

use std::pin::pin;

use tokio::task::yield_now;
use tollgate_tests::{prelude::*, servers::a_client_waits, service::send};

use crate::admin::support::{self, *};

fn limiter_on(server: &Server) -> Limiter {
    let policies = [
        Policy::new("p", Quota::requests(9).per_week()).key(extract::global()),
        Policy::block_list("blocked"),
    ];
    stores::limiter(Limiter::builder().store(stores::redis(server)), policies)
}

/// Asks for the health, and leaves when `leave` is done.
async fn ask(api: &Api, leave: impl Future<Output = ()>) {
    let request = request(Method::GET, "/health").body(Body::empty());
    let mut answer = pin!(api.send(request.expect("a request")));
    tokio::select! {
        biased;
        answer = &mut answer => assert_eq!(answer.status, 200),
        () = leave => {}
    }
}

/// How many connections were opened and how often one was tried.
fn connections_and_pings(server: &Server) -> (u64, u64) {
    let connections = server.info("stats", "total_connections_received");
    let connections = connections.and_then(|number| number.parse().ok());
    (connections.expect("a number"), server.calls("ping"))
}

#[tokio::test]
async fn clients_that_abort_leave_no_key_and_no_block_and_others_share_a_report() {
    let server = Server::start();
    server.reset_stats();
    assert!(limiter_on(&server).health_check().await.is_healthy());
    let one = connections_and_pings(&server);

    let limiter = limiter_on(&server);
    let api = Api::of(&limiter);
    server.reset_stats();
    server.command(&["CLIENT", "PAUSE", "600000", "WRITE"]).ok();
    let waits = until("a write waits", async || a_client_waits(&server));
    ask(&api, waits).await;
    for _ in 0..50 {
        let turns = async {
            for _ in 0..20 {
                yield_now().await;
            }
        };
        ask(&api, turns).await;
    }
    let (connections, _) = connections_and_pings(&server);
    assert!(connections <= one.0, "{connections} connections");
    server.command(&["CLIENT", "UNPAUSE"]).ok();

    let start = Instant::now();
    ask(&api, std::future::pending()).await;
    // The report of this check answers the next requests, too.
    let (_, before) = connections_and_pings(&server);
    for _ in 0..50 {
        ask(&api, std::future::pending()).await;
    }
    let (_, after) = connections_and_pings(&server);
    // A connection that was idle for a second is tried.
    let seconds = start.elapsed().as_secs();
    let most = one.1 * (seconds / 2) + seconds;
    assert!(after - before <= most, "{} of {most}", after - before);
    assert_eq!(server.keys(), [""; 0]);
    let blocks = limiter.blocks(10).await.expect("a list");
    assert!(blocks.is_empty(), "{blocks:?}");
}

#[tokio::test]
async fn health_tells_anonymous_requests_nothing_but_whether_the_store_is_healthy() {
    // A client without an address is a warning.
    let policy = Policy::new("p", Quota::requests(9).per_week());
    let (healthy, failing) = (support::limiter([policy]), support::unreachable());
    let layer = RateLimitLayer::new(healthy.clone());
    assert_eq!(send(&layer, Request::get("/")).await, 200);
    for (limiter, status, is_healthy) in [(healthy, 200, true), (failing, 503, false)] {
        let api = Api::of(limiter);
        let anonymous = request(Method::GET, "/health").body(Body::empty());
        let answer = api.send(anonymous.expect("a request")).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json, json!({"healthy": is_healthy}));
        let answer = api.get("/health").await;
        assert_eq!(answer.status, status);
        let issues = answer.json["issues"].as_array().expect("issues");
        assert_eq!(issues.is_empty(), is_healthy, "{issues:?}");
        let warnings = answer.json["warnings"].as_array().map_or(0, Vec::len);
        assert_eq!(warnings > 0, is_healthy, "{}", answer.json);
        let wrong = signed(Method::GET, "/health", "x").body(Body::empty());
        let answer = api.send(wrong.expect("a request")).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    }
}
