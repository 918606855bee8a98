//! What this process did: the most rejected keys, and events. `observe` holds the counts against those of observers.

use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

#[tokio::test]
async fn the_keys_with_the_most_rejections_are_listed_and_can_be_reset_as_they_are_shown() {
    let (api, limiter) = support::observed();
    for (key, requests) in [("sk_1", 12), ("sk_2", 15), ("sk_3", 3)] {
        for _ in 0..requests {
            let _ = limiter.admit(("api", Key::secret(key))).await;
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
    assert!(limiter.admit(("api", Key::secret("sk_2"))).await.is_ok());
    let all = api.get("/top").await.json;
    let policies = all["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), support::policies().len());
}

#[tokio::test]
async fn a_process_sends_events_with_its_activity_to_64_clients_at_most() {
    let (api, limiter) = support::observed();
    let _ = limiter.admit(("api", Key::secret("sk_1"))).await;
    let events = api.get("/events").await;
    let text = events.json.as_str().expect("text");
    let data = text.strip_prefix("event: activity\ndata: ");
    let data = data.and_then(|data| data.strip_suffix("\n\n"));
    let activity: Value = serde_json::from_str(data.expect("one event")).expect("JSON");
    let expected = json!({
        "outcomes": {"admitted": 1},
        "process": {"pid": std::process::id()},
        "latency": {"store": {"calls": 0, "p50_us": null, "p99_us": null}},
    });
    assert_has(&activity, expected);

    let mut streams = support::event_streams(&api).await;
    assert_eq!(api.get("/events").await.status, 503);
    // The next client is served once another has left.
    streams.pop();
    assert_eq!(api.get("/events").await.status, 200);
}
