//! Explanations of requests as operators give them.

use tollgate::{KeyExtractor, extract};
use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

const NO_PEER: &str = "the request as given has no peer address";

fn policy_of<'a>(explained: &'a Value, name: &str) -> &'a Value {
    let mut policies = explained["policies"].as_array().expect("policies").iter();
    let policy = policies.find(|policy| policy["policy"] == name);
    policy.expect("the policy")
}

fn hint(explained: &Value) -> &str {
    explained["hint"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_request_without_a_peer_address_is_said_to_lack_it() {
    let api = support::api();
    let mut request = json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "sk_1"]]});
    let explained = api.done("/explain", request.clone()).await;
    let shown = hint(&explained);
    assert!(shown.starts_with(NO_PEER), "{explained}");
    for part in ["`peer`", "--peer"] {
        assert!(shown.contains(part), "{shown}");
    }
    let reason = "counted with all requests without a client address";
    for name in ["address", "abuse"] {
        assert_eq!(policy_of(&explained, name)["reason"], reason, "{name}");
    }
    assert_eq!(policy_of(&explained, "api").get("reason"), None);

    request["peer"] = json!("192.0.2.7");
    let explained = api.done("/explain", request).await;
    assert_eq!(hint(&explained), "");
    assert_eq!(policy_of(&explained, "address").get("reason"), None);
    assert_eq!(policy_of(&explained, "address")["key"], "192.0.2.7");
}

#[tokio::test]
async fn a_peer_address_is_asked_for_only_if_a_key_depends_on_it() {
    let policy = |name: &'static str| Policy::new(name, Quota::requests(5).per_minute());
    let either = || extract::header("x-user").or_else(extract::peer());
    for (policy, with_header, without) in [
        (policy("p").key(extract::header("x-user")), false, false),
        (policy("p").key(either()), false, true),
        (
            policy("p").key((extract::peer(), extract::path())),
            true,
            true,
        ),
        (policy("p").key(extract::client_ip()), true, true),
        (policy("p").by_hand(), false, false),
        (policy("p").skip_path("/"), false, false),
        // Rejected, rather than counted together.
        (policy("p").missing_key(MissingKey::Reject), true, true),
    ] {
        let shown = format!("{policy:?}");
        let limiter = Limiter::builder().policy(policy).build();
        let api = Api::of(limiter.expect("a limiter"));
        for (headers, expected) in [
            (json!([["x-user", "alice"]]), with_header),
            (json!([]), without),
        ] {
            let request = json!({"method": "GET", "uri": "/", "headers": headers});
            let explained = api.done("/explain", request).await;
            let hint = hint(&explained);
            assert_eq!(hint.starts_with(NO_PEER), expected, "{shown}: {explained}");
        }
    }
}

#[tokio::test]
async fn policies_by_hand_are_said_to_be_left_out_of_what_admits() {
    let policy = |name: &'static str| Policy::new(name, Quota::requests(1).per_hour());
    let limiter = Limiter::builder()
        .policy(policy("api").key(extract::header("x-user")))
        .policy(policy("account").by_hand())
        .build();
    let limiter = limiter.expect("a limiter");
    let api = Api::of(limiter.clone());
    let call = async |policy| limiter.check([(policy, "alice")]).await.is_admitted();
    assert!(call("account").await && !call("account").await);

    let request = json!({"method": "GET", "uri": "/", "headers": [["x-user", "alice"]]});
    let explained = api.done("/explain", request.clone()).await;
    assert_eq!(explained["outcome"], "admitted");
    assert_eq!(policy_of(&explained, "account")["reason"], "by hand");
    let shown = hint(&explained);
    assert!(
        shown.contains("not evaluated") && shown.contains(": account;"),
        "{shown}"
    );

    // With its key it is evaluated.
    let mut with_key = request.clone();
    with_key["keys"] = json!({"account": "bob"});
    let explained = api.done("/explain", with_key.clone()).await;
    assert_eq!(
        (&explained["outcome"], hint(&explained)),
        (&json!("admitted"), "")
    );
    with_key["keys"] = json!({"account": "alice"});
    let explained = api.done("/explain", with_key).await;
    assert_eq!(explained["outcome"], "rejected");
    assert_eq!(policy_of(&explained, "account")["key"], "alice");

    assert!(call("api").await);
    let explained = api.done("/explain", request).await;
    assert_eq!(
        (&explained["outcome"], hint(&explained)),
        (&json!("rejected"), "")
    );
}

#[tokio::test]
async fn a_key_that_is_given_is_explained_in_place_of_the_requests_own() {
    let policy = |name: &'static str| Policy::new(name, Quota::requests(1).per_hour());
    let limiter = Limiter::builder()
        .policy(policy("api").key(extract::header("x-api-key")))
        .policy(policy("next").key(extract::peer()).shadow_of("api"))
        .policy(policy("both").key((extract::peer(), extract::method())))
        .deny(KeyList::new("api", [Key::secret("sk_stolen")]))
        .build();
    let limiter = limiter.expect("a limiter");
    let api = Api::of(limiter.clone());
    let used = [("api", Key::secret("sk_1"))];
    assert!(limiter.check(used).await.is_admitted());

    let request = json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "sk_2"]]});
    let mut with_keys = request.clone();
    with_keys["keys"] = json!({"api": "sk_1", "both": ["192.0.2.7", "GET"]});
    let explained = api.done("/explain", with_keys.clone()).await;
    let hash = format!("hash:{}", &Key::secret("sk_1").as_str()[1..]);
    let of = |name| policy_of(&explained, name);
    assert_eq!(explained["outcome"], "rejected");
    assert_eq!(
        (&of("api")["key"], &of("api")["remaining"]),
        (&json!(hash), &json!(0))
    );
    assert_eq!(of("both")["key"], "192.0.2.7+GET");
    // A shadow has the key of the policy that it would replace, and no key needs a peer address.
    assert_eq!((&of("next")["key"], hint(&explained)), (&json!(hash), ""));

    // As the answer shows it.
    with_keys["keys"] = json!({"api": hash});
    let explained = api.done("/explain", with_keys.clone()).await;
    assert_eq!(policy_of(&explained, "api")["key"], json!(hash));
    // Access lists see it, too.
    with_keys["keys"] = json!({"api": "sk_stolen"});
    let explained = api.done("/explain", with_keys.clone()).await;
    assert_eq!(explained["outcome"], "deny_listed");
    with_keys["keys"] = json!({"none": "sk_1"});
    assert_eq!(api.post("/explain", &with_keys).await.status, 404);
    for mistake in [json!({"both": "sk_1"}), json!({"api": ["a", "b"]})] {
        with_keys["keys"] = mistake;
        let text = api.mistake("/explain", with_keys.clone()).await;
        assert!(!text.contains("sk_1"), "{text}");
    }
    let explained = api.done("/explain", request).await;
    assert_eq!(explained["outcome"], "admitted");
}
