//! The queries of the dashboard and of the alert rules name metrics and labels that exist.

use tollgate::observe::StoreCallEvent;
use tollgate_tests::prelude::*;

use crate::metrics::{guide, support::*};

/// What Prometheus and its exporters add to each series, and what a query makes itself.
const OTHER_LABELS: [&str; 4] = ["job", "instance", "le", "quota"];

/// The dashboard's queries, with intervals and selections in place of its variables.
pub(crate) fn of_dashboard() -> Vec<String> {
    let panels = panels();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let queries = targets.flatten().map(|target| {
        let query = target["expr"].as_str().expect("a query");
        let query = query.replace("$__rate_interval", "5m");
        let query = query.replace("$job", ".*").replace("$limiter", ".*");
        assert!(!query.contains('$'), "an unknown variable: {query}");
        query
    });
    queries.collect()
}

/// The expressions of the alert rules.
fn of_rules() -> Vec<String> {
    let rules = rules();
    let expressions = rules
        .iter()
        .map(|rule| rule["expr"].as_str().expect("an expression"));
    expressions.map(str::to_owned).collect()
}

/// Metrics with a series of each kind.
async fn observed() -> (Observed, Limiter) {
    let observed = Observed::default();
    let quota = Quota::requests(3).per_minute();
    let next = Policy::new("next", quota).shadow();
    let limiter = in_process(&observed, [Policy::new("one", quota), next]);
    assert!(limiter.check("alice").await.is_admitted());
    let call = StoreCallEvent::new("redis:6379", ms(1));
    observed.metrics.on_store_call(&call.with_ops(1, 2));
    (observed, limiter)
}

/// The names of series in a query, each with the labels that are selected by.
fn series(query: &str) -> Vec<(&str, Vec<&str>)> {
    let starts = query.match_indices("tollgate_");
    let series = starts.map(|(start, _)| {
        let rest = &query[start..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, rest) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
        let selected = rest
            .strip_prefix('{')
            .and_then(|rest| rest.split('}').next());
        let labels = selected.unwrap_or_default().split(',');
        let labels = labels.filter(|label| !label.is_empty());
        let labels = labels.map(|label| label.split(['=', '!']).next().expect("a label"));
        (name, labels.collect())
    });
    series.collect()
}

/// The labels that a query groups by.
fn groups(query: &str) -> Vec<&str> {
    let groups = query.split("by (").skip(1);
    let labels = groups.flat_map(|rest| rest.split(')').next().expect("an end").split(','));
    labels.map(str::trim).collect()
}

#[tokio::test]
async fn every_query_names_metrics_and_labels_of_the_exposition_and_of_the_guide() {
    let (observed, _limiter) = observed().await;
    let exposition = observed.exposition();
    let guide = guide::metrics();

    let mut used = BTreeSet::new();
    let queries = [of_dashboard(), of_rules()].concat();
    assert!(queries.len() > 30, "{queries:?}");
    for query in &queries {
        let mut known: BTreeSet<&str> = OTHER_LABELS.into();
        let named = series(query);
        assert!(!named.is_empty(), "{query}");
        for (name, selected) in named {
            let exposed = exposition.find(name, &[]).next();
            let exposed = exposed.unwrap_or_else(|| panic!("no {name} is exposed: {query}"));
            let metric = guide.get(metric_of(name));
            let metric = metric.unwrap_or_else(|| panic!("the guide has no {name}: {query}"));
            known.extend(metric.labels.iter().map(String::as_str));
            for label in selected {
                let is_known = exposed.labels.contains_key(label) && metric.labels.contains(label);
                assert!(is_known || label == "job", "{name} has no {label}: {query}");
            }
            used.insert(metric_of(name));
        }
        for label in groups(query) {
            assert!(known.contains(label), "no metric has {label}: {query}");
        }
    }
    // The dashboard leaves none out.
    let all: BTreeSet<&str> = guide.keys().map(String::as_str).collect();
    assert_eq!(used, all);
}

#[tokio::test]
async fn the_guide_lists_what_is_exposed_with_its_labels_and_meaning() {
    let (observed, _limiter) = observed().await;
    let text = observed.text();
    let guide = guide::metrics();
    let mut exposed = BTreeSet::new();
    for sample in observed.exposition().0 {
        let metric = guide.get(sample.metric());
        let metric = metric.unwrap_or_else(|| panic!("the guide has no {}", sample.name));
        let mut labels: BTreeSet<String> = sample.labels.keys().cloned().collect();
        labels.remove("le");
        assert_eq!(labels, metric.labels, "{}", sample.name);
        exposed.insert(sample.metric().to_owned());
    }
    assert_eq!(exposed, guide.keys().cloned().collect());
    for (name, metric) in guide {
        for line in [
            format!("# HELP {name} {}", metric.about),
            format!("# TYPE {name} {}", metric.kind),
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line:?}");
        }
    }
}
