//! Every case works, and its result makes sense. No figure decides: those of so short a run are noise.

use serde_json::Value;
use tollgate_bench::{
    cases::{CASES, Case},
    chart,
    outcome::{Outcome, Target, Unit},
    plan::{Options, Plan},
    report::{self, Setting},
};

async fn run(name: &str) -> Vec<Outcome> {
    let case: &Case = CASES.iter().find(|case| case.name == name).expect(name);
    let plan = Plan {
        program: env!("CARGO_BIN_EXE_tollgate-bench").into(),
        ..Plan::tiny()
    };
    let outcomes = (case.run)(plan).await;
    assert!(!outcomes.is_empty());
    for outcome in &outcomes {
        assert_eq!(outcome.case, name);
        assert!(!outcome.rows.is_empty(), "{outcome:?}");
        for figure in &outcome.figures {
            assert!(figure.rate.is_finite() && figure.rate > 0.0, "{figure:?}");
            assert!(figure.p50 <= figure.p99, "{figure:?}");
        }
        for row in &outcome.rows {
            assert!(row.value.is_finite(), "{row:?}");
            assert!(row.unit != Unit::Ratio || row.value > 0.0, "{row:?}");
            // What is counted holds at any speed.
            if let (Target::Exactly(_), false) = (row.target, name == "denied") {
                assert_eq!(row.met(), Some(true), "{row:?}");
            }
        }
    }
    outcomes
}

macro_rules! cases {
    ($($test:ident: $name:literal,)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            run($name).await;
        })*

        #[test]
        fn every_case_runs() {
            let tried = [$($name),*];
            assert_eq!(CASES.map(|case| case.name), tried);
        }
    };
}

cases! {
    many_keys_on_redis: "cold",
    a_hot_key_on_redis: "hot",
    a_quota_of_a_month: "month",
    a_slow_quota: "slow",
    fewer_tasks_on_redis: "some",
    one_task_on_redis: "single",
    one_task_on_one_thread: "lone",
    a_link_with_latency: "latency",
    many_keys_on_a_cluster: "cluster",
    a_hot_key_with_leases: "leases",
    keys_by_zipfs_law_with_leases: "zipf",
    cold_keys_with_leases: "rare",
    a_fleet_with_leases: "fleet",
    leases_under_mixed_costs: "held",
    a_shared_limit: "over",
    three_policies: "policies",
    requests_of_large_costs: "costs",
    a_known_denial: "denied",
    in_process: "memory",
    in_process_without_await: "now",
    outgoing_requests: "outgoing",
    metrics_in_process: "metrics",
    through_the_layer_admitted: "admitting",
    through_the_layer_refused: "refusing",
    what_the_layer_adds: "added",
    large_heads_and_many_conditions: "heads",
    an_axum_server_loaded_by_wrk: "served",
    no_more_than_the_limit: "exact",
    memory_of_a_key: "bytes",
    very_many_keys: "vast",
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_the_json_and_the_chart_show_every_row() {
    let outcomes = run("some").await;
    let setting = Setting::here(&Plan::tiny());

    let table = report::table(&setting, &outcomes);
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 2 + outcomes[0].rows.len(), "{table}");
    let cells = |line: &str| line.matches('|').count();
    assert!(lines.iter().all(|line| cells(line) == 8), "{table}");

    let json = report::json(&setting, &outcomes);
    let results = json["outcomes"][0]["results"].as_array();
    assert_eq!(
        results.map(Vec::len),
        Some(outcomes[0].rows.len()),
        "{json}"
    );
    assert!(
        results
            .into_iter()
            .flatten()
            .all(|row| row["value"].is_f64())
    );
    let contenders = json["outcomes"][0]["contenders"].as_array();
    let names = contenders.into_iter().flatten().map(|c| &c["contender"]);
    assert!(
        names.eq(["tollgate", "mux", "pool"].map(Value::from).iter()),
        "{json}"
    );

    let chart = chart::draw("<here & now>", &outcomes);
    assert_eq!(chart.matches("<rect").count(), outcomes[0].figures.len());
    assert!(chart.contains("&lt;here &amp; now&gt;"), "{chart}");
}

#[test]
fn a_mistake_on_the_command_line_is_an_error() {
    let parse = |line: &str| Options::parse(line.split_whitespace().map(str::to_owned));
    let options = parse("--only cold,hot --rounds 3 --seconds 0.5 --quick").expect("options");
    assert_eq!(
        (options.only, options.plan.rounds),
        (vec!["cold".into(), "hot".into()], 3)
    );
    assert_eq!(options.plan.time.as_millis(), 500);
    assert_eq!(options.plan.vast, None);
    for mistake in [
        "--rounds 0",
        "--rounds",
        "--seconds x",
        "--seconds 1e9",
        "--other",
        "cold",
    ] {
        assert!(parse(mistake).is_err(), "{mistake}");
    }
}
