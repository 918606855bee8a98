//! Credentials of callers, of the store and of operators are in no answer and in no line of the log.

use axum::body::Body;
use http::Method;
use serde_json::json;
use testkit::Server;
use tollgate::{
    Limiter, Policy, Quota, RedisStore,
    extract::{self, KeyExtractor},
};

use crate::{
    log::Log,
    support::{Api, TOKEN, request},
};

const API_KEY: &str = "sk_live_seeded1";
const BEARER: &str = "bearer_seeded2";
const SESSION: &str = "session_seeded3";
const PASSWORD: &str = "password_seeded4";
const WRONG_TOKEN: &str = "wrong_token_seeded5";

/// The policies count by credentials, alone, in tuples and in alternatives.
fn limiter(server: &Server) -> Limiter {
    let url = server
        .url()
        .replace("redis://", &format!("redis://:{PASSWORD}@"));
    let quota = || Quota::requests(2).per_hour();
    Limiter::builder()
        .store(RedisStore::open(url).expect("a store"))
        .policy(Policy::new("api-key", quota()).key(extract::header("x-api-key")))
        .policy(Policy::new("bearer", quota()).key(extract::bearer()))
        .policy(
            Policy::new("session", quota()).key((extract::cookie("session"), extract::method())),
        )
        .policy(Policy::new("any", quota()).key(extract::bearer().or_else(extract::query("token"))))
        .policy(Policy::new("user", quota()).key(extract::from_fn(|_| None)))
        .policy(Policy::block_list("blocked").key(extract::header("x-api-key")))
        .build()
        .expect("a limiter")
}

#[tokio::test]
async fn no_answer_and_no_line_of_the_log_holds_a_credential() {
    let server = Server::builder().password(PASSWORD).start();
    let limiter = limiter(&server);
    let log = Log::default();
    let _guard = log.at(tracing::Level::TRACE);
    let mut answers = String::new();
    for api in [
        Api::of(&limiter),
        Api::of(tollgate::RateLimitLayer::new(limiter.clone())),
    ] {
        for path in [
            "/health",
            "/policies",
            "/config",
            "/shadows",
            "/openapi.json",
        ] {
            answers += &api.get(path).await.json.to_string();
        }
        for secret in [API_KEY, BEARER, SESSION] {
            for (policy, key) in [
                ("api-key", json!(secret)),
                ("bearer", json!(secret)),
                ("session", json!([secret, "GET"])),
                ("any", json!(["1", secret])),
                // A credential where none belongs, and in the place of a name.
                ("session", json!(secret)),
                ("any", json!([secret, secret])),
                (secret, json!("alice")),
            ] {
                for (path, mut body) in [
                    ("/peek", json!({})),
                    ("/credit", json!({"units": 1})),
                    ("/reset", json!({})),
                    ("/block", json!({"seconds": 60})),
                    ("/unblock", json!({})),
                    ("/callers", json!({})),
                ] {
                    body["key"] = key.clone();
                    body["policy"] = json!(policy);
                    let answer = api.post(path, &body).await;
                    let answer = answer.json.to_string();
                    // The name that was asked for is the only thing that an answer repeats.
                    if policy != secret {
                        answers += &answer;
                    }
                }
            }
            // Under all policies, of which one would keep it readable.
            for path in ["/block", "/unblock", "/reset"] {
                let mut body = json!({"key": secret});
                if path == "/block" {
                    body["seconds"] = json!(60);
                }
                let answer = api.post(path, &body).await.json;
                let of_others = answer
                    .to_string()
                    .replace(&format!("\"key\":\"{secret}\",\"limit\":2"), "");
                answers += &of_others;
            }
            for body in [
                format!("{{\"policy\": \"api-key\", \"key\": {{\"{secret}\": 1}}}}"),
                format!("{{\"policy\": \"api-key\", \"key\": \"x\", \"{secret}\": 1}}"),
                format!("{{\"policy\": \"api-key\", \"key\": \"x\", \"units\": \"{secret}\"}}"),
                format!("\"{secret}\""),
                secret.to_owned(),
            ] {
                answers += &api
                    .call(Method::POST, "/credit", body)
                    .await
                    .json
                    .to_string();
            }
            answers += &api
                .get(&format!("/policies?{secret}={secret}"))
                .await
                .json
                .to_string();
        }
        let wrong = request(Method::GET, "/policies")
            .header("authorization", format!("Bearer {WRONG_TOKEN}"));
        answers += &api
            .send(wrong.body(Body::empty()).expect("a request"))
            .await
            .json
            .to_string();
    }
    let log = log.text();
    assert!(
        log.contains("change=\"reset\"") && log.contains("change=\"block\""),
        "{log}"
    );
    for secret in [API_KEY, BEARER, SESSION, PASSWORD, WRONG_TOKEN, TOKEN] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{lines:?}");
        assert!(!answers.contains(secret), "{secret} in {answers}");
    }
}
