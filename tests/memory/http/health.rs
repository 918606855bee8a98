//! How long a health check takes.

use crate::http::support::*;
use tokio::{net::TcpListener, time::Instant};
use tollgate::store::HealthIssue;

#[tokio::test(start_paused = true)]
async fn a_health_check_of_a_server_that_hangs_ends_after_a_second_or_the_timeout() {
    // Connections are accepted, and nothing is ever sent on them.
    let hangs = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = hangs.local_addr().expect("an address");
    for (timeout, expected) in [(100, 1_000), (3_000, 3_000)] {
        let store = RedisStore::builder().url(format!("redis://{address}"));
        let store = store.timeout(ms(timeout)).built();
        let limiter = Limiter::builder().store(store);
        let policies = ["a", "b", "c"].map(|name| shared(name, "5/s"));
        let limiter = policies.into_iter().fold(limiter, |b, p| b.policy(p));
        let limiter = limiter.built();
        let before = Instant::now();
        let health = limiter.health_check().await;
        let took = before.elapsed();
        let [HealthIssue::Unreachable { error, .. }] = health.issues() else {
            panic!("{health:?}");
        };
        assert_eq!(error.code(), "timeout");
        assert_eq!(took.as_millis(), expected, "a timeout of {timeout} ms");
    }
}

#[tokio::test]
async fn a_health_check_of_a_server_that_replies_finds_nothing() {
    let server = Server::start();
    let limiter = Limiter::builder().store(redis(&server));
    let limiter = limiter.policy(shared("a", "5/s")).built();
    let health = limiter.health_check().await;
    assert!(health.issues().is_empty(), "{health:?}");
}
