//! Overrides by the admin API: what is set, listed and removed, and the lines in the log.

use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

async fn call(api: &Api, method: Method, body: &Value) -> (u16, Value) {
    let answer = api.call(method, "/overrides", body.to_string()).await;
    (answer.status.as_u16(), answer.json)
}

#[tokio::test]
async fn an_override_is_set_listed_and_removed_and_each_change_is_logged() {
    let (limiter, _) = support::in_process();
    let (api, log) = (Api::of(&limiter), Log::default());
    let _guard = log.info();
    let key = shown("sk_1");
    let body = json!({"policy": "api", "key": "sk_1", "quota": "100/min", "until": "2099-01-15T08:00:00Z", "note": "two\nlines"});
    let (status, set) = call(&api, Method::PUT, &body).await;
    let expected = json!({"policy": "api", "key": key, "quota": "100/min", "exempt": false,
        "until": "2099-01-15T08:00:00Z", "note": "two\nlines", "set_by": "ops"});
    assert_eq!((status, &set), (200, &json!({ "after": expected })));
    let admission = limiter.admit(("api", Key::secret("sk_1"))).await;
    assert_eq!(
        admission.decision().policy("api").map(|api| api.limit()),
        Some(100)
    );
    let listed = api.get("/overrides?policy=api").await.json;
    assert_eq!(listed, json!({"total": 1, "overrides": [expected]}));
    // The key as answers show it.
    let lifted = json!({"policy": "api", "key": key, "exempt": true, "seconds": 3600});
    let (status, set) = call(&api, Method::PUT, &lifted).await;
    assert_eq!((status, &set["before"]), (200, &expected));
    assert_eq!(set["after"]["exempt"], true);
    let about = json!({"policy": "api", "key": "sk_1"});
    let (status, removed) = call(&api, Method::DELETE, &about).await;
    assert_eq!((status, &removed["before"]["exempt"]), (200, &json!(true)));
    assert_eq!(call(&api, Method::DELETE, &about).await, (200, json!({})));
    let lines = log.lines("changed by the admin API");
    let quota = r#"100/min until 2099-01-15T08:00:00Z (two\\nlines)""#;
    let [set, remove] = ["set", "remove"].map(|change| format!(r#"change="{change} override""#));
    for (line, change, before, after) in [
        (0, &set, "none\"", quota),
        (1, &set, "100/min until", "exempt until"),
        (2, &remove, "exempt until", "none\""),
        (3, &remove, "none\"", "none\""),
    ] {
        let [before, after] =
            [("before", before), ("after", after)].map(|(when, is)| format!("{when}=\"{is}"));
        let parts = [&**change, &*before, &*after, r#"user="ops""#, &*key];
        assert_contains(&lines[line], parts);
    }
    assert_eq!((lines.len(), log.text().contains("sk_1")), (4, false));
}

#[tokio::test]
async fn a_mistake_sets_nothing() {
    let api = support::api();
    for (field, value, expected) in [
        ("quota", json!("no quota"), "invalid quota"),
        ("quota", json!("8 concurrent"), "policy \"api\""),
        ("exempt", json!(true), "either a quota"),
        ("until", json!("tomorrow"), "RFC 3339"),
        ("until", json!("2001-01-15T08:00:00Z"), "has ended already"),
        ("seconds", json!(0), "hundred years"),
        ("note", json!("x".repeat(201)), "201 bytes"),
        ("policy", json!("no-such-policy"), "no policy"),
    ] {
        let mut body = json!({"policy": "api", "key": "sk_1", "quota": "100/min"});
        body[field] = value;
        let (status, problem) = call(&api, Method::PUT, &body).await;
        let detail = problem["detail"].as_str().expect("a detail");
        assert!((400..500).contains(&status), "{field}: {status}");
        assert_contains(detail, [expected]);
    }
    assert_eq!(api.get("/overrides").await.json["total"], 0);
}
