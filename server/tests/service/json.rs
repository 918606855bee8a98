//! The HTTP port.

use std::net::SocketAddr;

use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use tollgate_server::{
    rules::{Rule, Unit},
    serve::Server,
};

use crate::scene::{limit, named, options, redis, rules, server};

/// The status and body of a response.
pub(crate) async fn get(server: &Server, path: &str) -> (u16, String) {
    get_at(server.http(), path).await
}

pub(crate) async fn get_at(http: SocketAddr, path: &str) -> (u16, String) {
    fetch(http, Method::GET, path, String::new()).await
}

async fn post(server: &Server, body: &str) -> (u16, String) {
    fetch(server.http(), Method::POST, "/json", body.to_owned()).await
}

async fn fetch(http: SocketAddr, method: Method, path: &str, body: String) -> (u16, String) {
    let url = format!("http://{http}{path}");
    let request = Request::builder().method(method).uri(url).body(body);
    send(request.expect("a request")).await
}

async fn send(request: Request<String>) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = request.map(Full::<axum::body::Bytes>::from);
    let response = client.request(request).await.expect("a response");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body");
    let body = body.to_bytes().to_vec();
    (status, String::from_utf8(body).expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn json_requests_are_answered_as_the_reference_server_does() {
    let (_clock, redis) = redis();
    let rules = rules([named(limit("user", "", 1, Unit::Minute), "n", &[])]);
    let server = server(&redis, &rules, &["--no-response-details"]).await;
    let request = r#"{"domain": "test", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}, {"entries": []}]}"#;
    let limit = json!({"requestsPerUnit": 1, "unit": "MINUTE", "name": "n"});
    for (code, status) in [("OK", 200), ("OVER_LIMIT", 429)] {
        let (found, body) = post(&server, request).await;
        let body: Value = serde_json::from_str(&body).expect("JSON");
        let expected = json!({
            "overallCode": code,
            "statuses": [
                {"code": code, "currentLimit": limit, "durationUntilReset": "20s"},
                {"code": "OK"},
            ],
        });
        assert_eq!((found, body), (status, expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_has_the_names_and_forms_of_the_protocol() {
    let (_clock, redis) = redis();
    let server = server(&redis, &rules([limit("user", "", 9, Unit::Minute)]), &[]).await;
    for descriptor in [
        r#"{"entries": [{"key": "user"}], "hitsAddend": "9"}"#,
        r#"{"entries": [{"key": "user"}], "hits_addend": 1, "isNegativeHits": null}"#,
        r#"{"entries": [{"key": "user"}], "limit": {"requestsPerUnit": 5, "unit": "HOUR"}}"#,
        r#"{"entries": [{"key": "user"}], "limit": {"requests_per_unit": 5.0, "unit": 3}}"#,
    ] {
        let request =
            format!(r#"{{"domain": "test", "descriptors": [{descriptor}], "hitsAddend": 1}}"#);
        let (status, body) = post(&server, &request).await;
        let body: Value = serde_json::from_str(&body).expect("JSON");
        let left = &body["statuses"][0]["limitRemaining"];
        let expected = match descriptor {
            _ if descriptor.contains("\"9\"") => (200, Value::Null),
            _ if descriptor.contains("HOUR") => (200, json!(4)),
            _ if descriptor.contains("limit") => (200, json!(3)),
            _ => (429, Value::Null),
        };
        assert_eq!((status, left), (expected.0, &expected.1), "{descriptor}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_responses_leave_out_what_has_its_default_and_fractions_of_zero() {
    let (_clock, redis) = redis();
    let pool = serde_json::json!({"weight": 3, "share": 0.5});
    let zero = Rule {
        metadata: pool.as_object().cloned(),
        ..limit("user", "", 0, Unit::Minute)
    };
    let flags = ["--no-response-details", "--dynamic-metadata"];
    let server = server(&redis, &rules([zero]), &flags).await;
    let request =
        r#"{"domain": "test", "descriptors": [{"entries": [{"key": "user"}], "hitsAddend": 0}]}"#;
    let (status, body) = post(&server, request).await;
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let statuses = json!([
        {"code": "OK", "currentLimit": {"unit": "MINUTE"}, "durationUntilReset": "60s"},
    ]);
    assert_eq!((status, &body["statuses"]), (200, &statuses));
    let metadata = &body["dynamicMetadata"];
    assert_eq!(metadata["metadata"], pool);
    assert_eq!(metadata["descriptors"][0]["hitsAddend"], json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_mistakes_are_bad() {
    let (_clock, redis) = redis();
    let server = server(&redis, &rules([limit("user", "", 9, Unit::Minute)]), &[]).await;
    for (request, expected) in [
        ("", "EOF"),
        (r#"{"domain": "test"}"#, "there are no descriptors"),
        (
            r#"{"domain": "test", "descriptorz": []}"#,
            "unknown field `descriptorz`",
        ),
        (
            r#"{"domain": "test", "descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
            "\"FORTNIGHT\" is no unit",
        ),
        // A list is no message, though it has the fields in order.
        (
            r#"{"domain": "test", "descriptors": [[[{"key": "user"}]]]}"#,
            "expected an object",
        ),
        (
            r#"{"domain": "test", "hitsAddend": 4294967296}"#,
            "4294967296: expected a whole number of 32 bits",
        ),
        (
            r#"{"domain": "test", "hitsAddend": "+1"}"#,
            "expected a whole number",
        ),
        (
            r#"{"domain": "test", "descriptors": [{"isNegativeHits": true}]}"#,
            "a credit (is_negative_hits) needs a client certificate",
        ),
    ] {
        let (status, body) = post(&server, request).await;
        assert_eq!(status, 400, "{request}: {body}");
        assert!(body.contains(expected), "{request}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_is_an_error_of_the_server() {
    // A port where nothing listens.
    let options = options(&["--redis-url", "redis://127.0.0.1:1"]);
    let server = Server::start(&options, &rules([limit("user", "", 9, Unit::Minute)])).await;
    let server = server.expect("a server");
    let request = r#"{"domain": "test", "descriptors": [{"entries": [{"key": "user"}]}]}"#;
    let (status, body) = post(&server, request).await;
    assert_eq!(status, 500, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_needs_a_token() {
    let (_clock, redis) = redis();
    let flags = ["--admin-token", "ops=0123456789abcdef"];
    let server = server(&redis, &rules([limit("user", "", 9, Unit::Minute)]), &flags).await;
    let url = format!(
        "http://{}/admin/policies",
        server.admin().expect("an address")
    );
    let request = || Request::get(&url);
    let (status, _) = send(request().body(String::new()).expect("a request")).await;
    assert_eq!(status, 401);
    let request = request().header("authorization", "Bearer 0123456789abcdef");
    let (status, body) = send(request.body(String::new()).expect("a request")).await;
    assert_eq!(status, 200);
    assert!(body.contains("\"test/user=\""), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_too_large_is_not_read() {
    let (_clock, redis) = redis();
    let server = server(&redis, &rules([]), &[]).await;
    let request = r#"{"domain": "test", "descriptors": [{"entries": [{"key": "a"}]}]}"#;
    for (length, status) in [(1 << 20, 200), ((1 << 20) + 1, 413)] {
        let padded = request.to_owned() + &" ".repeat(length - request.len());
        assert_eq!(post(&server, &padded).await.0, status);
    }
    assert_eq!(get(&server, "/other").await.0, 404);
}
