//! What holds on Redis alone.

use std::net::TcpListener;

use testkit::Clock;
use tokio::runtime::Handle;
use tollgate::store::HealthIssue;
use tollgate_tests::clocks::StillTime;

use crate::http::{responses::fields, support::*};

fn layer_on(store: &RedisStore, policy: Policy) -> RateLimitLayer {
    let layer = RateLimitLayer::builder().store(store.clone());
    layer.policy(policy).built()
}

#[tokio::test]
async fn the_reset_of_a_cached_rejection_is_counted_from_each_request() {
    const START: u64 = 1_800_000_000_000_000;
    let times = (
        Clock::at(START),
        ManualClock::at(Timestamp::from_micros(START as i64)),
    );
    let server = Server::builder().clock(&times.0).start();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let store = store.rejection_cache_clock(times.1.clone());
    let store = store.rejection_cache_staleness(secs(3_600)).built();
    let layer = layer_on(&store, shared("window", "1/h").strategy(FixedWindow));
    let app = hello(&layer.headers(Headers::x_ratelimit()));
    assert_eq!(status(&app, "/").await, 200);
    for minutes in 0..2 {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, 429);
        let wait = 3_600 - 60 * minutes;
        assert_eq!(response.retry_after(), Some(wait));
        assert_eq!(response.field("x-ratelimit-reset"), wait.to_string());
        times.0.advance(secs(60));
        times.1.advance(secs(60));
    }
    // All but one were rejected from this process's cache.
    assert_eq!(server.calls("evalsha"), 2);
}

#[tokio::test]
async fn seconds_in_headers_never_exceed_the_window() {
    // Windows on Redis end on a millisecond: up to one later than after their period.
    let clock = Clock::at(1_800_000_000_000_001);
    let server = Server::builder().clock(&clock).start();
    let policy = shared("tokens", "1000/min").strategy(FixedWindow);
    let layer = layer_on(&redis(&server), policy);
    let response = send(&hello(&layer), to("/")).await;
    let expected = [r#""tokens";q=1000;w=60"#, r#""tokens";r=999;t=60"#];
    assert_eq!(fields(&response), expected);
}

#[tokio::test]
async fn a_health_check_of_a_server_that_hangs_ends_after_a_second_or_the_timeout() {
    // Connections are accepted, and nothing is ever sent on them.
    let hangs = TcpListener::bind("127.0.0.1:0").expect("a port");
    hangs.set_nonblocking(true).expect("a setting");
    let address = hangs.local_addr().expect("an address");
    let time = StillTime::new();
    for (timeout, expected) in [(100, 1_000), (3_000, 3_000)] {
        let store = RedisStore::builder().url(format!("redis://{address}"));
        let store = store.timeout(ms(timeout)).runtime(Handle::current());
        let policies = ["a", "b", "c"].map(|name| shared(name, "5/s"));
        let limiter = stores::limiter(Limiter::builder().store(store.built()), policies);
        let check = tokio::spawn(async move { limiter.health_check().await });
        let mut accepted = Vec::new();
        let connects = || {
            accepted.extend(hangs.accept().ok());
            !accepted.is_empty()
        };
        time.until("it connects", connects).await;
        time.settle().await;
        time.advance(ms(expected - 5)).await;
        time.settle().await;
        assert!(!check.is_finished(), "a timeout of {timeout} ms");
        time.advance(ms(10)).await;
        let health = check.await.expect("a report");
        let [HealthIssue::Unreachable { error, .. }] = health.issues() else {
            panic!("{health:?}");
        };
        assert_eq!(error.code(), "timeout");
    }
}
