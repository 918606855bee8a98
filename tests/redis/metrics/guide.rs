//! `docs/metrics.md`, read as a table.

use tollgate_tests::prelude::*;

use crate::metrics::support::*;

/// The guide's metrics, and the labels of each.
pub(crate) fn metrics() -> BTreeMap<String, Metric> {
    let guide = file("docs/metrics.md");
    let lines = guide.lines();
    let rows = lines.filter(|line| line.starts_with("| `tollgate_"));
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

/// The formula of the number of series: a constant, and the factors of policies and servers.
pub(crate) fn formula() -> [usize; 3] {
    let guide = file("docs/metrics.md");
    let line = guide.lines().find(|line| line.contains("* policies"));
    let line = line.expect("a formula");
    let words: Vec<&str> = line.split(" + ").collect();
    let names = ["", " * policies", " * servers"];
    let number = |(word, name): (&&str, &str)| {
        let number = word.strip_suffix(name).expect(line);
        number.parse::<usize>().expect(line)
    };
    let numbers: Vec<usize> = words.iter().zip(names).map(number).collect();
    numbers.try_into().expect(line)
}

#[test]
fn the_guide_names_panels_and_alerts_that_exist_and_all_alerts() {
    let guide = file("docs/metrics.md");
    let (_, section) = guide.split_once("## Panels and alerts").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("a next section");
    let rows: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(" | *"))
        .collect();
    assert!(rows.len() > 5, "{section}");

    let panels = panels();
    let panels = panels.iter().filter_map(|panel| panel["title"].as_str());
    let panels: BTreeSet<&str> = panels.collect();
    for row in &rows {
        let named = row.split('*').skip(1).step_by(2);
        for panel in named {
            assert!(panels.contains(panel), "no panel {panel:?}");
        }
    }

    let rules = rules();
    let alerts: BTreeSet<&str> = rules
        .iter()
        .filter_map(|rule| rule["alert"].as_str())
        .collect();
    let named: BTreeSet<&str> = section
        .split('`')
        .filter(|word| word.starts_with("Tollgate"))
        .collect();
    assert_eq!(named, alerts);
}
