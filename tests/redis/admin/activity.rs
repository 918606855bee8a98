//! What this process did: counts, the most rejected keys, explanations and events.

use serde_json::{Value, json};
use tollgate::Key;

use crate::admin::support;

#[tokio::test]
async fn activity_counts_the_requests_of_each_policy_and_each_outcome() {
    let (api, limiter) = support::observed();
    for _ in 0..13 {
        let _ = limiter.check(("api", Key::secret("sk_1"))).await;
    }
    let activity = api.get("/activity").await.json;
    let policies = activity["policies"].as_array().expect("policies");
    let of = |name: &str| {
        policies
            .iter()
            .find(|policy| policy["policy"] == name)
            .expect("a policy")
    };
    let expected = json!({"policy": "api", "within": 8, "near": 2, "over": 3, "shadow_over": 0, "units": 10, "bans": 0, "dropped_write_backs": 0});
    assert_eq!(*of("api"), expected);
    let expected = json!({"policy": "api-next", "within": 4, "near": 1, "over": 0, "shadow_over": 8, "units": 5, "bans": 0, "dropped_write_backs": 0});
    assert_eq!(*of("api-next"), expected);
    assert_eq!(
        (
            &activity["outcomes"]["admitted"],
            &activity["outcomes"]["rejected"]
        ),
        (&json!(10), &json!(3))
    );
    assert_eq!(activity["process"]["pid"], std::process::id());
    assert_eq!(
        activity["latency"]["store"],
        json!({"calls": 0, "p50_us": null, "p99_us": null})
    );
}

#[tokio::test]
async fn the_keys_with_the_most_rejections_are_listed_and_can_be_reset_as_they_are_shown() {
    let (api, limiter) = support::observed();
    for (key, requests) in [("sk_1", 12), ("sk_2", 15), ("sk_3", 3)] {
        for _ in 0..requests {
            let _ = limiter.check(("api", Key::secret(key))).await;
        }
    }
    let top = api.get("/top?policy=api").await.json;
    let shown = |key: &str| Key::secret(key).as_str().replace('#', "hash:");
    let expected = json!([{"policy": "api", "rejected": 7, "keys": [
        {"key": shown("sk_2"), "rejected": 5, "at_most_over": 0},
        {"key": shown("sk_1"), "rejected": 2, "at_most_over": 0},
    ]}]);
    assert_eq!(top["policies"], expected);
    let one = api.get("/top?policy=api&n=1").await.json;
    assert_eq!(one["policies"][0]["keys"].as_array().map(Vec::len), Some(1));
    let key = &top["policies"][0]["keys"][0]["key"];
    let reset = api
        .done("/reset", json!({"policy": "api", "key": key}))
        .await;
    assert_eq!(reset["before"][0]["remaining"], 0);
    assert!(
        limiter
            .check(("api", Key::secret("sk_2")))
            .await
            .is_admitted()
    );
    let all = api.get("/top").await.json;
    assert_eq!(
        all["policies"].as_array().map(Vec::len),
        Some(support::policies().len())
    );
}

#[tokio::test]
async fn events_have_the_activity_as_their_data() {
    let (api, limiter) = support::observed();
    let _ = limiter.check(("api", Key::secret("sk_1"))).await;
    let events = api.get("/events").await;
    let text = events.json.as_str().expect("text");
    let data = text
        .strip_prefix("event: activity\ndata: ")
        .expect("an event");
    let activity: Value =
        serde_json::from_str(data.strip_suffix("\n\n").expect("one event")).expect("JSON");
    assert_eq!(activity["outcomes"]["admitted"], 1);
}

#[tokio::test]
async fn a_process_sends_events_to_64_clients_at_most() {
    let (api, _) = support::observed();
    let mut streams = support::event_streams(&api).await;
    let answer = api.get("/events").await;
    assert_eq!(answer.status, 503);
    // The next client is served once another has left.
    streams.pop();
    assert_eq!(api.get("/events").await.status, 200);
}

#[tokio::test]
async fn explain_tells_which_policies_apply_and_how_the_request_would_be_decided() {
    let (api, limiter) = support::observed();
    let request = json!({
        "method": "GET", "uri": "/orders?id=7", "headers": [["x-api-key", "sk_1"]], "peer": "192.0.2.1",
    });
    let explanation = api.done("/explain", request.clone()).await;
    assert_eq!(explanation["outcome"], "admitted");
    for _ in 0..10 {
        assert!(
            limiter
                .check(("api", Key::secret("sk_1")))
                .await
                .is_admitted()
        );
    }
    let policies = explanation["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), support::policies().len());
    assert_eq!(
        (&policies[1]["key"], &policies[1]["remaining"]),
        (&json!("192.0.2.1"), &json!(20))
    );
    assert_eq!(
        (&policies[3]["policy"], &policies[3]["applies"]),
        (&json!("exports"), &json!(false))
    );
    let rejected = api.done("/explain", request).await;
    assert_eq!(rejected["outcome"], "rejected");
    for mistake in [
        json!({"method": "G ET", "uri": "/"}),
        json!({"method": "GET", "uri": "no path"}),
        json!({"method": "GET", "uri": "/", "peer": "localhost"}),
        json!({"method": "GET", "uri": "/", "headers": [["a b", "c"]]}),
        json!({"method": "GET", "uri": "/", "headers": [["a", "b\n"]]}),
    ] {
        assert_eq!(
            api.post("/explain", &mistake).await.status,
            400,
            "{mistake}"
        );
    }
}

#[tokio::test]
async fn explain_shows_the_key_and_the_status_under_each_policy_that_applies() {
    let policy = tollgate::Policy::new("api", tollgate::Quota::requests(2).per_hour())
        .key(tollgate::extract::header("x-api-key"));
    let limiter = tollgate::Limiter::builder()
        .policy(policy)
        .skip_path("/health");
    let limiter = limiter.build().expect("a limiter");
    let api = support::Api::of(&limiter);
    assert!(
        limiter
            .check(("api", Key::secret("sk_1")))
            .times(2)
            .await
            .is_admitted()
    );
    let request = json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "sk_1"]]});
    let explanation = api.done("/explain", request).await;
    assert_eq!(explanation["outcome"], "rejected");
    let api_policy = &explanation["policies"][0];
    assert_eq!(
        api_policy["key"],
        Key::secret("sk_1").as_str().replace('#', "hash:")
    );
    assert_eq!(
        (&api_policy["remaining"], &api_policy["would_admit"]),
        (&json!(0), &json!(false))
    );
    let skipped = api
        .done("/explain", json!({"method": "GET", "uri": "/health"}))
        .await;
    assert_eq!(
        (&skipped["outcome"], &skipped["policies"][0]["applies"]),
        (&json!("skipped"), &json!(false))
    );
    assert!(
        skipped["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("/health")),
        "{skipped}"
    );
}
