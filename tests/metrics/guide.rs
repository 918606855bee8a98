//! `docs/metrics.md`, read as a table.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::file;

/// The guide's metrics, and the labels of each.
pub(crate) fn metrics() -> BTreeMap<String, Metric> {
    let guide = file("docs/metrics.md");
    let rows = guide
        .lines()
        .filter(|line| line.starts_with("| `tollgate_"));
    let metrics = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = cells[3]
            .split(", ")
            .map(|label| label.trim_matches('`').to_owned());
        let metric = Metric {
            kind: cells[2].to_owned(),
            labels: labels
                .filter(|label| !label.is_empty())
                .chain(["limiter".to_owned()])
                .collect(),
            about: cells[5].to_owned(),
        };
        (cells[1].trim_matches('`').to_owned(), metric)
    });
    metrics.collect()
}

#[derive(Debug, PartialEq)]
pub(crate) struct Metric {
    pub(crate) kind: String,
    pub(crate) labels: BTreeSet<String>,
    pub(crate) about: String,
}

/// The formula of the number of series: a constant, and the factors of policies, shadow policies and servers.
pub(crate) fn formula() -> [usize; 4] {
    let guide = file("docs/metrics.md");
    let line = guide.lines().find(|line| line.contains("* policies"));
    let line = line.expect("a formula");
    let words: Vec<&str> = line.split(" + ").collect();
    let names = ["", " * policies", " * shadow policies", " * servers"];
    let numbers: Vec<usize> = words
        .iter()
        .zip(names)
        .map(|(word, name)| {
            word.strip_suffix(name)
                .and_then(|word| word.parse().ok())
                .expect(line)
        })
        .collect();
    numbers.try_into().expect(line)
}
