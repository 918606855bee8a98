//! Credentials of callers, of the store and of operators are in no answer, no line of the log and no metric.

use tollgate::admin::{Activity, Admin, AdminTarget};
use tollgate_tests::{
    exposition::Observed,
    prelude::*,
    service::send,
    stores::{limiter, redis},
};

use crate::admin::support::*;

const API_KEY: &str = "sk_live_seeded1";
const BEARER: &str = "bearer_seeded2";
const SESSION: &str = "session_seeded3";
const PASSWORD: &str = "password_seeded4";
const WRONG_TOKEN: &str = "wrong_token_seeded5";

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::requests(2).per_hour())
}

/// Policies that count by credentials, alone, in tuples and in alternatives.
fn by_credentials() -> [Policy; 7] {
    let by_code = policy("user").key(extract::from_fn(|_| None));
    [
        policy("api-key").key(extract::header("x-api-key")),
        policy("bearer").key(extract::bearer()),
        policy("session").key((extract::cookie("session"), extract::method())),
        policy("any").key(extract::bearer().or_else(extract::query("token"))),
        policy("tenant")
            .key((extract::header("x-tenant"), extract::path()))
            .missing_key(MissingKey::Skip),
        by_code.missing_key(MissingKey::Skip),
        Policy::block_list("blocked").key(extract::header("x-api-key")),
    ]
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
    let layer = RateLimitLayer::new(limiter.clone());
    for expected in [200, 200, 429] {
        let request = Request::get(format!("/private-path?token={SESSION}"));
        let request = request.header("x-tenant", "tenant-4242");
        let headers = headers().into_iter();
        let request = headers.fold(request, |all, (name, value)| all.header(name, value));
        assert_eq!(send(&layer, request).await, expected);
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
async fn no_answer_no_line_of_the_log_and_no_metric_holds_a_credential() {
    let server = Server::builder().password(PASSWORD).start();
    let (activity, observed) = (Arc::new(Activity::new()), Observed::default());
    let builder = observed.limiter().store(redis(&server));
    let limiter = limiter(builder.observe(activity.clone()), by_credentials());
    let log = Log::default();
    let _guard = log.at(tracing::Level::TRACE);
    let mut answers = String::new();
    use_up(&limiter).await;
    for target in [
        AdminTarget::from(&limiter),
        RateLimitLayer::new(limiter.clone()).into(),
    ] {
        let admin = Admin::new(target).token("ops", TOKEN);
        let api = Api::with(admin.activity(activity.clone()));
        for path in "health policies config shadows activity events top openapi.json".split(' ') {
            answers += &api.get(&format!("/{path}")).await.json.to_string();
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
            for (path, body) in [
                ("/block", json!({"key": secret, "seconds": 60})),
                ("/unblock", json!({"key": secret})),
                ("/reset", json!({"key": secret})),
            ] {
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
                let answer = api.call(Method::POST, "/credit", body).await;
                answers += &answer.json.to_string();
            }
            let answer = api.get(&format!("/policies?{secret}={secret}")).await;
            answers += &answer.json.to_string();
        }
        let wrong = signed(Method::GET, "/policies", WRONG_TOKEN).body(Body::empty());
        let answer = api.send(wrong.expect("a request")).await;
        answers += &answer.json.to_string();
    }
    // What is searched is there.
    assert_contains(
        &answers,
        ["\"outcome\":\"rejected\"", "ends_in_ms", "at_most_over"],
    );
    let log = log.text();
    assert_contains(&log, ["change=\"reset\"", "change=\"block\""]);
    for secret in [API_KEY, BEARER, SESSION, PASSWORD, WRONG_TOKEN, TOKEN] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{lines:?}");
        assert!(!answers.contains(secret), "{secret} in {answers}");
    }
    // Metrics hold nothing at all of a request.
    let exposition = observed.text();
    assert_contains(
        &exposition,
        ["policy=\"tenant\"", &server.addr().to_string()],
    );
    for part in [
        API_KEY,
        BEARER,
        SESSION,
        PASSWORD,
        "tenant-4242",
        "private-path",
    ] {
        assert!(!exposition.contains(part), "{part} in {exposition}");
    }
}

#[tokio::test]
async fn a_credential_is_hashed_under_every_policy_of_a_reset_and_blocked_under_no_ban_that_stores_it()
 {
    let by_code = || extract::from_fn(|_| None);
    let policies = [
        policy("api-key").key(extract::header("x-api-key")),
        policy("user").key(by_code()),
        Policy::block_list("keys").key(extract::header("x-api-key")),
        Policy::block_list("users").key(by_code()),
    ];
    let api = Api::of(limiter(Limiter::builder(), policies));
    let reset = api.done("/reset", json!({"key": API_KEY})).await;
    let all = ["api-key", "user", "keys", "users"].map(|name| about(name, shown(API_KEY)));
    assert_has(&reset, json!({"before": all, "after": all}));
    let block = |key: &str| json!({"key": key, "seconds": 60});
    let detail = api.mistake("/block", block(API_KEY)).await;
    assert_contains(&detail, ["[\"users\"]"]);
    assert!(!detail.contains(API_KEY), "{detail}");
    assert_eq!(api.get("/blocks").await.json["blocks"], json!([]));
    // The same text under one ban, and an address, which is no credential.
    let mut named = block(API_KEY);
    named["policy"] = json!("keys");
    let blocked = api.done("/block", named).await;
    assert_eq!(blocked["blocked"][0]["key"], shown(API_KEY));
    let blocked = api.done("/block", block("192.0.2.1")).await;
    assert_eq!(blocked["blocked"][1]["key"], "192.0.2.1");
    // A credential in a key of several parts, which one of the policies would keep readable.
    let by_session = (extract::cookie("session"), extract::method());
    let by_user = (extract::header("x-user"), extract::method());
    let policies = [
        policy("session").key(by_session),
        policy("user").key(by_user),
    ];
    let api = Api::of(limiter(Limiter::builder(), policies));
    let reset = api.done("/reset", json!({"key": [SESSION, "GET"]})).await;
    assert_eq!(reset["before"].as_array().map(Vec::len), Some(2));
    assert!(!reset.to_string().contains(SESSION), "{reset}");
}
