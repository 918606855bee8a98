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
    let rejected = |index: usize| {
        (
            report["policies"][index]["rejected"].clone(),
            report["policies"][index]["first"].clone(),
        )
    };
    assert_eq!(rejected(0), (json!(2), json!("2027-01-15T08:00:04Z")));
    assert_eq!(rejected(1), (json!(3), json!("2027-01-15T08:00:03Z")));
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
    let exports = &report["policies"][0];
    assert_eq!(exports["rejected"], 2);
    assert_fields(
        exports,
        json!({ "first": "2027-01-15T08:00:01.999Z", "last": "2027-01-15T08:00:03.999Z" }),
    );
    assert_eq!(report["notes"], json!([]));
}

#[test]
fn bans_and_shadow_policies_are_reported_as_such() {
    let document = r#"
[policies.api]
quota = "1/min"

[policies.banned]
quota = "2/min"
strategy = "ban 10min"

[policies.stricter]
quota = "1/h"
shadow_of = "api"
"#;
    let log: String = (0..20)
        .map(|index| line(index * 10_000, 0, "/", 200))
        .collect();
    let report = Scene::new(document, &log).report(&["access.log"]);
    let policy = |index: usize| {
        let policy = &report["policies"][index];
        json!([
            policy["policy"],
            policy["role"],
            policy["applied"],
            policy["rejected"]
        ])
    };
    assert_eq!(
        (&policy(1)[0], &policy(1)[1]),
        (&json!("banned"), &json!("ban"))
    );
    assert!(policy(1)[3].as_u64() > Some(0), "{report:#}");
    assert_eq!(
        (&policy(2)[0], &policy(2)[1]),
        (&json!("stricter"), &json!("shadow"))
    );
    // Five in the first minute, and then the ban rejects; the candidate would have admitted one.
    assert_eq!(
        (&policy(0)[3], &policy(2)[3], &report["rejected"]),
        (&json!(5), &json!(19), &json!(19))
    );
}

#[test]
fn the_parts_of_admitted_and_of_rejected_requests_stand_under_each() {
    let document = r#"
deny = [{ addresses = ["192.0.2.2"] }]

[policies.login]
quota = "1/min"
only = { paths = ["/login"] }
"#;
    let log = common(0, "192.0.2.1") + &common(1, "192.0.2.2");
    let run = Scene::new(document, &log).run(&["access.log"]);
    let names: Vec<&str> = run
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("admitted"))
        .take(4)
        .map(|line| line.trim_end_matches(|c: char| !c.is_alphabetic()))
        .collect();
    let expected = [
        "admitted",
        "  to which no policy applies",
        "rejected",
        "  on a deny list",
    ];
    assert_eq!(names, expected, "{}", run.stdout);
}

#[test]
fn requests_of_a_second_may_be_spread_over_it() {
    let document = "[policies.api]\nquota = \"4/s burst 1\"\n";
    let log: String = (0..40)
        .map(|index| common(index / 4, "192.0.2.1"))
        .collect();
    let scene = Scene::new(document, &log);
    let report = scene.report(&["access.log"]);
    assert_eq!(report["rejected"], 30);
    assert!(report["notes"].to_string().contains("--spread"));
    let spread = scene.report(&["access.log", "--spread"]);
    assert_fields(&spread, json!({ "rejected": 0, "notes": [] }));
}

#[test]
fn a_policy_does_not_apply_to_requests_whose_key_the_log_lacks() {
    let document = "[policies.api]\nquota = \"1/h\"\nkey = \"header:x-api-key\"\n";
    let with_key = |second: u64| {
        let line = line(second * 1_000, 0, "/", 200);
        line.replace(
            "\"path\"",
            "\"headers\":{\"X-Api-Key\":[\"s3cr3t-key\"]},\"path\"",
        )
    };
    let log = [line(0, 0, "/", 200), with_key(1), with_key(2), with_key(3)];
    let scene = Scene::new(document, &log.concat());
    let run = scene.run(&["access.log", "--chart", "chart.svg"]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    let report = scene.report(&["access.log"]);
    let api = &report["policies"][0];
    assert_fields(api, json!({ "applied": 3, "rejected": 2 }));
    assert_eq!(
        report["notes"],
        json!(["requests whose key for \"api\" is not in the log: 1"])
    );
    // Of a credential, the hash.
    let key = api["top"][0]["key"].as_str().expect("a key");
    assert!(key.starts_with("hash:") && key.len() == 25, "{key}");
    let chart = scene.read("chart.svg");
    for text in [run.stdout, report.to_string(), chart] {
        assert!(!text.contains("s3cr3t"), "{text}");
    }

    let strict = scene.report(&["access.log", "--missing-keys"]);
    assert_fields(&strict, json!({ "rejected": 3, "missing_key": 1 }));
}

#[test]
fn the_hash_of_a_credential_in_a_key_of_several_parts_is_shown_as_such() {
    let document = "[policies.api]\nquota = \"1/h\"\nkey = [\"header:x-tenant readable\", \"header:x-api-key\"]\n";
    let line = line(0, 0, "/", 200);
    let line = line.replace(
        "\"path\"",
        "\"headers\":{\"X-Tenant\":[\"a\"],\"X-Api-Key\":[\"s3cr3t\"]},\"path\"",
    );
    let report = Scene::new(document, &line.repeat(2)).report(&["access.log"]);
    let key = report["policies"][0]["top"][0]["key"]
        .as_str()
        .expect("a key");
    assert!(key.contains("hash:") && !key.contains('#'), "{key}");
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
    assert_eq!(
        scene.run(&["access.log", "--field", "when=ts"]).code,
        Some(2)
    );
    scene.write("access.log", "no request\n");
    let run = scene.run(&["access.log"]);
    assert_eq!(run.code, Some(3));
    run.assert_stderr("access.log:1: no time");
}

#[test]
fn the_most_keys_are_those_of_the_arguments_or_else_of_the_document() {
    let log: String = (0..3)
        .map(|second| common(second, &format!("192.0.2.{second}")))
        .collect();
    let policies = "[policies.api]\nquota = \"1/h\"\n";
    let bounded = format!("[store]\nmax_keys = 1\n{policies}");
    for (document, arguments, evicts) in [
        (policies, &["access.log"][..], false),
        (policies, &["access.log", "--max-keys", "1"], true),
        (&bounded, &["access.log"], true),
        (&bounded, &["access.log", "--max-keys", "1000"], false),
    ] {
        let report = Scene::new(document, &log).report(arguments);
        let notes = report["notes"].to_string();
        assert_eq!(
            notes.contains("keys evicted"),
            evicts,
            "{document} {arguments:?}: {notes}"
        );
    }
}
