//! Blocks: how they are made, listed and ended, and what is known of a blocked key.

use tollgate::store::Incomplete;
use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

/// A body that blocks a key under a policy.
fn block(policy: &str, key: &Value, seconds: u64) -> Value {
    json!({"policy": policy, "key": key, "seconds": seconds})
}

#[tokio::test]
async fn block_and_unblock_hold_for_the_bans_that_can_read_the_text() {
    let (limiter, clock) = support::in_process();
    let api = Api::of(&limiter);
    let (log, _guard) = Log::of_info();
    let by_hand = json!({"key": "192.0.2.1", "seconds": 3_600});
    let blocked = api.done("/block", by_hand).await;
    let expected = json!([
        {"policy": "abuse", "key": "192.0.2.1", "ends_at": "2027-01-15T09:00:00Z"},
        {"policy": "blocked", "key": shown("192.0.2.1"), "ends_at": "2027-01-15T09:00:00Z"},
    ]);
    assert_eq!(blocked["blocked"], expected);
    let blocks = api.get("/blocks?policy=abuse").await.json;
    let expected = json!([{
        "policy": "abuse", "key": "192.0.2.1", "ends_at": "2027-01-15T09:00:00Z", "ends_in_ms": 3_600_000,
    }]);
    assert_eq!(blocks, json!({"blocks": expected, "complete": true}));
    let all = api.get("/blocks").await.json;
    assert_eq!(all["blocks"].as_array().map(Vec::len), Some(2));
    for wrong in ["limit=0", "limit=x", "limit=10001", "policy=api"] {
        let answer = api.get(&format!("/blocks?{wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
    let address = Key::ip([192, 0, 2, 1].into());
    let keys = || Keys::from(vec![("address", address), ("abuse", address)]);
    assert!(!limiter.check(keys()).await.is_admitted());
    clock.advance(secs(60));

    let unblocked = api.done("/unblock", about("abuse", "192.0.2.1")).await;
    let before = &unblocked["before"][0];
    assert_eq!(before["retry_after_ms"], 3_540_000);
    assert_eq!(before["blocked_until"], "2027-01-15T09:00:00Z");
    assert_eq!(unblocked["after"][0]["would_admit"], true);
    let lifted =
        json!([{"policy": "abuse", "key": "192.0.2.1", "ends_at": "2027-01-15T09:00:00Z"}]);
    assert_eq!(unblocked["unblocked"], lifted);
    assert!(limiter.check(keys()).await.is_admitted());

    assert_eq!(log.lines("change=\"block\"").len(), 2);
    assert!(log.lines("change=\"block\"")[0].contains("seconds=3600"));
    let lines = log.lines("change=\"unblock\"");
    assert_eq!(lines.len(), 1);
    let lifted = "lifted=true before=\"blocked until 2027-01-15T09:00:00Z\"";
    assert!(lines[0].contains(lifted), "{}", lines[0]);
    for body in [
        json!({"policy": "api", "key": "sk_1", "seconds": 60}),
        json!({"key": "192.0.2.1", "seconds": 0}),
        json!({"key": "192.0.2.1", "seconds": u64::MAX}),
        json!({"key": "192.0.2.1", "seconds": 1.5}),
    ] {
        api.mistake("/block", body).await;
    }
}

#[tokio::test]
async fn an_unblock_of_a_key_that_is_not_blocked_says_that_nothing_was_lifted() {
    let api = support::api();
    let (log, _guard) = Log::of_info();
    let key = json!("192.0.2.1");
    api.done("/block", block("abuse", &key, 60)).await;
    let about = json!({"key": key});
    // Blocked under one of the bans that can read the text.
    let some = api.done("/unblock", about.clone()).await;
    let lifted = some["unblocked"].as_array().expect("a list");
    assert_eq!((lifted.len(), &lifted[0]["policy"]), (1, &json!("abuse")));
    let lines = log.lines("change=\"unblock\"");
    let lifted = |policy: &str| {
        let policy = format!("policy=\"{policy}\"");
        let line = lines.iter().find(|line| line.contains(&policy));
        line.expect("a line").contains("lifted=true")
    };
    assert_eq!((lifted("abuse"), lifted("blocked")), (true, false));
    let none = api.done("/unblock", about).await;
    assert_eq!(none["unblocked"], json!([]));
    assert_eq!(log.lines("lifted=false").len(), 3);
}

#[tokio::test]
async fn a_listed_key_is_unblocked_by_the_text_that_shows_it() {
    let (limiter, _) = support::in_process();
    let api = Api::of(&limiter);
    let hour = secs(3_600);
    let abuse = limiter.policy("abuse").expect("a policy");
    // No request has such an address.
    let keys = [Key::new("mallory"), Key::tuple(["a", "/b"].map(Key::new))];
    for key in keys {
        abuse.block(key, hour).await.expect("a block");
    }
    let listed = api.get("/blocks").await.json;
    let listed = listed["blocks"].as_array().expect("a list").clone();
    let mut texts: Vec<_> = listed.iter().map(|block| &block["key"]).collect();
    texts.sort_by_key(|text| text.to_string());
    assert_eq!(texts, [&json!("key:a+/b"), &json!("key:mallory")]);
    for block in &listed {
        let about = about("abuse", &block["key"]);
        let status = api.done("/peek", about.clone()).await;
        assert_eq!(status["key"], block["key"]);
        assert_eq!(status["would_admit"], false);
        api.done("/unblock", about).await;
    }
    assert_eq!(api.get("/blocks").await.json["blocks"], json!([]));
}

#[tokio::test]
async fn a_list_of_blocks_that_is_not_complete_says_why() {
    for (incomplete, shown) in [
        (Incomplete::Limit, "limit"),
        (Incomplete::Timeout, "timeout"),
        (Incomplete::KeysMoved, "keys_moved"),
    ] {
        let builder = Limiter::builder().store(StubStore::with_incomplete_blocks(incomplete));
        let limiter = stores::limiter(builder, [Policy::block_list("blocked")]);
        let blocks = Api::of(limiter).get("/blocks").await.json;
        let expected = json!({"blocks": [], "complete": false, "incomplete": shown});
        assert_eq!(blocks, expected);
    }
    let api = support::api();
    for key in ["192.0.2.1", "192.0.2.2"] {
        let body = block("abuse", &json!(key), 60);
        api.done("/block", body).await;
    }
    let one = api.get("/blocks?limit=1").await.json;
    assert_eq!(one["incomplete"], "limit");
    assert_eq!(one["blocks"].as_array().map(Vec::len), Some(1));
    let all = api.get("/blocks?limit=2").await.json;
    assert_eq!(all["complete"], true);
    assert_eq!(all.get("incomplete"), None);
}

#[tokio::test]
async fn a_block_list_has_no_quota_and_shows_until_when_a_key_is_blocked() {
    let api = support::api();
    let (log, _guard) = Log::of_info();
    let about = about("blocked", "sk_1");
    let free = json!({
        "policy": "blocked", "key": shown("sk_1"), "cost": 1, "retry_after_ms": 0, "reset_after_ms": 0, "would_admit": true,
    });
    assert_eq!(api.done("/peek", about.clone()).await, free);
    let body = block("blocked", &json!("sk_1"), 3_600);
    api.done("/block", body).await;
    let status = api.done("/peek", about.clone()).await;
    let until = "2027-01-15T09:00:00Z";
    let blocked = json!({
        "policy": "blocked", "key": shown("sk_1"), "cost": 1, "retry_after_ms": 3_600_000, "reset_after_ms": 3_600_000,
        "would_admit": false, "blocked_until": until,
    });
    assert_eq!(status, blocked);
    let request = json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "sk_1"]]});
    let explained = api.done("/explain", request).await;
    let policies = explained["policies"].as_array().expect("policies");
    let of = |name: &str| policies.iter().find(|policy| policy["policy"] == name);
    let list = of("blocked").expect("a policy");
    assert_eq!(list["blocked_until"], until);
    assert_eq!(list.get("limit"), None);
    assert_eq!(of("api").expect("a policy").get("blocked_until"), None);
    let lines = log.lines("change=\"block\"");
    let change = format!("before=\"not blocked\" after=\"blocked until {until}\"");
    assert!(lines[0].contains(&change), "{}", lines[0]);
}

