//! Where a run writes its report and its chart.

use serde_json::Value;

use super::scene::Scene;

const DOCUMENT: &str = "[policies.api]\nquota = \"1/h\"\nkey = \"global\"\n";

const LINE: &str = "192.0.2.1 - - [28/Feb/2027:08:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n";

#[test]
fn a_chart_for_standard_output_is_written_there_and_the_report_to_standard_error() {
    let scene = Scene::new(DOCUMENT, LINE);
    let in_file = scene.run(&["access.log", "--chart", "chart.svg"]);
    assert_eq!((in_file.code, &*in_file.stderr), (Some(0), ""));
    let run = scene.run(&["access.log", "--chart", "-"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stdout.trim_end(), scene.read("chart.svg").trim_end());
    assert_eq!(run.stderr, in_file.stdout);
    assert!(!scene.has("-"));

    let run = scene.run(&["access.log", "--chart", "-", "--json"]);
    assert!(run.stdout.starts_with("<svg"), "{}", run.stdout);
    let report: Value = serde_json::from_str(&run.stderr).expect("JSON");
    assert_eq!(report["requests"], 1);
    scene.run(&["access.log", "--chart", "./-"]);
    assert!(scene.has("-"));
}
