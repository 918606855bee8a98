//! The routes about keys: their status, and changes with their lines in the log.

use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

fn api_key() -> Key {
    Key::secret("sk_1")
}

/// A limiter under whose policy `api` the key has no unit left, and its API.
async fn used_up() -> (Limiter, Api) {
    let (limiter, _) = support::in_process();
    let admit = limiter.admit(("api", api_key())).cost(10);
    assert!(admit.await.is_ok());
    let api = Api::of(&limiter);
    (limiter, api)
}

#[tokio::test]
async fn a_key_is_peeked_at_credited_and_reset_by_its_text_or_hash_and_changes_are_logged() {
    let (limiter, api) = used_up().await;
    let (log, _guard) = Log::of_info();
    for key in ["sk_1".to_owned(), shown("sk_1")] {
        let status = api.done("/peek", about("api", key)).await;
        let expected = json!({
            "policy": "api", "key": shown("sk_1"), "limit": 10, "remaining": 0, "cost": 1,
            "retry_after_ms": 6_000, "reset_after_ms": 60_000, "would_admit": false,
        });
        assert_eq!(status, expected);
    }
    let other = api.done("/peek", about("address", "192.0.2.1")).await;
    assert_has(&other, json!({"remaining": 20, "retry_after_ms": 0}));
    // Units up to those in use.
    for (units, credited, after) in [(4, 4, 4), (u64::MAX, 6, 10)] {
        let credit = json!({"policy": "api", "key": "sk_1", "units": units});
        let answer = api.done("/credit", credit).await;
        let after = json!({"remaining": after});
        assert_has(&answer, json!({"credited": credited, "after": after}));
    }
    let admit = limiter.admit(("api", api_key())).cost(10);
    assert!(admit.await.is_ok());
    let reset = api.done("/reset", about("api", "sk_1")).await;
    let before = json!([{"policy": "api", "remaining": 0}]);
    let after = json!([{"remaining": 10}]);
    assert_has(&reset, json!({"before": before, "after": after}));
    assert!(limiter.admit(("api", api_key())).await.is_ok());
    let lines = log.lines("changed by the admin API");
    assert_eq!(lines.len(), 3, "{lines:?}");
    let key = format!("key=\"{}\"", shown("sk_1"));
    let common = [
        "INFO",
        "tollgate::admin",
        "user=\"ops\"",
        "policy=\"api\"",
        &key,
    ];
    let none_left = "before=\"0 of 10 left, retry after 6000 ms\"";
    for (line, parts) in [
        (0, ["units=4 ", none_left, "after=\"4 of 10 left\""]),
        (
            1,
            [
                "change=\"credit\"",
                "before=\"4 of",
                "after=\"10 of 10 left\"",
            ],
        ),
        (
            2,
            ["change=\"reset\"", none_left, "after=\"10 of 10 left\""],
        ),
    ] {
        assert_contains(&lines[line], common.into_iter().chain(parts));
    }
}

#[tokio::test]
async fn a_policy_that_takes_settings_from_requests_is_reported_by_its_own_quota_or_a_tiers() {
    let paid = Quota::requests(1_000).per_day();
    let policy = Policy::new("tiers", Quota::requests(10).per_day())
        .key(extract::header("x-api-key"))
        .quota_with(|_| None)
        .cost_with(|_| 7)
        .skip_path("/health")
        .tier_quotas([paid]);
    let limiter = limiter([policy]);
    let check = limiter.check(("tiers", api_key())).quota_for("tiers", paid);
    assert!(check.cost(900).await.is_admitted());
    let api = Api::of(&limiter);
    let own = api.done("/peek", about("tiers", "sk_1")).await;
    assert_has(&own, json!({"limit": 10, "remaining": 1, "cost": 1}));
    let mut tier = json!({"policy": "tiers", "key": "sk_1", "quota": "1000/day"});
    assert_eq!(api.done("/peek", tier.clone()).await["remaining"], 100);
    tier["units"] = json!(50);
    let credited = api.done("/credit", tier).await;
    assert_has(
        &credited,
        json!({"credited": 50, "after": {"remaining": 150}}),
    );
}