#[tokio::test]
async fn every_key_that_is_listed_is_taken_by_every_route_about_keys() {
    let (api, limiter) = support::observed();
    // Keys of requests, and keys that code of the application makes.
    let keys = [
        Key::ip([192, 0, 2, 1].into()),
        Key::ip("2001:db8::7".parse().expect("an address")),
        Key::network([192, 0, 2, 0].into(), 24, 64),
        Key::new("mallory"),
        Key::new("hash:mallory"),
        Key::new("key:mallory"),
        Key::secret("sk_1"),
        Key::tuple([Key::new("tenant-7"), Key::secret("sk_1")]),
        KEY,
        Key::missing(),
    ];
    for key in keys {
        for policy in ["api", "address"] {
            let used_up = limiter.check((policy, key)).times(30).await;
            assert!(used_up.admitted() < 30);
        }
    }
    let top = api.get("/top?n=100").await.json;
    let top = top["policies"].as_array().expect("policies").clone();
    // A reset under a policy is also one of its candidate, so that comes first.
    for policy in ["api-next", "api", "address"] {
        let listed = top.iter().find(|top| top["policy"] == policy);
        let listed = listed.expect("a policy")["keys"].as_array().expect("keys");
        assert_eq!(listed.len(), keys.len(), "{policy}");
        for key in listed.iter().map(|top| &top["key"]) {
            let status = api.done("/peek", about(policy, key)).await;
            assert_eq!((&status["key"], &status["remaining"]), (key, &json!(0)));
            let credit = json!({"policy": policy, "key": key, "units": 1});
            let credited = api.done("/credit", credit).await;
            assert_eq!(credited["after"]["remaining"], 1, "{key} under {policy}");
            let reset = api.done("/reset", about(policy, key)).await;
            assert_eq!(reset["before"][0]["remaining"], 1, "{key} under {policy}");
            assert_eq!(reset["after"][0]["would_admit"], true);
        }
    }
    for policy in ["blocked", "abuse"] {
        let ban = limiter.policy(policy).expect("a policy");
        for key in keys {
            let blocked = ban.block(key, secs(60));
            blocked.await.expect("a block");
        }
        let list = format!("/blocks?policy={policy}");
        let listed = api.get(&list).await.json["blocks"].clone();
        let listed = listed.as_array().expect("a list");
        assert_eq!(listed.len(), keys.len(), "{policy}");
        for key in listed.iter().map(|block| &block["key"]) {
            let about = about(policy, key);
            let status = api.done("/peek", about.clone()).await;
            assert!(status["blocked_until"].is_string(), "{status}");
            api.done("/reset", about.clone()).await;
            let blocked = api.done("/block", block(policy, key, 120)).await;
            assert_eq!(blocked["blocked"][0]["key"], *key);
            let unblocked = api.done("/unblock", about).await;
            assert_eq!(unblocked["after"][0]["would_admit"], true);
        }
        assert_eq!(api.get(&list).await.json["blocks"], json!([]));
    }
}
