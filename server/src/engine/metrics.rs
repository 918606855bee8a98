//! The reference server's metrics of rules.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
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

/// The counters of all rules, by their labels.
pub(super) struct RuleMetrics {
    /// `None`: nothing is recorded.
    recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    counters: RwLock<HashMap<Vec<String>, Arc<RuleCounters>>>,
    near_percent: u8,
}

/// The counters of a rule.
#[derive(Debug)]
pub(super) struct RuleCounters {
    total_hits: Counter,
    over_limit: Counter,
    near_limit: Counter,
    within_limit: Counter,
    shadow_mode: Counter,
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
            counters: RwLock::default(),
            near_percent: near_percent.min(100),
        }
    }

    /// The counters with these labels, the domain and those of the entries; `None` if there are too many.
    pub(super) fn counters(&self, labels: &[String]) -> Option<Arc<RuleCounters>> {
        let known = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = known.get(labels) {
            return Some(counters.clone());
        }
        let is_full = known.len() >= MAX_SERIES / NAMES.len();
        drop(known);
        if is_full {
            return None;
        }
        let mut known = self
            .counters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let counters = known
            .entry(labels.to_vec())
            .or_insert_with(|| self.register(labels));
        Some(counters.clone())
    }

    /// The counters of a rule, without values of requests; those of all other rules if there are too many.
    pub(super) fn counters_of_rule(&self, labels: &[String]) -> Arc<RuleCounters> {
        let of_rule = self.counters(labels);
        of_rule.unwrap_or_else(|| self.register(&[OTHER.to_owned()]))
    }

    fn register(&self, labels: &[String]) -> Arc<RuleCounters> {
        let labels = labels.iter().enumerate().map(|(depth, value)| match depth {
            0 => Label::new("domain", value.clone()),
            depth => Label::new(format!("key{depth}"), value.clone()),
        });
        let labels: Vec<Label> = labels.collect();
        let [
            total_hits,
            over_limit,
            near_limit,
            within_limit,
            shadow_mode,
        ] = NAMES.map(|name| self.counter(name, labels.clone()));
        Arc::new(RuleCounters {
            total_hits,
            over_limit,
            near_limit,
            within_limit,
            shadow_mode,
        })
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
        counters.total_hits.increment(cost);
        if counts.over {
            counters.over_limit.increment(cost);
            if counts.shadow {
                counters.shadow_mode.increment(cost);
            }
            return;
        }
        counters.within_limit.increment(cost);
        let near = u128::from(limit) * u128::from(self.near_percent) / 100;
        let near = u64::try_from(near).unwrap_or(u64::MAX);
        let used = limit.saturating_sub(counts.remaining);
        // The part of the cost above the share of the limit.
        counters
            .near_limit
            .increment(used.saturating_sub(near).min(cost));
    }
}

impl fmt::Debug for RuleMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleMetrics").finish_non_exhaustive()
    }
}
