//! Blocks: how they are made, listed and ended, and what is known of a blocked key.

use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

/// A body that blocks a key under a policy.
fn block(policy: &str, key: impl serde::Serialize, seconds: u64) -> Value {
    json!({"policy": policy, "key": key, "seconds": seconds})
}

const UNTIL: &str = "2027-01-15T09:00:00Z";

#[tokio::test]
async fn block_and_unblock_hold_for_the_bans_that_can_read_the_text() {
    let (limiter, clock) = support::in_process();
    let api = Api::of(&limiter);
    let (log, _guard) = Log::of_info();
    // A block list has no quota.
    let mut status = json!({
        "policy": "blocked", "key": shown("192.0.2.1"), "cost": 1, "retry_after_ms": 0, "reset_after_ms": 0, "would_admit": true,
    });
    let peeked = api.done("/peek", about("blocked", "192.0.2.1")).await;
    assert_eq!(peeked, status);
    let by_hand = json!({"key": "192.0.2.1", "seconds": 3_600});
    let blocked = api.done("/block", by_hand).await;
    status["would_admit"] = json!(false);
    status["blocked_until"] = json!(UNTIL);
    for wait in ["retry_after_ms", "reset_after_ms"] {
        status[wait] = json!(3_600_000);
    }
    let peeked = api.done("/peek", about("blocked", "192.0.2.1")).await;
    assert_eq!(peeked, status);
    let request = json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "192.0.2.1"]]});
    let explained = api.done("/explain", request).await;
    let explained = under(&explained["policies"], "blocked");
    assert_has(explained, json!({"blocked_until": UNTIL, "limit": null}));
    let of_abuse = json!({"policy": "abuse", "key": "192.0.2.1", "ends_at": UNTIL});
    let of_list = json!({"policy": "blocked", "key": shown("192.0.2.1"), "ends_at": UNTIL});
    assert_eq!(blocked["blocked"], json!([of_abuse, of_list]));
    let blocks = api.get("/blocks?policy=abuse").await.json;
    let mut listed = of_abuse.clone();
    listed["ends_in_ms"] = json!(3_600_000);
    assert_eq!(blocks, json!({"blocks": [listed], "complete": true}));
    let all = api.get("/blocks?limit=2").await.json;
    assert_has(&all, json!({"blocks": [{}, {}], "complete": true}));
    let one = api.get("/blocks?limit=1").await.json;
    assert_has(&one, json!({"blocks": [{}], "incomplete": "limit"}));
    for wrong in ["limit=0", "limit=x", "limit=10001", "policy=api"] {
        let answer = api.get(&format!("/blocks?{wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
    let address = Key::ip([192, 0, 2, 1].into());
    let keys = [("address", address), ("abuse", address)];
    assert!(limiter.admit(keys).await.is_err());
    clock.advance(secs(60));

    let unblocked = api.done("/unblock", about("abuse", "192.0.2.1")).await;
    let before = json!([{"retry_after_ms": 3_540_000, "blocked_until": UNTIL}]);
    let after = json!([{"would_admit": true}]);
    assert_has(&unblocked, json!({"before": before, "after": after}));
    assert_eq!(unblocked["unblocked"], json!([of_abuse]));
    assert!(limiter.admit(keys).await.is_ok());
    assert_eq!(log.lines("change=\"block\"").len(), 2);
    let change = format!("seconds=3600 before=\"not blocked\" after=\"blocked until {UNTIL}\"");
    assert_contains(&log.lines("change=\"block\"")[1], [&*change]);
    let lifted = format!("lifted=true before=\"blocked until {UNTIL}\"");
    assert_logged(&log, "change=\"unblock\"", ["policy=\"abuse\"", &*lifted]);
    // Of the bans that can read the text, one still blocks the key, and then none.
    for expected in [json!([of_list]), json!([])] {
        let rest = api.done("/unblock", json!({"key": "192.0.2.1"})).await;
        assert_eq!(rest["unblocked"], expected);
    }
    assert_eq!(log.lines("lifted=true").len(), 2);
    assert_eq!(log.lines("lifted=false").len(), 3);

    api.mistake("/block", block("api", "sk_1", 60)).await;
    for seconds in [json!(0), json!(u64::MAX), json!(1.5)] {
        let body = json!({"key": "192.0.2.1", "seconds": seconds});
        api.mistake("/block", body).await;
    }
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
        for policy in ["api-next", "api", "address"] {
            for _ in 0..30 {
                let _ = limiter.admit((policy, key)).await;
            }
        }
    }
    let top = api.get("/top?n=100").await.json;
    for policy in ["api-next", "api", "address"] {
        let listed = &under(&top["policies"], policy)["keys"];
        let listed = listed.as_array().expect("keys");
        assert_eq!(listed.len(), keys.len(), "{policy}");
        for key in listed.iter().map(|top| &top["key"]) {
            let _case = Case(format!("{key} under {policy}"));
            let status = api.done("/peek", about(policy, key)).await;
            assert_has(&status, json!({"key": key, "remaining": 0}));
            let credit = json!({"policy": policy, "key": key, "units": 1});
            let credited = api.done("/credit", credit).await;
            assert_eq!(credited["after"]["remaining"], 1);
            let reset = api.done("/reset", about(policy, key)).await;
            assert_eq!(reset["before"][0]["remaining"], 1);
            assert_eq!(reset["after"][0]["would_admit"], true);
        }
    }
    for policy in ["blocked", "abuse"] {
        let ban = limiter.policy(policy).expect("a policy");
        for key in keys {
            ban.block(key, secs(60)).await.expect("a block");
        }
        let list = format!("/blocks?policy={policy}");
        let listed = api.get(&list).await.json["blocks"].clone();
        let listed = listed.as_array().expect("a list");
        assert_eq!(listed.len(), keys.len(), "{policy}");
        assert!(listed.iter().any(|block| block["key"] == "key:mallory"));
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
