//! A real Envoy, which asks the service about each request.

use serde_json::Value;
use tollgate_server::rules::Unit;

use crate::scene::{limit, redis, rules, server};

/// Sends requests of these users through an Envoy that asks the service at `address`, and returns the responses.
async fn through_envoy(address: String, users: &'static [&'static str]) -> Vec<Value> {
    let run = move || {
        let arguments = [&[&*address], users].concat();
        testkit::python("envoy_proxy.py", &arguments, "")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("a proxy");
    serde_json::from_str(&output).expect("responses")
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_passes_what_the_limit_admits_and_its_rejections_say_why() {
    let (_clock, redis) = redis();
    let server = server(&redis, &rules([limit("user", "", 2, Unit::Hour)]), &[]).await;
    let users = &["alice", "alice", "alice", "bob"];
    let responses = through_envoy(server.grpc().to_string(), users).await;
    let statuses: Vec<_> = responses
        .iter()
        .map(|response| &response["status"])
        .collect();
    assert_eq!(statuses, [200, 200, 429, 200]);
    let [_, second, rejected, _] = &responses[..] else {
        panic!("four responses")
    };
    assert_eq!(second["body"], "hello\n");
    assert_eq!(second["fields"]["x-ratelimit-remaining"], "0");
    // The store's clock stands still, 400.1 seconds after a full hour.
    let fields = &rejected["fields"];
    assert_eq!(fields["retry-after"], "3200");
    assert_eq!(fields["x-ratelimit-reset"], "3200");
    assert_eq!(fields["content-type"], "application/problem+json");
    assert_eq!(fields["x-envoy-ratelimited"], "true");
    let problem: Value =
        serde_json::from_str(rejected["body"].as_str().expect("a body")).expect("JSON");
    assert_eq!(problem["status"], 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_denies_requests_while_the_service_is_gone_if_it_is_told_to() {
    let nowhere = format!("127.0.0.1:{}", testkit::free_port());
    let responses = through_envoy(nowhere, &["alice"]).await;
    assert_eq!(responses[0]["status"], 500);
}
