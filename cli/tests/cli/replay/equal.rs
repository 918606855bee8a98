//! A replay equals a straightforward simulation.

use std::{cmp::Reverse, fs};

use serde_json::{Value, json};

use super::{
    log,
    model::{DOCUMENT, FoundOfPolicy, POLICIES, simulate},
};
use crate::program::{assert_fields, tollgate};

/// So many that each policy rejects some.
const LINES: usize = if cfg!(debug_assertions) {
    30_000
} else {
    1_000_000
};

#[test]
fn a_replay_equals_a_straightforward_simulation() {
    let requests = log::requests(LINES);
    let mut lines = String::new();
    for request in &requests {
        request.write_json(&mut lines);
    }
    let folder = testkit::folder();
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    fs::write(path("limits.toml"), DOCUMENT).expect("a document");
    fs::write(path("access.log"), lines).expect("a log");
    let started = std::time::Instant::now();
    let run = tollgate(&[
        "replay",
        "--json",
        "--top=7",
        "--chart",
        &path("chart.svg"),
        &path("limits.toml"),
        &path("access.log"),
    ]);
    println!("{LINES} lines in {:?}", started.elapsed());
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");

    let found = simulate(&requests);
    let rejected = found.policies.each_ref().map(|policy| policy.rejected);
    assert!(
        !rejected.contains(&0),
        "each policy rejects some: {rejected:?}"
    );
    assert_eq!(report["requests"], LINES);
    assert_eq!(report["rejected"], found.rejected);
    assert_eq!(report["admitted"], LINES as u64 - found.rejected);
    let clients = json!({ "seen": found.clients.len(), "rejected": found.rejected_clients.len(), "exact": true });
    assert_eq!(report["clients"], clients);
    assert_eq!(report["unreadable"]["lines"], 0);
    for (index, (name, found)) in POLICIES.iter().zip(&found.policies).enumerate() {
        let reported = &report["policies"][index];
        assert_eq!(reported["policy"], *name);
        assert_eq!(reported["applied"], LINES);
        assert_policy(reported, found);
    }

    // Over time, in buckets of any width.
    let width = report["bucket_seconds"].as_i64().expect("a width");
    let buckets = report["buckets"].as_array().expect("buckets");
    let begins = |bucket: &Value| micros(&bucket["at"]);
    let mut counts = vec![([0_u64; 2], [[0_u64; 2]; 3]); buckets.len()];
    for (at, rejects) in &found.decisions {
        let index = (at - begins(&buckets[0])) / (width * 1_000_000);
        let (all, policies) = &mut counts[index as usize];
        all[usize::from(rejects.contains(&true))] += 1;
        for (policy, rejects) in policies.iter_mut().zip(rejects) {
            policy[usize::from(*rejects)] += 1;
        }
    }
    for (bucket, (all, policies)) in buckets.iter().zip(counts) {
        assert_eq!(json!([bucket["admitted"], bucket["rejected"]]), json!(all));
        let policies = policies
            .map(|[admitted, rejected]| json!({ "admitted": admitted, "rejected": rejected }));
        assert_eq!(bucket["policies"], json!(policies));
    }
    assert!(
        fs::read_to_string(path("chart.svg"))
            .expect("a chart")
            .starts_with("<svg")
    );
}

fn assert_policy(reported: &Value, found: &FoundOfPolicy) {
    assert_eq!(reported["rejected"], found.rejected);
    let keys =
        json!({ "seen": found.keys.len(), "rejected": found.rejected_keys.len(), "exact": true });
    assert_eq!(reported["keys"], keys);
    let most = found.by_minute.values().max().expect("a minute");
    assert_eq!(reported["most_rejected"]["count"], *most);
    let spans = found.rejected_keys.values();
    assert_eq!(
        Some(micros(&reported["first"])),
        spans.clone().map(|(_, first, _)| *first).min()
    );
    assert_eq!(
        Some(micros(&reported["last"])),
        spans.map(|(_, _, last)| *last).max()
    );

    let mut expected: Vec<_> = found.rejected_keys.iter().collect();
    expected.sort_by_key(|(key, (count, first, _))| (Reverse(*count), *first, (*key).clone()));
    let top = reported["top"].as_array().expect("keys");
    assert_eq!(top.len(), expected.len().min(7));
    for (reported, (key, (count, first, last))) in top.iter().zip(expected) {
        assert_eq!(reported["key"], **key);
        assert_fields(reported, json!({ "rejected": count, "at_most_over": 0 }));
        assert_eq!(
            (micros(&reported["first"]), micros(&reported["last"])),
            (*first, *last)
        );
    }
}

/// The microseconds of an instant in RFC 3339.
fn micros(instant: &Value) -> i64 {
    let instant: jiff::Timestamp = instant.as_str().expect("text").parse().expect("an instant");
    instant.as_microsecond()
}
