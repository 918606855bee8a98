//! What this process did: counts, the most rejected keys, explanations and events.

use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

#[tokio::test]
async fn activity_counts_the_requests_of_each_policy_and_each_outcome() {
    let (api, limiter) = support::observed();
    for _ in 0..13 {
        let _ = limiter.check(("api", Key::secret("sk_1"))).await;
    }
    let activity = api.get("/activity").await.json;
    let policies = activity["policies"].as_array().expect("policies");
    let of = |name: &str| {
        let mut policies = policies.iter();
        policies
            .find(|policy| policy["policy"] == name)
            .expect(name)
    };
    let expected = json!({"policy": "api", "within": 8, "near": 2, "over": 3, "shadow_over": 0, "units": 10, "bans": 0, "dropped_write_backs": 0});
    assert_eq!(*of("api"), expected);
    let expected = json!({"policy": "api-next", "within": 4, "near": 1, "over": 0, "shadow_over": 8, "units": 5, "bans": 0, "dropped_write_backs": 0});
    assert_eq!(*of("api-next"), expected);
    assert_eq!(activity["outcomes"]["admitted"], 10);
    assert_eq!(activity["outcomes"]["rejected"], 3);
    assert_eq!(activity["process"]["pid"], std::process::id());
    let latency = json!({"calls": 0, "p50_us": null, "p99_us": null});
    assert_eq!(activity["latency"]["store"], latency);
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
    let expected = json!([{"policy": "api", "rejected": 7, "keys": [
        {"key": shown("sk_2"), "rejected": 5, "at_most_over": 0},
        {"key": shown("sk_1"), "rejected": 2, "at_most_over": 0},
    ]}]);
    assert_eq!(top["policies"], expected);
    let one = api.get("/top?policy=api&n=1").await.json;
    assert_eq!(one["policies"][0]["keys"].as_array().map(Vec::len), Some(1));
    let key = &top["policies"][0]["keys"][0]["key"];
    let reset = api.done("/reset", about("api", key)).await;
    assert_eq!(reset["before"][0]["remaining"], 0);
    let check = limiter.check(("api", Key::secret("sk_2")));
    assert!(check.await.is_admitted());
    let all = api.get("/top").await.json;
    let policies = all["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), support::policies().len());
}

#[tokio::test]
async fn events_have_the_activity_as_their_data() {
    let (api, limiter) = support::observed();
    let _ = limiter.check(("api", Key::secret("sk_1"))).await;
    let events = api.get("/events").await;
    let text = events.json.as_str().expect("text");
    let data = text.strip_prefix("event: activity\ndata: ");
    let data = data.and_then(|data| data.strip_suffix("\n\n"));
    let activity: Value = serde_json::from_str(data.expect("one event")).expect("JSON");
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
        let check = limiter.check(("api", Key::secret("sk_1")));
        assert!(check.await.is_admitted());
    }
    let policies = explanation["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), support::policies().len());
    assert_eq!(policies[1]["key"], "192.0.2.1");
    assert_eq!(policies[1]["remaining"], 20);
    assert_eq!(policies[3]["policy"], "exports");
    assert_eq!(policies[3]["applies"], false);
    let rejected = api.done("/explain", request).await;
    assert_eq!(rejected["outcome"], "rejected");
    for mistake in [
        json!({"method": "G ET", "uri": "/"}),
        json!({"method": "GET", "uri": "no path"}),
        json!({"method": "GET", "uri": "/", "peer": "localhost"}),
        json!({"method": "GET", "uri": "/", "headers": [["a b", "c"]]}),
        json!({"method": "GET", "uri": "/", "headers": [["a", "b\n"]]}),
    ] {
        api.mistake("/explain", mistake).await;
    }
}

#[tokio::test]
async fn explain_shows_the_key_and_the_status_under_each_policy_that_applies() {
    let policy = Policy::new("api", Quota::requests(2).per_hour());
    let builder = Limiter::builder().store(stores::frozen().0);
    let policy = policy.key(extract::header("x-api-key"));
    let limiter = stores::limiter(builder.skip_path("/health"), [policy]);
    let api = Api::of(&limiter);
    let check = limiter.check(("api", Key::secret("sk_1"))).times(2);
    assert!(check.await.is_admitted());
    let request = json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "sk_1"]]});
    let explanation = api.done("/explain", request).await;
    assert_eq!(explanation["outcome"], "rejected");
    let api_policy = &explanation["policies"][0];
    assert_eq!(api_policy["key"], shown("sk_1"));
    assert_eq!(api_policy["remaining"], 0);
    assert_eq!(api_policy["would_admit"], false);
    let request = json!({"method": "GET", "uri": "/health"});
    let skipped = api.done("/explain", request).await;
    assert_eq!(skipped["outcome"], "skipped");
    assert_eq!(skipped["policies"][0]["applies"], false);
    let reason = skipped["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("/health"), "{skipped}");
}
