//! Documents of all kinds are replayed.

use serde_json::json;

use super::{log, scene::Scene};
use crate::program::assert_fields;

/// Each strategy, charge mode and kind of code, and secrets that are not there.
const DOCUMENT: &str = r#"
skip = { with = ["internal"] }
on_rejection = "page"
on_store_error = { local_fallback = { processes = 4 } }

[store]
url = "${A_VARIABLE_THAT_IS_NOT_SET}"

[bearer]
hash_key = "${A_VARIABLE_THAT_IS_NOT_SET}"

[client_ip]
trusted_proxies = ["10.0.0.0/8"]

[policies.gcra]
quota = "100/min"
key = "user | client_ip"
tier = "plan"
tiers = { pro = "1000/min" }
cost = "pages"

[policies.own]
quota = "100/min"
strategy = "own"

[policies.calendar]
quota = "1000/day"
strategy = "calendar_window zone Europe/Berlin"
key = "bearer | peer"
charge = { after = "teapot" }

[policies.list]
quota = "1000/h"
strategy = "list_window"
key = "path"
caller = "peer"
charge_rejected = true

[policies.sliding]
quota = "1000/h"
strategy = "sliding_window buckets 10"
quota_with = "quota"

[policies.bucket]
quota = "100/s"
strategy = "token_bucket"
key = ["header:user-agent", "host"]
lease = { max_units = 64 }

[policies.in-flight]
quota = "20 concurrent"
key = "global"

[policies.banned]
quota = "20/min"
strategy = "ban 10s max 1h"

[policies.locked]
block_list = true
by_hand = true

[policies.mail]
quota = "1/h"
by_hand = true

[policies.stricter]
quota = "50/min"
shadow = true
"#;

#[test]
fn a_document_with_every_kind_of_policy_and_code_is_replayed() {
    let mut lines = String::new();
    for request in log::requests(5_000) {
        request.write_json(&mut lines);
    }
    let scene = Scene::new(DOCUMENT, &lines);
    let run = scene.run(&["access.log"]);
    assert_eq!((run.code, &*run.stdout), (Some(2), ""));
    run.assert_stderr("an unknown cost \"pages\"");

    let run = scene.run(&["access.log", "--json", "--assume-registered"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_fields(&report, json!({ "requests": 5_000, "unreadable": 0 }));
    assert!(report["rejected"].as_u64() > Some(0));
    let policies = report["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), 11);
    for policy in policies {
        let is_replayed = policy["applied"].as_u64() > Some(0);
        let is_by_hand = ["locked", "mail"]
            .iter()
            .any(|name| policy["policy"] == *name);
        assert_eq!(is_replayed, !is_by_hand, "{policy}");
    }
}

#[test]
fn the_document_of_the_guide_is_replayed() {
    let guide = include_str!("../../../../docs/replay.md");
    let (_, document) = guide.split_once("```toml\n").expect("a document");
    let (document, _) = document.split_once("```").expect("its end");
    let line = "192.0.2.1 - - [15/Jan/2027:08:00:00 +0000] \"POST /login HTTP/1.1\" 401 1\n";
    let report = Scene::new(document, &line.repeat(20)).report(&["access.log"]);
    assert_eq!(report["policies"][1]["policy"], "failed-logins");
    assert_eq!(report["policies"][1]["rejected"], 10);
}
