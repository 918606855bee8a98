//! What the tests share.

use tollgate_tests::prelude::*;

pub(crate) use tollgate_tests::exposition::{Exposition, Observed, metric_of};

/// A limiter that counts in process on a clock that stands still, and these metrics of it.
pub(crate) fn in_process(
    observed: &Observed,
    policies: impl IntoIterator<Item = Policy>,
) -> Limiter {
    let (store, _) = stores::frozen();
    stores::limiter(observed.limiter().store(store), policies)
}

/// The value of a metric with these labels: `policy_requests_total policy=api result=over`.
#[track_caller]
pub(crate) fn value(exposition: &Exposition, series: &str) -> f64 {
    let mut words = series.split(' ');
    let name = format!("tollgate_{}", words.next().expect(series));
    let labels = words.map(|label| label.split_once('=').expect(series));
    exposition.value(&name, &labels.collect::<Vec<_>>())
}

/// The same of now.
#[track_caller]
pub(crate) fn value_now(observed: &Observed, series: &str) -> f64 {
    value(&observed.exposition(), series)
}

/// `daily("api", 10)` requests.
pub(crate) fn daily(name: &str, requests: u64) -> Policy {
    Policy::new(name, Quota::requests(requests).per_day())
}

/// Checks so many requests of `alice`.
pub(crate) async fn send(limiter: &Limiter, requests: usize) {
    for _ in 0..requests {
        drop(limiter.check("alice").await);
    }
}

pub(crate) fn random_key(rng: &mut Rng) -> Key {
    Key::new(format!("{:016x}", rng.any()))
}

/// A file of the repository.
pub(crate) fn file(path: &str) -> String {
    fs::read_to_string(tollgate_tests::repository(path)).expect(path)
}

/// The panels of the dashboard.
pub(crate) fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&file("ops/grafana-dashboard.json")).expect("JSON");
    dashboard["panels"].as_array().expect("panels").clone()
}

/// The alert rules.
pub(crate) fn rules() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&file("ops/prometheus-rules.yml")).expect("YAML");
    let groups = rules["groups"].as_array().expect("groups").iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules"));
    rules.cloned().collect()
}
