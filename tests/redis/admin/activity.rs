//! What this process did: counts, the most rejected keys, explanations and events.

use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

#[tokio::test]
async fn activity_counts_the_requests_of_each_policy_and_each_outcome() {
    let (api, limiter) = support::observed();
    for _ in 0..13 {
        let key = Key::secret("sk_1");
        let _ = limiter.check([("api", key), ("api-next", key)]).await;
    }
    let activity = api.get("/activity").await.json;
    for expected in [
        json!({"policy": "api", "within": 8, "near": 2, "over": 3, "shadow_over": 0, "units": 10, "bans": 0}),
        json!({"policy": "api-next", "within": 4, "near": 4, "over": 0, "shadow_over": 5, "units": 5, "bans": 0}),
    ] {
        let name = expected["policy"].as_str().expect("a name");
        assert_eq!(*under(&activity["policies"], name), expected);
    }
    let latency = json!({"store": {"calls": 0, "p50_us": null, "p99_us": null}});
    let outcomes = json!({"admitted": 10, "rejected": 3});
    let process = json!({"pid": std::process::id()});
    assert_has(
        &activity,
        json!({"outcomes": outcomes, "process": process, "latency": latency}),
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
    let [first, second] = [("sk_2", 5), ("sk_1", 2)]
        .map(|(key, rejected)| json!({"key": shown(key), "rejected": rejected, "at_most_over": 0}));
    let top = api.get("/top?policy=api").await.json;
    let expected = json!([{"policy": "api", "rejected": 7, "keys": [first, second]}]);
    assert_eq!(top["policies"], expected);
    let one = api.get("/top?policy=api&n=1").await.json;
    assert_has(&one, json!({"policies": [{"keys": [first]}]}));
    let reset = api.done("/reset", about("api", &first["key"])).await;
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
    let explained = api.done("/explain", request.clone()).await;
    assert_eq!(explained["outcome"], "admitted");
    let policies = explained["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), support::policies().len());
    assert_has(&policies[1], json!({"key": "192.0.2.1", "remaining": 20}));
    assert_has(&policies[3], json!({"policy": "exports", "applies": false}));
    for _ in 0..10 {
        let check = limiter.check(("api", Key::secret("sk_1")));
        assert!(check.await.is_admitted());
    }
    let explained = api.done("/explain", request).await;
    assert_eq!(explained["outcome"], "rejected");
    let used_up = json!({"key": shown("sk_1"), "remaining": 0, "would_admit": false});
    assert_has(under(&explained["policies"], "api"), used_up);
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
async fn explain_names_the_condition_by_which_a_request_is_skipped() {
    let builder = Limiter::builder().store(stores::frozen().0);
    let limiter = stores::limiter(builder.skip_path("/health"), support::policies());
    let request = json!({"method": "GET", "uri": "/health"});
    let skipped = Api::of(&limiter).done("/explain", request).await;
    assert_has(&skipped, json!({"outcome": "skipped"}));
    assert_eq!(skipped["policies"][0]["applies"], false);
    assert_contains(skipped["reason"].as_str().expect("a reason"), ["/health"]);
}
