//! Explanations of requests as operators give them.

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
async fn a_request_without_a_peer_address_is_said_to_lack_it() {
    let api = support::api();
    let mut request = with_header("x-api-key", "sk_1");
    let explained = api.done("/explain", request.clone()).await;
    assert!(hint(&explained).starts_with(NO_PEER), "{explained}");
    assert_contains(hint(&explained), ["`peer`", "--peer"]);
    let reason = "counted with all requests without a client address";
    for (name, reason) in [
        ("address", json!(reason)),
        ("abuse", json!(reason)),
        ("api", json!(null)),
    ] {
        assert_has(
            under(&explained["policies"], name),
            json!({"reason": reason}),
        );
    }
    request["peer"] = json!("192.0.2.7");
    let explained = api.done("/explain", request).await;
    assert_eq!(hint(&explained), "");
    let address = json!({"reason": null, "key": "192.0.2.7"});
    assert_has(under(&explained["policies"], "address"), address);
}

#[tokio::test]
async fn a_peer_address_is_asked_for_only_if_a_key_depends_on_it() {
    let p = || policy("p");
    let either = extract::header("x-user").or_else(extract::peer());
    for (policy, with_user, without) in [
        (p().key(extract::header("x-user")), false, false),
        (p().key(either), false, true),
        (p().key((extract::peer(), extract::path())), true, true),
        (p().key(extract::client_ip()), true, true),
        (p().by_hand(), false, false),
        (p().skip_path("/"), false, false),
        // Rejected, rather than counted together.
        (p().missing_key(MissingKey::Reject), true, true),
    ] {
        let shown = format!("{policy:?}");
        let api = Api::of(limiter([policy]));
        for (name, expected) in [("x-user", with_user), ("x-other", without)] {
            let explained = api.done("/explain", with_header(name, "alice")).await;
            assert_eq!(
                hint(&explained).starts_with(NO_PEER),
                expected,
                "{shown}: {explained}"
            );
        }
    }
}

#[tokio::test]
async fn policies_by_hand_are_said_to_be_left_out_of_what_admits() {
    let by_user = policy("api").key(extract::header("x-user"));
    let limiter = limiter([by_user, policy("account").by_hand()]);
    let api = Api::of(&limiter);
    let call = async |policy| limiter.check([(policy, "alice")]).await.is_admitted();
    assert!(call("account").await && !call("account").await);
    let request = with_header("x-user", "alice");

    let explained = api.done("/explain", request.clone()).await;
    assert_eq!(explained["outcome"], "admitted");
    assert_has(
        under(&explained["policies"], "account"),
        json!({"reason": "by hand"}),
    );
    assert_contains(hint(&explained), ["not evaluated", ": account;"]);
    // With its key it is evaluated.
    for (key, outcome) in [("bob", "admitted"), ("alice", "rejected")] {
        let request = with_keys(&request, json!({"account": key}));
        let explained = api.done("/explain", request).await;
        assert_has(&explained, json!({"outcome": outcome, "hint": null}));
        assert_has(
            under(&explained["policies"], "account"),
            json!({"key": key}),
        );
    }
    assert!(call("api").await);
    let explained = api.done("/explain", request).await;
    assert_has(&explained, json!({"outcome": "rejected", "hint": null}));
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
    let with = |keys| with_keys(&request, keys);
    let keys = json!({"api": "sk_1", "both": ["192.0.2.7", "GET"]});
    let explained = api.done("/explain", with(keys)).await;
    // No key needs a peer address.
    assert_has(&explained, json!({"outcome": "rejected", "hint": null}));
    let key = shown("sk_1");
    for (name, expected) in [
        ("api", json!({"key": key, "remaining": 0})),
        ("both", json!({"key": "192.0.2.7+GET"})),
    ] {
        assert_has(under(&explained["policies"], name), expected);
    }
    // As the answer shows it.
    let explained = api.done("/explain", with(json!({"api": key}))).await;
    assert_has(under(&explained["policies"], "api"), json!({"key": key}));
    // Access lists see it, too.
    let explained = api
        .done("/explain", with(json!({"api": "sk_stolen"})))
        .await;
    assert_eq!(explained["outcome"], "deny_listed");
    let unknown = api.post("/explain", &with(json!({"none": "sk_1"}))).await;
    assert_eq!(unknown.status, 404);
    for mistake in [json!({"both": "sk_1"}), json!({"api": ["a", "b"]})] {
        let text = api.mistake("/explain", with(mistake)).await;
        assert!(!text.contains("sk_1"), "{text}");
    }
    let explained = api.done("/explain", request).await;
    assert_eq!(explained["outcome"], "admitted");
}