#[tokio::test]
async fn reset_without_a_policy_is_about_all_policies_that_can_read_the_text() {
    let (limiter, _) = support::in_process();
    let api = Api::of(&limiter);
    let address = Key::ip([192, 0, 2, 1].into());
    let keys = Keys::from(vec![("address", address), ("shared", KEY)]);
    assert!(limiter.admit(keys.clone()).await.is_ok());
    let reset = api.done("/reset", json!({"key": "192.0.2.1"})).await;
    // An API key may look like an address. The key of all requests has no such text.
    let names = ["api", "address", "exports", "abuse", "blocked", "api-next"];
    let before = names.map(|name| json!({"policy": name}));
    assert_has(&reset, json!({"before": before}));
    let status = limiter.peek(keys).await.expect("a status");
    assert_eq!((status.left("address"), status.left("shared")), (20, 4));
    let reset = api.done("/reset", json!({"key": "*"})).await;
    under(&reset["before"], "shared");
}

#[tokio::test]
async fn callers_are_those_whose_charges_count_now() {
    let (limiter, _) = support::in_process();
    let api = Api::of(&limiter);
    for caller in [Key::new("alice"), Key::secret("sk_1"), Key::new("key:bob")] {
        let keys = Keys::from(vec![("shared", KEY)]).caller(caller);
        assert!(limiter.admit(keys).await.is_ok());
    }
    let callers = api.done("/callers", about("shared", "*")).await;
    let expected = json!(["alice", shown("sk_1"), "key:key:bob"]);
    assert_eq!(callers["callers"], expected);
    let none = api.done("/callers", about("api", "sk_1")).await;
    assert_eq!(none["callers"], json!([]));
}

#[tokio::test]
async fn changes_that_fail_or_panic_are_logged_and_those_that_a_policy_does_not_support_are_not() {
    let (log, _guard) = Log::of_info();
    let api = support::api();
    for (path, body) in [
        (
            "/block",
            json!({"policy": "api", "key": "sk_1", "seconds": 60}),
        ),
        ("/unblock", about("api", "sk_1")),
        (
            "/credit",
            json!({"policy": "shared", "key": "*", "units": 1}),
        ),
    ] {
        api.mistake(path, body).await;
    }
    assert_eq!(log.text(), "");
    let api = Api::of(support::unreachable());
    let answer = api.post("/reset", &about("api", "sk_1")).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    let parts = ["user=\"ops\"", &*shown("sk_1")];
    assert_logged(&log, "failed, and may have been made", parts);

    let api = Api::of(support::panicking().await);
    for (change, policy) in [
        ("credit", "api"),
        ("block", "blocked"),
        ("unblock", "blocked"),
        ("reset", "api-next"),
    ] {
        let mut body = support::good_body(&format!("/{change}"));
        body["policy"] = json!(policy);
        let answer = api.post(&format!("/{change}"), &body).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        let detail = answer.json["detail"].as_str().expect("a detail");
        assert_contains(detail, ["panicked"]);
        let line = format!("change=\"{change}\" policy=\"{policy}\"");
        assert_logged(&log, &line, ["WARN", "user=\"ops\"", detail]);
    }
}

#[tokio::test]
async fn a_change_that_was_begun_is_completed_and_logged_if_its_client_disconnects() {
    let (limiter, api) = used_up().await;
    let (log, _guard) = Log::of_info();
    let body = about("api", "sk_1");
    let call = api.post("/reset", &body);
    // Polled once, and dropped while the change is made.
    assert!(call.now_or_never().is_none());
    let is_logged = async || log.lines("change=\"reset\"").len() == 1;
    until("the change is logged", is_logged).await;
    let status = limiter.peek(("api", api_key())).await.expect("a status");
    assert_eq!(status.left("api"), 10);
}
