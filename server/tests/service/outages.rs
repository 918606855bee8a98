//! The store fails, or is slow, and the server's own bounds.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate_server::{
    rules::{Rules, Unit},
    serve::Server,
};
use tonic::Code;

use crate::{
    client::{Client, descriptor, header, is_over, request},
    json::get,
    lateness::Lateness,
    scene::{limit, options, redis, rules, unlimited, until},
};

const TIMEOUT: Duration = Duration::from_millis(15);

/// A server with the default timeout of Redis.
async fn with_default_timeout(url: &str, rules: &Rules, flags: &[&str]) -> Server {
    let flags: Vec<&str> = ["--redis-url", url].iter().chain(flags).copied().collect();
    let options = options(&flags);
    assert_eq!(options.redis_timeout, TIMEOUT);
    Server::start(&options, rules).await.expect("a server")
}

#[tokio::test]
async fn no_answer_takes_longer_than_the_timeout_when_redis_hangs() {
    let (_clock, redis) = redis();
    let rules = rules([limit("user", "", 9, Unit::Hour)]);
    let server = with_default_timeout(&redis.url(), &rules, &[]).await;
    let client = Client::of(&server);
    let lateness = Lateness::measure();
    // Connects, as far as the machine allows.
    let _ = client.send(request([descriptor([("user", "a")])])).await;
    redis.pause();
    for _ in 0..20 {
        let calls = (0..8).map(|_| {
            let client = client.clone();
            lateness.within(TIMEOUT, async move {
                client.send(request([descriptor([("user", "a")])])).await
            })
        });
        for response in join_all(calls).await {
            assert_eq!(response.expect_err("an error").code(), Code::Unavailable);
        }
    }
    redis.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_store_is_answered_as_the_server_is_told() {
    let rules = rules([limit("user", "", 9, Unit::Hour), unlimited("free", "")]);
    for on_error in ["admit", "reject", "error"] {
        // A port where nothing listens.
        let url = "redis://127.0.0.1:1";
        let server = with_default_timeout(url, &rules, &["--on-error", on_error]).await;
        let client = Client::of(&server);
        let response = client.send(request([descriptor([("user", "a")])])).await;
        match on_error {
            "admit" => {
                let response = response.expect("a response");
                assert!(!is_over(&response));
                assert_eq!(response.statuses[0].current_limit, None);
            }
            "reject" => {
                let response = response.expect("a response");
                assert!(is_over(&response));
                assert_eq!(header(&response, "retry-after"), Some("1"));
            }
            _ => assert_eq!(response.expect_err("an error").code(), Code::Unavailable),
        }
        // What needs no store is answered.
        assert!(client.passes(descriptor([("free", "a")])).await);
        let metrics = get(&server, "/metrics").await.1;
        let failures = r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 1"#;
        assert!(metrics.lines().any(|line| line == failures), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_bound_are_refused_at_once() {
    let (_clock, redis) = redis();
    let url = redis.url();
    let flags = [
        "--redis-url",
        &url,
        "--redis-timeout",
        "300000",
        "--max-requests",
        "2",
    ];
    let server = Server::start(&options(&flags), &rules([limit("user", "", 9, Unit::Hour)])).await;
    let server = server.expect("a server");
    redis.pause();
    // Streams are bounded too, so each request has a connection of its own.
    let ask = || {
        let client = Client::of(&server);
        tokio::spawn(async move { client.send(request([descriptor([("user", "a")])])).await })
    };
    let asked: Vec<_> = (0..5).map(|_| ask()).collect();
    until("all but two are answered", || {
        let waiting = asked.iter().filter(|request| !request.is_finished());
        (waiting.count() == 2).then_some(())
    })
    .await;
    let metrics = get(&server, "/metrics").await.1;
    let overloads = r#"ratelimit_service_should_rate_limit_error{err_type="overload"} "#;
    let count = metrics.split_once(overloads).expect("a counter").1;
    assert!(count.starts_with("3\n"), "{metrics}");
    redis.resume();
    let mut passed = 0;
    for request in asked {
        match request.await.expect("a task") {
            Ok(_) => passed += 1,
            Err(refused) => assert_eq!(refused.code(), Code::ResourceExhausted),
        }
    }
    assert_eq!(passed, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_requests_are_counted_in_process() {
    let server = Server::start(&options(&[]), &rules([limit("user", "", 2, Unit::Year)])).await;
    let server = server.expect("a server");
    let client = Client::of(&server);
    for expected in [true, true, false] {
        assert_eq!(client.passes(descriptor([("user", "a")])).await, expected);
    }
}
