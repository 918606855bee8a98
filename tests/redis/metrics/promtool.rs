//! What Prometheus' own tool says.

use std::{io::Write, process::Command};

use tollgate_tests::prelude::*;

use crate::metrics::{queries, support::*};

/// Runs promtool, and returns what it printed if it failed.
fn promtool(arguments: &[&str], input: &str) -> Result<(), String> {
    let mut command = Command::new("promtool");
    command
        .current_dir(tollgate_tests::repository("ops"))
        .args(arguments)
        .stdin(Stdio::piped());
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped
        .spawn()
        .expect("promtool, of Debian's package prometheus");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    let text = [output.stdout, output.stderr].concat();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&text).into_owned()),
    }
}

#[tokio::test]
async fn promtool_accepts_the_exposition() {
    let observed = Observed::default();
    let quota = Quota::requests(3).per_minute();
    let policies = [
        Policy::new("one", quota),
        Policy::new("next", quota).shadow(),
        Policy::new("busy", Quota::concurrent(2)),
        Policy::new("abuse", quota).strategy(Ban::for_duration(TEST_TIMEOUT)),
    ];
    let limiter = in_process(&observed, policies);
    let mut rng = Rng::new(0);
    for _ in 0..1_000 {
        drop(limiter.admit(random_key(&mut rng)).await);
    }
    let text = observed.text();
    assert_eq!(promtool(&["check", "metrics"], &text), Ok(()), "{text}");
    let rejected = promtool(&["check", "metrics"], "# TYPE a gauge\na{b=} 1\n");
    assert!(rejected.is_err(), "promtool says nothing about a mistake");
}

#[test]
fn promtool_accepts_the_alert_rules_and_they_fire_when_they_should() {
    for (action, file) in [("check", "rules.yml"), ("test", "rules-test.yml")] {
        let arguments = [action, "rules", &format!("prometheus-{file}")];
        assert_eq!(promtool(&arguments, ""), Ok(()));
    }
}

#[test]
fn promtool_accepts_the_queries_of_the_dashboard() {
    let folder = testkit::folder();
    let path = folder.path().join("rules.yml");
    let rule = |(index, query)| {
        let query = serde_json::to_string(&query).expect("a text");
        format!("      - {{record: 'panel:query:{index}', expr: {query}}}\n")
    };
    let queries = queries::of_dashboard().into_iter().enumerate();
    let rules = queries.map(rule).collect::<String>();
    let text = format!("groups:\n  - name: dashboard\n    rules:\n{rules}");
    fs::write(&path, text).expect("a file");
    let path = path.to_str().expect("a path");
    assert_eq!(promtool(&["check", "rules", path], ""), Ok(()));
}
