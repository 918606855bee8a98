//! What the callers of a limiter saw, and its metrics, which must say the same.

use std::sync::atomic::Ordering::Relaxed;

use tollgate_tests::{
    exposition::{Exposition, Observed},
    prelude::*,
};

/// A limiter whose requests are counted by its callers and by its metrics.
#[derive(Clone)]
pub(crate) struct CountedLimiter {
    pub(crate) limiter: Limiter,
    pub(crate) seen: Arc<Seen>,
    observed: Arc<Observed>,
}

/// What the callers saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    asked: AtomicU64,
    admitted: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    /// Dropped before the decision.
    left: AtomicU64,
}

/// The sums of some limiters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) asked: u64,
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    pub(crate) left: u64,
}

impl Seen {
    pub(crate) fn ask(&self) {
        self.asked.fetch_add(1, Relaxed);
    }

    pub(crate) fn decided(&self, decision: &Decision) {
        let count = match decision.kind() {
            DecisionKind::Admitted => &self.admitted,
            DecisionKind::Rejected => &self.rejected,
            DecisionKind::StoreFailed(_) => &self.failed,
            other => panic!("no caller asks for {other:?}"),
        };
        count.fetch_add(1, Relaxed);
    }

    pub(crate) fn left(&self) {
        self.left.fetch_add(1, Relaxed);
    }

    fn sums(&self) -> Sums {
        Sums {
            asked: self.asked.load(Relaxed),
            admitted: self.admitted.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            failed: self.failed.load(Relaxed),
            left: self.left.load(Relaxed),
        }
    }
}

impl Sums {
    pub(crate) fn add(&mut self, other: Self) {
        self.asked += other.asked;
        self.admitted += other.admitted;
        self.rejected += other.rejected;
        self.failed += other.failed;
        self.left += other.left;
    }
}

impl CountedLimiter {
    pub(crate) fn build(builder: LimiterBuilder) -> Self {
        let observed = Arc::new(Observed::default());
        let limiter = builder.observe(observed.metrics.clone()).built();
        Self {
            limiter,
            seen: Arc::default(),
            observed,
        }
    }

    /// Reads the metrics, as Prometheus would: until then the exporter keeps each time that was recorded.
    pub(crate) fn scrape(&self) {
        self.observed.text();
    }

    /// What the callers saw, once all requests have ended; adds what the metrics say otherwise.
    pub(crate) fn reconcile(&self, wrong: &mut Vec<String>) -> Sums {
        let (sums, exposition) = (self.seen.sums(), self.observed.exposition());
        let policies = self.limiter.policies();
        let mut must_equal = |what: String, metric: u64, seen: u64| {
            if metric != seen {
                wrong.push(format!(
                    "{:?}: {metric} {what} by the metrics, {seen} by the callers: {sums:?}",
                    policies
                        .iter()
                        .map(|policy| policy.name())
                        .collect::<Vec<_>>()
                ));
            }
        };
        let ended = sums.admitted + sums.rejected + sums.failed + sums.left;
        must_equal("asked".into(), requests(&exposition, &[]), sums.asked);
        must_equal("ended".into(), requests(&exposition, &[]), ended);
        for (outcome, seen) in [
            ("admitted", sums.admitted),
            ("rejected", sums.rejected),
            ("store_failed", sums.failed),
            ("cancelled", sums.left),
        ] {
            let metric = requests(&exposition, &[("outcome", outcome)]);
            must_equal(outcome.into(), metric, seen);
        }
        // Each admitted request costs a unit under each policy, and none is given back but permits.
        for policy in policies
            .iter()
            .filter(|policy| !policy.quota().is_concurrent())
        {
            let units = |kind| {
                let labels = [("policy", policy.name()), ("kind", kind)];
                exposition.value("tollgate_policy_units_total", &labels) as u64
            };
            let charged = format!("units charged under {}", policy.name());
            must_equal(charged, units("charged"), sums.admitted);
            let refunded = format!("units refunded under {}", policy.name());
            must_equal(refunded, units("refunded"), 0);
        }
        let value = |name| exposition.value(name, &[]) as u64;
        must_equal("permits held".into(), value("tollgate_permits"), 0);
        must_equal(
            "admitted uncounted".into(),
            value("tollgate_admitted_uncounted_total"),
            0,
        );
        let failed = exposition.value("tollgate_store_calls_total", &[("result", "error")]);
        let codes = value("tollgate_store_errors_total");
        must_equal("calls failed by code".into(), codes, failed as u64);
        sums
    }
}

/// The requests with these labels.
fn requests(exposition: &Exposition, labels: &[(&str, &str)]) -> u64 {
    exposition.value("tollgate_requests_total", labels) as u64
}
