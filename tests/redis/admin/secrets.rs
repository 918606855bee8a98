//! Credentials of callers, of the store and of operators are in no answer and in no line of the log.

use std::{convert::Infallible, sync::Arc};

use axum::body::Body;
use http::{Method, Request, Response};
use serde_json::{Value, json};
use testkit::Server;
use tollgate::{
    Key, Limiter, MemoryStore, MissingKey, Policy, Quota, RateLimitLayer, RedisStore,
    admin::{Activity, Admin, AdminTarget},
    extract::{self, KeyExtractor},
};
use tower::{Layer, ServiceExt};

use crate::admin::{
    log::Log,
    support::{Api, TOKEN, request},
};

const API_KEY: &str = "sk_live_seeded1";
const BEARER: &str = "bearer_seeded2";
const SESSION: &str = "session_seeded3";
const PASSWORD: &str = "password_seeded4";
const WRONG_TOKEN: &str = "wrong_token_seeded5";

/// The policies count by credentials, alone, in tuples and in alternatives.
fn limiter(server: &Server, activity: Arc<Activity>) -> Limiter {
    let quota = || Quota::requests(2).per_hour();
    Limiter::builder()
        .store(RedisStore::open(server.url()).expect("a store"))
        .policy(Policy::new("api-key", quota()).key(extract::header("x-api-key")))
        .policy(Policy::new("bearer", quota()).key(extract::bearer()))
        .policy(
            Policy::new("session", quota()).key((extract::cookie("session"), extract::method())),
        )
        .policy(Policy::new("any", quota()).key(extract::bearer().or_else(extract::query("token"))))
        .policy(
            Policy::new("user", quota())
                .key(extract::from_fn(|_| None))
                .missing_key(MissingKey::Skip),
        )
        .policy(Policy::block_list("blocked").key(extract::header("x-api-key")))
        .observe(activity)
        .build()
        .expect("a limiter")
}

/// The headers of a request that has each credential.
fn headers() -> [(&'static str, String); 3] {
    [
        ("x-api-key", API_KEY.to_owned()),
        ("authorization", format!("Bearer {BEARER}")),
        ("cookie", format!("session={SESSION}")),
    ]
}

/// Sends requests with the credentials until all policies have rejected them.
async fn use_up(limiter: &Limiter) {
    let inner = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let service = RateLimitLayer::new(limiter.clone()).layer(inner);
    for _ in 0..3 {
        let request = Request::get(format!("/?token={SESSION}"));
        let request = headers()
            .into_iter()
            .fold(request, |request, (name, value)| {
                request.header(name, value)
            });
        let request = request.body(Body::empty()).expect("a request");
        let _ = service.clone().oneshot(request).await.expect("infallible");
    }
}

/// Bodies of `/explain` with credentials, also where none belongs.
fn explanations() -> [Value; 5] {
    let uri = format!("/?token={SESSION}");
    [
        json!({"method": "GET", "uri": uri, "headers": headers(), "peer": "192.0.2.1"}),
        json!({"method": "GET", "uri": format!("no path {API_KEY}")}),
        json!({"method": "GET", "uri": "/", "peer": API_KEY}),
        json!({"method": format!("{API_KEY} "), "uri": "/"}),
        json!({"method": "GET", "uri": "/", "headers": [[format!("{API_KEY} "), format!("{BEARER}\n")]]}),
    ]
}

#[tokio::test]
async fn no_answer_and_no_line_of_the_log_holds_a_credential() {
    let server = Server::builder().password(PASSWORD).start();
    let activity = Arc::new(Activity::new());
    let limiter = limiter(&server, activity.clone());
    let log = Log::default();
    let _guard = log.at(tracing::Level::TRACE);
    let mut answers = String::new();
    use_up(&limiter).await;
    for target in [
        AdminTarget::from(&limiter),
        RateLimitLayer::new(limiter.clone()).into(),
    ] {
        let admin = Admin::new(target).token("ops", TOKEN);
        let api = Api(admin
            .activity(activity.clone())
            .router()
            .expect("an admin API"));
        for path in [
            "/health",
            "/policies",
            "/config",
            "/shadows",
            "/activity",
            "/events",
            "/top",
            "/openapi.json",
        ] {
            answers += &api.get(path).await.json.to_string();
        }
        for body in explanations() {
            answers += &api.post("/explain", &body).await.json.to_string();
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
                answers += &api.post(path, &body).await.json.to_string();
                answers += &api.get("/blocks").await.json.to_string();
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
    // What is searched is there.
    for part in ["\"outcome\":\"rejected\"", "ends_in_ms", "at_most_over"] {
        assert!(answers.contains(part), "{part} in {answers}");
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

#[tokio::test]
async fn a_credential_is_hashed_under_every_policy_of_a_reset_and_blocked_under_no_ban_that_stores_it()
 {
    let quota = || Quota::requests(2).per_hour();
    let (store, by_code) = (MemoryStore::new(), || extract::from_fn(|_| None));
    let limiter = Limiter::builder()
        .store(store)
        .policy(Policy::new("api-key", quota()).key(extract::header("x-api-key")))
        .policy(Policy::new("user", quota()).key(by_code()))
        .policy(Policy::block_list("keys").key(extract::header("x-api-key")))
        .policy(Policy::block_list("users").key(by_code()))
        .build()
        .expect("a limiter");
    let api = Api::of(&limiter);
    let hash = Key::secret(API_KEY).as_str().replace('#', "hash:");
    let reset = api.done("/reset", json!({"key": API_KEY})).await;
    for when in ["before", "after"] {
        let statuses = reset[when].as_array().expect("statuses");
        let shown = statuses
            .iter()
            .map(|status| (&status["policy"], &status["key"]));
        let expected =
            ["api-key", "user", "keys", "users"].map(|policy| (json!(policy), json!(hash)));
        assert!(shown.eq(expected.iter().map(|(policy, key)| (policy, key))));
    }
    let block = |key: &str| json!({"key": key, "seconds": 60});
    let refused = api.post("/block", &block(API_KEY)).await;
    assert_eq!(refused.status, 400, "{}", refused.json);
    let detail = refused.json["detail"].as_str().expect("a detail");
    assert!(
        detail.contains("[\"users\"]") && !detail.contains(API_KEY),
        "{detail}"
    );
    assert_eq!(api.get("/blocks").await.json["blocks"], json!([]));
    // The same text under one ban, and an address, which is no credential.
    let mut named = block(API_KEY);
    named["policy"] = json!("keys");
    assert_eq!(api.done("/block", named).await["blocked"][0]["key"], hash);
    let blocked = api.done("/block", block("192.0.2.1")).await;
    assert_eq!(blocked["blocked"][1]["key"], "192.0.2.1");
}

#[tokio::test]
async fn a_credential_in_a_key_of_several_parts_is_hashed_under_every_policy_of_a_reset() {
    let by_session = (extract::cookie("session"), extract::method());
    let by_user = (extract::header("x-user"), extract::method());
    let limiter = Limiter::builder()
        .policy(Policy::new("session", Quota::requests(2).per_hour()).key(by_session))
        .policy(Policy::new("user", Quota::requests(2).per_hour()).key(by_user))
        .build()
        .expect("a limiter");
    let log = Log::default();
    let _guard = log.info();
    let api = Api::of(&limiter);
    let reset = api.done("/reset", json!({"key": [SESSION, "GET"]})).await;
    assert_eq!(reset["before"].as_array().map(Vec::len), Some(2));
    let text = format!("{reset} {}", log.text());
    assert!(!text.contains(SESSION), "{text}");
}
