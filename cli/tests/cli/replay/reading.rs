//! How logs are read, and in which order their requests are replayed.

use std::{io::Write, process::Stdio};

use serde_json::{Value, json};

use super::scene::{Scene, common, line};
use crate::program::assert_fields;

#[test]
fn lines_are_sorted_within_a_window() {
    let document = "[policies.api]\nquota = \"1/min\"\n";
    // Arrivals at 0, 60 and 120 s, in another order.
    let log = [60_000, 0, 120_000]
        .map(|ms| line(ms, 0, "/", 200))
        .concat();
    let scene = Scene::new(document, &log);
    let report = scene.report(&["access.log"]);
    assert_fields(&report, json!({ "rejected": 0, "late": 0 }));
    let report = scene.report(&["access.log", "--window", "10"]);
    assert_fields(&report, json!({ "rejected": 0, "late": 0 }));

    let late = [0, 90_000, 120_000, 30_000].map(|ms| line(ms, 0, "/", 200));
    scene.write("access.log", late.concat());
    let report = scene.report(&["access.log", "--window", "10"]);
    // It is replayed at the time of the one before.
    assert_fields(&report, json!({ "rejected": 2, "late": 1 }));
}

#[test]
fn logs_may_be_several_or_standard_input() {
    let document = "[policies.api]\nquota = \"3/h\"\n";
    let scene = Scene::new(document, &common(0, "192.0.2.1").repeat(3));
    let mut command = scene.command(&["--json", "access.log", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    let mut stdin = child.stdin.take().expect("its input");
    stdin
        .write_all((common(2, "192.0.2.1") + "no request\n").as_bytes())
        .expect("a pipe");
    drop(stdin);
    let output = child.wait_with_output().expect("its output");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let expected = json!({
        "requests": 4,
        "rejected": 1,
        "from": "2027-01-15T08:00:00Z",
        "to": "2027-01-15T08:00:02Z",
        "unreadable": 1,
        "first_unreadable": "-:2: no time such as [10/Oct/2027:13:55:36 +0000]",
    });
    assert_fields(&report, expected);
}

#[test]
fn garbage_is_counted_and_never_fails() {
    let mut log = common(0, "192.0.2.1").into_bytes();
    let mut random = 1_u64;
    for _ in 0..200_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        log.push((random >> 33) as u8);
    }
    // Longer than a line may be.
    log.push(b'\n');
    log.extend(vec![b'x'; 300_000]);
    log.push(b'\n');
    log.extend(common(1, "192.0.2.2").as_bytes());
    let scene = Scene::new("[policies.api]\nquota = \"1/h\"\n", "");
    scene.write("access.log", log);
    let report = scene.report(&["access.log"]);
    assert_fields(&report, json!({ "requests": 2, "rejected": 0 }));
    assert!(report["unreadable"].as_u64() > Some(100));
}
