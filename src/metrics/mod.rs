//! Metrics, by the [`::metrics`] facade: for Prometheus, and whatever else has a recorder for it.
//!
//! [`Metrics`] is an [`Observer`]. Without the calls of [`collect`](Metrics::collect) there are histograms only: requests are
//! counted in shards, which are summed when the metrics are read. So a request takes a few relaxed atomic additions, no lock and no
//! allocation.
//!
#![doc = include_str!("../../docs/metrics.md")]

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use ::metrics::{Histogram, Recorder};

pub use self::table::BUCKETS;
use self::{
    collect::{Collected, ConfigLoads, Sources},
    nodes::Nodes,
    recorder::LimiterRecorder,
    table::{DECISION_SECONDS, WAIT_SECONDS},
};
use crate::{
    observe::{
        DecisionEvent, DecisionOutcome, DecisionSource, Event, LimiterStats, NEAR_PERCENT,
        Observer, StatsHandle, StoreCallEvent, UnitsEvent, counts::Counts,
    },
    sync::lock,
};

mod collect;
mod nodes;
mod recorder;
mod table;

/// The metrics of one limiter: an observer for [`LimiterBuilder::observe`](crate::limiter::LimiterBuilder::observe). See
/// [the module](self) for an example.
///
/// Each limiter needs metrics of its own, with a name of its own. Of several limiters with the same `Metrics`, requests are counted
/// together, and the gauges are those of the one that was built or reconfigured last.
///
/// Label values are the limiter's name, the names of policies, the addresses of the store's servers, and words of this crate:
/// nothing of a request. A policy that is gone keeps its counters; its gauges are 0.
pub struct Metrics {
    recorder: LimiterRecorder,
    counts: Counts,
    nodes: Nodes,
    /// By source.
    decision_seconds: [Histogram; DecisionSource::ALL.len()],
    wait_seconds: Histogram,
    config_loads: ConfigLoads,
    /// That of the limiter which was built or reconfigured last.
    handle: Mutex<Option<StatsHandle>>,
    collected: Mutex<Collected>,
}

impl Metrics {
    /// Metrics with the label `limiter`, by the recorder that the [`::metrics`] facade has installed by now.
    pub fn new(limiter: impl Into<String>) -> Self {
        Self::from_recorder(LimiterRecorder::new(limiter.into(), None))
    }

    /// Metrics by a recorder that is not installed, such as one of several in a process.
    pub fn with_recorder(
        limiter: impl Into<String>,
        recorder: impl Recorder + Send + Sync + 'static,
    ) -> Self {
        let recorder = Arc::new(recorder);
        Self::from_recorder(LimiterRecorder::new(limiter.into(), Some(recorder)))
    }

    /// Sets the share of a limit, in percent, above which a request is `near` it. Default: [`NEAR_PERCENT`], 80.
    #[must_use]
    pub fn near_percent(mut self, percent: u8) -> Self {
        self.counts = Counts::new(percent);
        self
    }

    fn from_recorder(recorder: LimiterRecorder) -> Self {
        recorder.describe_all();
        let decision_seconds = DecisionSource::ALL
            .map(|source| recorder.histogram(&DECISION_SECONDS, [source.as_str().into()]));
        Self {
            wait_seconds: recorder.histogram(&WAIT_SECONDS, []),
            decision_seconds,
            recorder,
            counts: Counts::new(NEAR_PERCENT),
            nodes: Nodes::default(),
            config_loads: ConfigLoads::default(),
            handle: Mutex::default(),
            collected: Mutex::default(),
        }
    }

    /// Brings all counters and gauges up to date. Call it before each rendering or export.
    ///
    /// It calls no store, and registers counters and gauges anew, so that a recorder that forgets idle ones finds them again.
    pub fn collect(&self) {
        let mut collected = lock(&self.collected);
        // Read under the lock: what two collections have read is added in the order in which it was read.
        let sources = Sources {
            counts: &self.counts,
            nodes: &self.nodes,
            config_loads: &self.config_loads,
            stats: self.stats().unwrap_or_default(),
        };
        collected.collect(&self.recorder, &sources);
    }

    /// The state of the limiter, if there is one.
    fn stats(&self) -> Option<LimiterStats> {
        let handle = lock(&self.handle).clone();
        handle?.stats()
    }

    /// Goes on with the state of these policies.
    fn replace_policies(&self, stats: &LimiterStats, handle: &StatsHandle) {
        let mut collected = lock(&self.collected);
        collected.replace_policies(self.stats().as_ref(), stats);
        *lock(&self.handle) = Some(handle.clone());
    }
}

impl Observer for Metrics {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        self.counts.on_decision(event);
        if let Some(elapsed) = event.elapsed
            && event.outcome != DecisionOutcome::Cancelled
        {
            if event.waits {
                self.wait_seconds.record(elapsed);
            } else {
                self.decision_seconds[event.source as usize].record(elapsed);
            }
        }
    }

    fn on_units(&self, event: &UnitsEvent<'_>) {
        self.counts.on_units(event);
    }

    fn on_store_call(&self, event: &StoreCallEvent<'_>) {
        self.nodes.record(&self.recorder, event);
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }

    fn on_event(&self, event: &Event<'_>) {
        self.counts.on_event(event);
        match event {
            Event::PoliciesInForce { stats, handle } => self.replace_policies(stats, handle),
            Event::ConfigLoaded { applied, .. } => self.config_loads.add(*applied),
            _ => {}
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut metrics = f.debug_struct("Metrics");
        metrics
            .field("recorder", &self.recorder)
            .finish_non_exhaustive()
    }
}
