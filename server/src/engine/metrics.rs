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

/// The most rules with series of their own.
const MAX_RULES: usize = 2_000;

/// The most rules with values that have series of their own. Clients choose the values: they take no rule's place.
const MAX_VALUES: usize = 1_000;

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
#[derive(Debug)]
pub(super) struct RuleMetrics {
    series: RwLock<AllSeries>,
    /// Of rules that would make too many series.
    other: Arc<RuleCounters>,
    near_percent: u8,
}

#[derive(Debug, Default)]
struct AllSeries {
    by_labels: HashMap<Labels, Series>,
    /// How many of them name values of requests.
    values: usize,
}

#[derive(Debug)]
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
    pub(super) fn new(near_percent: u8) -> Self {
        Self {
            series: RwLock::default(),
            other: Arc::default(),
            near_percent: near_percent.min(100),
        }
    }

    /// The counters of a rule for the values in `labels`; `None` if there are too many.
    pub(super) fn counters(&self, rule: &[String], labels: &[String]) -> Option<Arc<RuleCounters>> {
        let is_of_value = rule != labels;
        let found = |series: &AllSeries| match series.by_labels.get(labels) {
            Some(known) => Some(Some(known.counters.clone())),
            None if series.is_full(is_of_value) => Some(None),
            None => None,
        };
        if let Some(found) = found(&self.read()) {
            return found;
        }
        let mut series = self.write();
        if let Some(found) = found(&series) {
            return found;
        }
        let counters = Arc::<RuleCounters>::default();
        let added = Series {
            counters: counters.clone(),
            rule: rule.to_vec(),
        };
        series.by_labels.insert(labels.to_vec(), added);
        series.values += usize::from(is_of_value);
        Some(counters)
    }

    /// The counters of a rule, without values of requests; those of all other rules if there are too many.
    pub(super) fn counters_of_rule(&self, rule: &[String]) -> Arc<RuleCounters> {
        let of_rule = self.counters(rule, rule);
        of_rule.unwrap_or_else(|| self.other.clone())
    }

    /// Removes the series of all rules but these.
    pub(super) fn retain(&self, rules: &HashSet<Labels>) {
        let mut all = self.write();
        all.by_labels
            .retain(|_, series| rules.contains(&series.rule));
        let values = all.by_labels.iter();
        all.values = values
            .filter(|(labels, series)| **labels != series.rule)
            .count();
    }

    /// Writes all series in the text format of Prometheus.
    pub(super) fn render(&self) -> String {
        let counters =
            |(labels, series): (&Labels, &Series)| (labels.clone(), series.counters.clone());
        // Not locked while the text is written: requests may add series.
        let mut all: Vec<_> = self.read().by_labels.iter().map(counters).collect();
        all.sort_by(|(labels, _), (other, _)| labels.cmp(other));
        if self.other.total_hits.load(Relaxed) > 0 {
            all.push((vec![OTHER.to_owned()], self.other.clone()));
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

    fn read(&self) -> RwLockReadGuard<'_, AllSeries> {
        self.series.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, AllSeries> {
        self.series.write().unwrap_or_else(PoisonError::into_inner)
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

impl AllSeries {
    fn is_full(&self, is_of_value: bool) -> bool {
        if is_of_value {
            self.values >= MAX_VALUES
        } else {
            self.by_labels.len() - self.values >= MAX_RULES
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_clients_take_no_place_of_rules() {
        let metrics = RuleMetrics::new(80);
        let labels = |text: String| vec!["test".to_owned(), text];
        let rule = labels("user".to_owned());
        metrics.counters_of_rule(&rule);
        let mut added = 0;
        for value in 0..2 * MAX_VALUES {
            let labels = labels(format!("user_{value}"));
            added += usize::from(metrics.counters(&rule, &labels).is_some());
        }
        assert_eq!(added, MAX_VALUES);
        let is_other = |rule: usize| {
            let counters = metrics.counters_of_rule(&labels(format!("rule_{rule}")));
            Arc::ptr_eq(&counters, &metrics.other)
        };
        assert!(!(1..MAX_RULES).any(is_other));
        assert!(is_other(MAX_RULES));
        // Those of rules that are gone make room.
        metrics.retain(&[rule.clone()].into());
        assert!(!is_other(MAX_RULES));
        let another = labels("user_another".to_owned());
        assert!(metrics.counters(&rule, &another).is_none());
        metrics.retain(&HashSet::new());
        assert!(metrics.counters(&rule, &another).is_some());
    }
}
