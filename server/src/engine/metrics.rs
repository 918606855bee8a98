//! The reference server's metrics of rules. They are rendered here: the recorder of the other ones never forgets a series, and rules
//! come and go.

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Write as _},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use metrics::{Counter, Key, KeyName, Label, Level, Metadata, Recorder};

/// The most series of rules.
const MAX_SERIES: usize = 10_000;

/// The metrics of a rule, or of a rule and the values of a descriptor.
const NAMES: [&str; 5] = [
    "ratelimit_service_rate_limit_total_hits",
    "ratelimit_service_rate_limit_over_limit",
    "ratelimit_service_rate_limit_near_limit",
    "ratelimit_service_rate_limit_within_limit",
    "ratelimit_service_rate_limit_shadow_mode",
];

/// The label of rules that would make too many series.
const OTHER: &str = "other";

/// The domain and the labels of the entries.
pub(super) type Labels = Vec<String>;

/// The counters of all rules.
pub(super) struct RuleMetrics {
    /// Of the other metrics. `None`: they are not recorded.
    recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    series: RwLock<HashMap<Labels, Series>>,
    /// Of rules that would make too many series.
    other: Arc<RuleCounters>,
    near_percent: u8,
}

struct Series {
    counters: Arc<RuleCounters>,
    /// The labels of the rule, which are those of the series unless it names values of requests.
    rule: Labels,
}

/// The counters of a rule.
#[derive(Debug, Default)]
pub(super) struct RuleCounters {
    total_hits: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    within_limit: AtomicU64,
    shadow_mode: AtomicU64,
}

/// The most units of one descriptor that metrics count.
const MAX_COUNTED_COST: u64 = 1 << 32;

/// What is counted of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) cost: u64,
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) over: bool,
    pub(super) shadow: bool,
}

impl RuleMetrics {
    pub(super) fn new(recorder: Option<Arc<dyn Recorder + Send + Sync>>, near_percent: u8) -> Self {
        Self {
            recorder,
            series: RwLock::default(),
            other: Arc::default(),
            near_percent: near_percent.min(100),
        }
    }

    /// The counters of a rule for the values in `labels`; `None` if there are too many.
    pub(super) fn counters(&self, rule: &[String], labels: &[String]) -> Option<Arc<RuleCounters>> {
        let series = self.read();
        if let Some(known) = series.get(labels) {
            return Some(known.counters.clone());
        }
        let is_full = series.len() >= MAX_SERIES / NAMES.len();
        drop(series);
        if is_full {
            return None;
        }
        let mut series = self.write();
        let added = series.entry(labels.to_vec()).or_insert_with(|| Series {
            counters: Arc::default(),
            rule: rule.to_vec(),
        });
        Some(added.counters.clone())
    }

    /// The counters of a rule, without values of requests; those of all other rules if there are too many.
    pub(super) fn counters_of_rule(&self, rule: &[String]) -> Arc<RuleCounters> {
        let of_rule = self.counters(rule, rule);
        of_rule.unwrap_or_else(|| self.other.clone())
    }

    /// Removes the series of all rules but these.
    pub(super) fn retain(&self, rules: &HashSet<Labels>) {
        self.write()
            .retain(|_, series| rules.contains(&series.rule));
    }

    /// Writes all series in the text format of Prometheus.
    pub(super) fn render(&self) -> String {
        let series = self.read();
        let mut all: Vec<(&[String], Arc<RuleCounters>)> = series
            .iter()
            .map(|(labels, series)| (&labels[..], series.counters.clone()))
            .collect();
        all.sort_by_key(|(labels, _)| *labels);
        let other = [OTHER.to_owned()];
        if self.other.total_hits.load(Relaxed) > 0 {
            all.push((&other, self.other.clone()));
        }
        let mut text = String::new();
        for (index, name) in NAMES.iter().enumerate() {
            // Writing to a string can't fail.
            let _ = writeln!(text, "# TYPE {name} counter");
            for (labels, counters) in &all {
                let count = counters.in_order()[index].load(Relaxed);
                let _ = writeln!(text, "{name}{{{}}} {count}", LabelText(labels));
            }
        }
        text
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<Labels, Series>> {
        self.series.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Labels, Series>> {
        self.series.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A counter of this name.
    pub(super) fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        let Some(recorder) = &self.recorder else {
            return Counter::noop();
        };
        let key = Key::from_parts(KeyName::from_const_str(name), labels);
        recorder.register_counter(&key, &Metadata::new(module_path!(), Level::INFO, None))
    }

    /// Counts a descriptor's result.
    pub(super) fn record(&self, counters: &RuleCounters, counts: Counts) {
        let Counts { limit, .. } = counts;
        // Counters wrap: a client chooses the cost.
        let cost = counts.cost.min(MAX_COUNTED_COST);
        counters.total_hits.fetch_add(cost, Relaxed);
        if counts.over {
            counters.over_limit.fetch_add(cost, Relaxed);
            if counts.shadow {
                counters.shadow_mode.fetch_add(cost, Relaxed);
            }
            return;
        }
        counters.within_limit.fetch_add(cost, Relaxed);
        let near = u128::from(limit) * u128::from(self.near_percent) / 100;
        let near = u64::try_from(near).unwrap_or(u64::MAX);
        let used = limit.saturating_sub(counts.remaining);
        // The part of the cost above the share of the limit.
        let near = used.saturating_sub(near).min(cost);
        counters.near_limit.fetch_add(near, Relaxed);
    }
}

impl RuleCounters {
    /// As in `NAMES`.
    fn in_order(&self) -> [&AtomicU64; NAMES.len()] {
        [
            &self.total_hits,
            &self.over_limit,
            &self.near_limit,
            &self.within_limit,
            &self.shadow_mode,
        ]
    }
}

/// The labels of a series as Prometheus reads them: `domain`, `key1`, `key2` and so on.
struct LabelText<'a>(&'a [String]);

impl fmt::Display for LabelText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, value) in self.0.iter().enumerate() {
            match depth {
                0 => f.write_str("domain=\"")?,
                depth => write!(f, ",key{depth}=\"")?,
            }
            for character in value.chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    '"' => f.write_str("\\\"")?,
                    '\n' => f.write_str("\\n")?,
                    other => f.write_char(other)?,
                }
            }
            f.write_char('"')?;
        }
        Ok(())
    }
}

impl fmt::Debug for RuleMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleMetrics").finish_non_exhaustive()
    }
}
