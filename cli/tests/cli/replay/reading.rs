//! How logs are read, and in which order their requests are replayed.

use std::{io::Write, process::Stdio};

use serde_json::{Value, json};

use super::scene::{Scene, common, line};
use crate::program::assert_fields;

#[test]
fn lines_are_sorted_within_a_window_or_all_together() {
    let document = "[policies.api]\nquota = \"1/min\"\n";
    // Arrivals at 0, 60 and 120 s, in another order.
    let log = [
        line(60_000, 0, "/", 200),
        line(0, 0, "/", 200),
        line(120_000, 0, "/", 200),
    ];
    let scene = Scene::new(document, &log.concat());
    assert_eq!(
        scene.report(&["access.log", "--window", "60"])["rejected"],
        0
    );
    assert_eq!(scene.report(&["access.log", "--sort"])["rejected"], 0);

    let late = [
        line(0, 0, "/", 200),
        line(90_000, 0, "/", 200),
        line(120_000, 0, "/", 200),
        line(30_000, 0, "/", 200),
    ];
    scene.write("access.log", late.concat());
    let report = scene.report(&["access.log", "--window", "10"]);
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("arrived: 1, the first at access.log:4;"),
        "{notes}"
    );
}

#[test]
fn logs_may_be_several_compressed_or_standard_input() {
    let document = "[policies.api]\nquota = \"3/h\"\n";
    let scene = Scene::new(document, &common(0, "192.0.2.1"));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(common(1, "192.0.2.1").repeat(2).as_bytes())
        .expect("gzip");
    scene.write("access.log.gz", gzip.finish().expect("gzip"));
    let mut command = scene.command(&["--json", "access.log", "access.log.gz", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    let mut stdin = child.stdin.take().expect("its input");
    stdin
        .write_all((common(2, "192.0.2.1") + "no request\n").as_bytes())
        .expect("a pipe");
    drop(stdin);
    let output = child.wait_with_output().expect("its output");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_fields(&report, json!({ "requests": 4, "rejected": 1 }));
    let unreadable = json!({
        "lines": 1,
        "first": [{ "log": "standard input", "line": 2, "reason": "no time such as [10/Oct/2027:13:55:36 +0000]" }],
    });
    assert_eq!(report["unreadable"], unreadable);
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_line() {
    let log = format!("\u{feff}{}", common(0, "192.0.2.1"));
    let scene = Scene::new("[policies.api]\nquota = \"1/h\"\n", &log);
    let report = scene.report(&["access.log"]);
    assert_eq!(report["policies"][0]["applied"], 1);
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
    let unreadable = &report["unreadable"];
    assert!(unreadable["lines"].as_u64() > Some(100));
    assert_eq!(unreadable["first"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_line_from_the_future_is_left_out_and_the_lines_after_it_are_sorted_as_before() {
    let document = "[policies.api]\nquota = \"1/min\"\n";
    let future = line(80 * 365 * 86_400_000, 0, "/", 200);
    let lines = |log: &[String]| {
        let scene = Scene::new(document, &log.concat());
        scene.report(&["access.log", "--window", "60"])
    };
    // Arrivals at 0, 60 and 120 s, in another order, beside lines of a server with a wrong clock.
    let [first, second, third] = [0, 60_000, 120_000].map(|ms| line(ms, 0, "/", 200));
    for (log, outliers) in [
        ([&first, &future, &third, &second], vec![2]),
        ([&future, &first, &third, &second], vec![1]),
    ] {
        let report = lines(&log.map(Clone::clone));
        let counts =
            json!({ "requests": 3, "rejected": 0, "to": "2027-01-15T08:02:00Z", "notes": [] });
        assert_fields(&report, counts);
        let left_out: Vec<_> = outliers
            .iter()
            .map(|line| {
                json!({
                    "log": "access.log", "line": line,
                    "reason": "its time is more than a day after that of the lines around it",
                })
            })
            .collect();
        let unreadable = json!({"lines": outliers.len(), "first": left_out});
        assert_eq!(report["unreadable"], unreadable);
    }
    // Several at once.
    let twice = [&first, &future, &future, &third, &second].map(Clone::clone);
    assert_eq!(lines(&twice)["unreadable"]["lines"], 2);
}

#[test]
fn a_gap_of_the_log_is_no_mistake_in_it() {
    let document = "[policies.api]\nquota = \"1/min\"\n";
    let day = 86_400_000;
    for lines in [1, 2, 30] {
        let mut log = vec![line(0, 0, "/", 200), line(1_000, 0, "/", 200)];
        log.extend((0..lines).map(|index| line(3 * day + index * 60_000, 0, "/", 200)));
        let report = Scene::new(document, &log.concat()).report(&["access.log"]);
        assert_fields(&report, json!({ "requests": 2 + lines, "rejected": 1 }));
        assert_eq!(report["unreadable"]["lines"], 0);
    }
}

#[test]
fn a_date_that_the_calendar_does_not_have_is_an_unreadable_line() {
    let dates = ["28/Feb/2027", "29/Feb/2027", "01/Mar/2027", "31/Apr/2027"];
    let log = dates
        .map(|date| format!("192.0.2.1 - - [{date}:08:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n"));
    let document = "[policies.api]\nquota = \"1/h\"\nkey = \"global\"\n";
    let report = Scene::new(document, &log.concat()).report(&["access.log", "--sort"]);
    assert_eq!(report["requests"], 2);
    let unreadable = &report["unreadable"];
    assert_eq!(unreadable["lines"], 2, "{report}");
    let lines = unreadable["first"].as_array().expect("lines").iter();
    let lines: Vec<_> = lines.map(|first| &first["line"]).collect();
    assert_eq!(lines, [2, 4]);
}
