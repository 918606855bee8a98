//! Metrics of a limiter, with a recorder of their own, and what Prometheus would read of them.

use std::{collections::BTreeMap, sync::Arc};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tollgate::{
    Limiter,
    limiter::LimiterBuilder,
    metrics::{self, Metrics},
};

/// Metrics of a limiter that is called `api`, with a recorder of their own.
pub struct Observed {
    pub metrics: Arc<Metrics>,
    prometheus: PrometheusHandle,
}

/// A line of an exposition.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// What is exposed at one moment.
#[derive(Debug)]
pub struct Exposition(pub Vec<Sample>);

impl Default for Observed {
    fn default() -> Self {
        Self::with(|metrics| metrics)
    }
}

impl Observed {
    pub fn with(set: impl FnOnce(Metrics) -> Metrics) -> Self {
        let with = |builder: PrometheusBuilder, (metric, bounds): &(&str, &[f64])| {
            let matcher = Matcher::Full((*metric).to_owned());
            builder
                .set_buckets_for_metric(matcher, bounds)
                .expect("bounds")
        };
        let builder = metrics::BUCKETS.iter().fold(PrometheusBuilder::new(), with);
        let recorder = builder.build_recorder();
        let prometheus = recorder.handle();
        let metrics = Arc::new(set(Metrics::with_recorder("api", recorder)));
        Self {
            metrics,
            prometheus,
        }
    }

    /// A builder of a limiter with these metrics.
    pub fn limiter(&self) -> LimiterBuilder {
        Limiter::builder().observe(self.metrics.clone())
    }

    pub fn text(&self) -> String {
        self.metrics.collect();
        self.prometheus.render()
    }

    pub fn exposition(&self) -> Exposition {
        Exposition::parse(&self.text())
    }

    /// [`Exposition::value`] of now.
    #[track_caller]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.exposition().value(name, labels)
    }
}

impl Exposition {
    pub fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(Sample::parse).collect())
    }

    /// The samples with these labels among theirs.
    pub fn find<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = &'a Sample> {
        let has = |sample: &Sample| {
            let mut labels = labels.iter();
            labels.all(|(label, value)| sample.labels.get(*label).is_some_and(|is| is == value))
        };
        self.0
            .iter()
            .filter(move |sample| sample.name == name && has(sample))
    }

    /// The sum of the samples with these labels, of which there is at least one.
    #[track_caller]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let values: Vec<f64> = self.find(name, labels).map(|sample| sample.value).collect();
        assert!(!values.is_empty(), "no {name} with {labels:?}");
        values.iter().sum()
    }
}

impl Sample {
    fn parse(line: &str) -> Self {
        let (series, value) = line.rsplit_once(' ').expect(line);
        let (name, labels) = series.split_once('{').expect(line);
        let labels = labels.strip_suffix('}').expect(line).split("\",");
        let labels = labels.map(|label| {
            let (name, value) = label.split_once("=\"").expect(line);
            (name.to_owned(), value.trim_end_matches('"').to_owned())
        });
        Self {
            name: name.to_owned(),
            labels: labels.collect(),
            value: value.parse().expect(line),
        }
    }

    /// The metric that it belongs to: of a histogram's bucket, sum or count, the histogram.
    pub fn metric(&self) -> &str {
        metric_of(&self.name)
    }
}

/// The metric that a sample of this name belongs to.
pub fn metric_of(name: &str) -> &str {
    let histograms = metrics::BUCKETS.iter().map(|(metric, _)| *metric);
    let mut histograms = histograms.filter(|metric| {
        let rest = name.strip_prefix(metric);
        rest.is_some_and(|rest| matches!(rest, "_bucket" | "_sum" | "_count"))
    });
    histograms.next().unwrap_or(name)
}
