//! `GET /health` without a token, and clients that don't wait for the answer.

use std::pin::pin;

use axum::body::Body;
use tokio::task::yield_now;
use tollgate_tests::prelude::*;
use tower::Service;

use crate::{admin::support::*, shared::a_client_waits};

fn limiter(server: &Server) -> Limiter {
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
async fn clients_that_abort_share_one_check_which_leaves_no_key_and_no_block() {
    let server = Server::start();
    server.reset_stats();
    assert!(limiter(&server).health_check().await.is_healthy());
    let one = connections_and_pings(&server);

    let limiter = limiter(&server);
    let api = Api::of(&limiter);
    server.reset_stats();
    server.command(&["CLIENT", "PAUSE", "600000", "WRITE"]).ok();
    ask(
        &api,
        until("a write waits", async || a_client_waits(&server)),
    )
    .await;
    for _ in 0..50 {
        let turns = async {
            for _ in 0..20 {
                yield_now().await;
            }
        };
        ask(&api, turns).await;
    }
    let (connections, pings) = connections_and_pings(&server);
    assert!(
        connections <= one.0 && pings <= one.1,
        "{connections} connections, {pings} tries"
    );
    server.command(&["CLIENT", "UNPAUSE"]).ok();

    // The report of the check answers the next requests, too.
    let start = Instant::now();
    for _ in 0..50 {
        ask(&api, std::future::pending()).await;
    }
    let (_, pings) = connections_and_pings(&server);
    // A connection that was idle for a second is tried.
    let seconds = start.elapsed().as_secs();
    let most = one.1 * (1 + seconds / 2) + seconds;
    assert!(pings <= most, "{pings} of {most}");
    assert_eq!(server.keys(), [""; 0]);
    let blocks = limiter.blocks(10).await.expect("a list");
    assert!(blocks.is_empty(), "{blocks:?}");
}

#[tokio::test]
async fn clients_that_share_a_bucket_without_an_address_are_a_warning() {
    let policy = Policy::new("p", Quota::requests(9).per_week());
    let (store, _) = stores::frozen();
    let limiter = stores::limiter(Limiter::builder().store(store), [policy]);
    let mut service =
        RateLimitLayer::new(limiter.clone()).layer(service_fn(|_: http::Request<()>| async {
            Ok::<_, Infallible>(http::Response::new(()))
        }));
    let _ = service.call(http::Request::new(())).await;
    let health = Api::of(&limiter).get("/health").await.json;
    assert_eq!(health["healthy"], true);
    let warnings = health["warnings"].as_array().expect("a list");
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0]
            .as_str()
            .is_some_and(|warning| warning.contains("\"p\""))
    );
}
