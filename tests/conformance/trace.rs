//! Reading a trace.

use std::{env, fs, path::Path, time::Duration};

use serde_json::Value;
use tollgate::{FixedWindow, Limiter, LimiterBuilder, Policy, Quota, store::Store};

/// No trace begins earlier.
pub(crate) const EARLIEST: i64 = 1_800_000_000_000_000;

pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) policies: Vec<Value>,
    pub(crate) composite: bool,
    pub(crate) ops: Vec<Value>,
}

/// The project's own traces, and those of the folder that `TOLLGATE_TRACES` names.
pub(crate) fn all() -> Vec<Trace> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/traces");
    let mut traces = folder(&own);
    assert!(traces.len() >= 200, "the project's traces are not all here");
    if let Some(more) = env::var_os("TOLLGATE_TRACES") {
        let more = folder(Path::new(&more));
        assert!(
            !more.is_empty(),
            "TOLLGATE_TRACES names a folder without traces"
        );
        traces.extend(more);
    }
    let all = traces.len();
    traces.retain(|trace| trace.policies.iter().all(is_offered));
    println!(
        "SKIPPED {} traces of strategies that are not offered yet",
        all - traces.len()
    );
    traces
}

fn is_offered(policy: &Value) -> bool {
    matches!(policy["strategy"].as_str(), Some("gcra" | "fixed_window"))
}

fn folder(folder: &Path) -> Vec<Trace> {
    let files = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    files.iter().map(|file| Trace::read(file)).collect()
}

impl Trace {
    fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).expect("a trace");
        let trace: Value = serde_json::from_str(&text).expect("JSON");
        let composite = trace["strategy"] == "composite";
        Self {
            name: trace["name"]
                .as_str()
                .map_or_else(|| file.display().to_string(), str::to_owned),
            policies: match composite {
                true => trace["policies"].as_array().expect("policies").clone(),
                false => vec![trace.clone()],
            },
            composite,
            ops: trace["ops"].as_array().expect("ops").clone(),
        }
    }

    pub(crate) fn starts_at(&self) -> i64 {
        self.ops[0]["at_us"].as_i64().expect("at_us")
    }

    /// Its policies are called `p0`, `p1`, ...
    pub(crate) fn limiter(&self, store: impl Store) -> LimiterBuilder {
        let policies = self.policies.iter().enumerate();
        policies.fold(Limiter::builder().store(store), |limiter, (i, policy)| {
            limiter.policy(policy_of(&format!("p{i}"), policy))
        })
    }
}

fn policy_of(name: &str, trace: &Value) -> Policy {
    let quota = &trace["quota"];
    let number = |field: &str| {
        quota[field]
            .as_u64()
            .unwrap_or_else(|| panic!("{field}: {quota}"))
    };
    let period = Duration::from_micros(number("period_us"));
    let rate = Quota::requests(number("requests")).per(period);
    let policy = |quota| Policy::new(name, quota);
    match trace["strategy"].as_str().expect("a strategy") {
        "gcra" => policy(rate.burst(number("burst"))),
        "fixed_window" => policy(rate).strategy(FixedWindow),
        other => panic!("a trace of an unknown strategy, {other}"),
    }
}
