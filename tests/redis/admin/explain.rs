//! Explanations of requests as operators give them. `explain` holds explanations against decisions.

use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

const NO_PEER: &str = "the request as given has no peer address";

/// A policy of one request an hour.
fn policy(name: &'static str) -> Policy {
    Policy::new(name, Quota::requests(1).per_hour())
}

/// A request for `/` with one header.
fn with_header(name: &str, value: &str) -> Value {
    json!({"method": "GET", "uri": "/", "headers": [[name, value]]})
}

/// The same request, with keys that are given.
fn with_keys(request: &Value, keys: Value) -> Value {
    let mut request = request.clone();
    request["keys"] = keys;
    request
}

fn hint(explained: &Value) -> &str {
    explained["hint"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn explain_tells_which_policies_apply_why_and_how_the_request_would_be_decided() {
    let builder = Limiter::builder().store(stores::frozen().0);
    let limiter = stores::limiter(builder.skip_path("/health"), support::policies());
    let api = Api::of(&limiter);
    let mut request = with_header("x-api-key", "sk_1");
    let explained = api.done("/explain", request.clone()).await;
    assert_contains(hint(&explained), [NO_PEER, "`peer`", "--peer"]);
    let reason = "counted with all requests without a client address";
    for (name, reason) in [
        ("address", json!(reason)),
        ("abuse", json!(reason)),
        ("api", json!(null)),
    ] {
        let policy = under(&explained["policies"], name);
        assert_has(policy, json!({"reason": reason}));
    }
    request["peer"] = json!("192.0.2.1");
    let explained = api.done("/explain", request.clone()).await;
    assert_has(&explained, json!({"outcome": "admitted", "hint": null}));
    let policies = explained["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), support::policies().len());
    let address = json!({"key": "192.0.2.1", "remaining": 20, "reason": null});
    assert_has(&policies[1], address);
    assert_has(&policies[3], json!({"policy": "exports", "applies": false}));
    let admit = limiter.admit(("api", Key::secret("sk_1"))).cost(10);
    assert!(admit.await.is_ok());
    let explained = api.done("/explain", request.clone()).await;
    assert_eq!(explained["outcome"], "rejected");
    let used_up = json!({"key": shown("sk_1"), "remaining": 0, "would_admit": false});
    assert_has(under(&explained["policies"], "api"), used_up);
    request["uri"] = json!("/health");
    let skipped = api.done("/explain", request).await;
    assert_has(&skipped, json!({"outcome": "skipped"}));
    assert_eq!(skipped["policies"][0]["applies"], false);
    assert_contains(skipped["reason"].as_str().expect("a reason"), ["/health"]);
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
async fn a_key_that_is_given_is_explained_in_place_of_the_requests_own() {
    let builder = Limiter::builder().deny(KeyList::new("api", [Key::secret("sk_stolen")]));
    let policies = [
        policy("api").key(extract::header("x-api-key")),
        policy("both").key((extract::peer(), extract::method())),
    ];
    let limiter = stores::limiter(builder, policies);
    let api = Api::of(&limiter);
    let used = [("api", Key::secret("sk_1"))];
    assert!(limiter.check(used).await.is_admitted());
    let request = with_header("x-api-key", "sk_2");
    let key = shown("sk_1");
    // The text of a key, or the key as the answer shows it. No key needs a peer address.
    for text in ["sk_1", &key] {
        let keys = json!({"api": text, "both": ["192.0.2.7", "GET"]});
        let explained = api.done("/explain", with_keys(&request, keys)).await;
        assert_has(&explained, json!({"outcome": "rejected", "hint": null}));
        let api = under(&explained["policies"], "api");
        assert_has(api, json!({"key": key, "remaining": 0}));
        let both = under(&explained["policies"], "both");
        assert_has(both, json!({"key": "192.0.2.7+GET"}));
    }
    // Access lists see it, too.
    for (request, outcome) in [
        (
            with_keys(&request, json!({"api": "sk_stolen"})),
            "deny_listed",
        ),
        (request.clone(), "admitted"),
    ] {
        assert_eq!(api.done("/explain", request).await["outcome"], outcome);
    }
    let unknown = with_keys(&request, json!({"none": "sk_1"}));
    assert_eq!(api.post("/explain", &unknown).await.status, 404);
    for mistake in [json!({"both": "sk_1"}), json!({"api": ["a", "b"]})] {
        let text = api.mistake("/explain", with_keys(&request, mistake)).await;
        assert!(!text.contains("sk_1"), "{text}");
    }
}
