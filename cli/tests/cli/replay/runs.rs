//! What outcomes, keys and options do to a run.

use serde_json::json;

use super::scene::{Scene, common, line};
use crate::program::assert_fields;

#[test]
fn the_logged_status_decides_what_is_refunded_and_charged() {
    let document = r#"
[policies.refunded]
quota = "2/h"
charge = { refund_unless = "success" }
only = { paths = ["/refunded"] }

[policies.after]
quota = "2/h"
charge = { after = "failure" }
only = { paths = ["/after"] }
"#;
    let statuses = [500, 200, 404, 200, 500, 200];
    let mut log = String::new();
    for (second, status) in (0..).zip(statuses) {
        log += &line(second * 1_000, 10, "/refunded", status);
        log += &line(second * 1_000, 10, "/after", status);
    }
    let report = Scene::new(document, &log).report(&["access.log"]);
    // Both quotas are used up by the fourth request: by two successes, and before it by two failures.
    assert_eq!(report["policies"][0]["rejected"], 2);
    assert_eq!(report["policies"][1]["rejected"], 3);
}

#[test]
fn a_request_is_in_flight_for_as_long_as_the_log_says() {
    let document =
        "[policies.exports]\nquota = \"2 concurrent\"\nstrategy = \"concurrency ttl 1s\"\n";
    let log = [
        // Longer than a permit lasts without renewal.
        line(0, 5_000, "/a", 200),
        line(1_000, 1_000, "/b", 499),
        line(1_999, 10, "/rejected", 200),
        line(2_000, 2_000, "/c", 304),
        line(3_999, 10, "/rejected", 200),
        line(4_000, 100, "/d", 200),
    ];
    let report = Scene::new(document, &log.concat()).report(&["access.log"]);
    assert_eq!(report["policies"][0]["rejected"], 2);
}

#[test]
fn bans_and_shadow_policies_are_reported_as_such() {
    let document = r#"
[policies.api]
quota = "1/min"
only = { paths = ["/a"] }

[policies.banned]
quota = "2/min"
strategy = "ban 10min"
only = { paths = ["/a"] }

[policies.stricter]
quota = "1/h"
shadow = true
only = { paths = ["/b"] }
"#;
    let log: String = (0..20)
        .map(|index| line(index * 10_000, 0, "/a", 200) + &line(index * 10_000, 0, "/b", 200))
        .collect();
    let report = Scene::new(document, &log).report(&["access.log"]);
    let roles = [0, 1, 2].map(|index| report["policies"][index]["role"].clone());
    assert_eq!(roles, ["live", "ban", "shadow"]);
    // After five rejections the ban rejects; the shadow rejects none.
    assert_eq!(report["policies"][0]["rejected"], 5);
    assert!(
        report["policies"][1]["rejected"].as_u64() > Some(0),
        "{report}"
    );
    assert_eq!(report["policies"][2]["rejected"], 19);
    assert_eq!(report["rejected"], 19);
}

#[test]
fn the_report_is_a_table_of_the_policies() {
    let document = r#"
deny = [{ addresses = ["192.0.2.2"] }]

[policies.login]
quota = "1/min"
"#;
    let log = common(0, "192.0.2.1").repeat(3) + &common(1, "192.0.2.2") + "no request\n";
    let run = Scene::new(document, &log).run(&["access.log"]);
    let expected = "\
4 requests from 2027-01-15T08:00:00Z to 2027-01-15T08:00:01Z, 3 rejected (75.0 %)
POLICY  QUOTA  APPLIED  REJECTED  SHARE   MOST REJECTED KEYS
login   1/min  3        2         66.7 %  192.0.2.1 (2)
1 rejected by a deny list
1 unreadable lines; the first: access.log:5: no time such as [10/Oct/2027:13:55:36 +0000]
";
    assert_eq!((&*run.stdout, run.code), (expected, Some(0)));
}

#[test]
fn requests_of_a_second_may_be_spread_over_it() {
    let document = "[policies.api]\nquota = \"4/s burst 1\"\n";
    let log: String = (0..40)
        .map(|index| common(index / 4, "192.0.2.1"))
        .collect();
    let scene = Scene::new(document, &log);
    assert_eq!(scene.report(&["access.log"])["rejected"], 30);
    assert_eq!(scene.report(&["access.log", "--spread"])["rejected"], 0);
}

#[test]
fn a_policy_does_not_apply_to_requests_whose_key_the_log_lacks() {
    let document = "[policies.api]\nquota = \"1/h\"\nkey = [\"header:x-tenant readable\", \"header:x-api-key\"]\n";
    let with_key = |second: u64| {
        line(second * 1_000, 0, "/", 200).replace(
            "\"path\"",
            "\"headers\":{\"X-Tenant\":[\"a\"],\"X-Api-Key\":[\"s3cr3t-key\"]},\"path\"",
        )
    };
    let log = [line(0, 0, "/", 200), with_key(1), with_key(2), with_key(3)];
    let scene = Scene::new(document, &log.concat());
    let report = scene.report(&["access.log"]);
    let api = &report["policies"][0];
    assert_fields(api, json!({ "applied": 3, "rejected": 2 }));
    // Of a credential, the hash.
    let key = api["top"][0]["key"].as_str().expect("a key");
    assert!(key.contains("hash:") && !key.contains('#'), "{key}");
    for text in [scene.run(&["access.log"]).stdout, report.to_string()] {
        assert!(!text.contains("s3cr3t"), "{text}");
    }
}

#[test]
fn the_exit_code_says_whether_too_many_are_rejected() {
    let document = "[policies.api]\nquota = \"1/h\"\n";
    let log: String = (0..4).map(|second| common(second, "192.0.2.1")).collect();
    let scene = Scene::new(document, &log);
    for (share, code) in [("0.75", 0), ("0.7", 1)] {
        let run = scene.run(&["access.log", "--fail-over", share]);
        assert_eq!(run.code, Some(code), "{share}");
    }
    // A share is no percentage.
    for share in ["5", "-0.1", "nan"] {
        let run = scene.run(&["access.log", &format!("--fail-over={share}")]);
        assert_eq!(run.code, Some(2), "{share}: {}", run.stderr);
    }
    assert_eq!(scene.run(&["missing.log"]).code, Some(3));
    let run = scene.run(&["access.log", "--field", "when=ts"]);
    assert_eq!(run.code, Some(2));
    scene.write("access.log", "no request\n");
    let run = scene.run(&["access.log"]);
    assert_eq!(run.code, Some(3));
    run.assert_stderr("access.log:1: no time");
}

#[test]
fn the_most_keys_are_those_of_the_document() {
    let log: String = (0..3)
        .map(|second| common(second, &format!("192.0.2.{second}")))
        .collect();
    let policies = "[policies.api]\nquota = \"1/h\"\n";
    let bounded = format!("[store]\nmax_keys = 1\n{policies}");
    for (document, evicts) in [(policies, false), (&bounded, true)] {
        let report = Scene::new(document, &log).report(&["access.log"]);
        assert_eq!(report["evicted"].as_u64() > Some(0), evicts, "{document}");
    }
}
