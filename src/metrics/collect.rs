//! Sets counters and gauges to what was counted, and to the state of the limiter.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use metrics::SharedString;

use super::{
    nodes::Nodes,
    recorder::LimiterRecorder,
    table::{
        ADMITTED_UNCOUNTED, BANS, CONFIG_LOADED_TIMESTAMP, CONFIG_LOADS, LEASE_UNITS,
        LEASE_UNITS_HELD, MEMORY_EVICTIONS, MEMORY_KEYS, Metric, OVERRIDES, PERMITS,
        POLICY_BURST_UNITS, POLICY_QUOTA_PERIOD_SECONDS, POLICY_QUOTA_UNITS, POLICY_REQUESTS,
        POLICY_UNITS, REFUNDS_DROPPED, REFUNDS_QUEUED, REFUNDS_UNCONFIRMED,
        REJECTION_CACHE_ENTRIES, REQUESTS, WAITERS,
    },
};
use crate::observe::{
    LeaseStats, LimiterStats, PolicyStats, StoreStats,
    counts::{Counts, PolicyTotals, Totals},
};

/// What was counted since the metrics were made, and the state of the limiter.
pub(super) struct Sources<'a> {
    pub(super) counts: &'a Counts,
    pub(super) nodes: &'a Nodes,
    pub(super) config_loads: &'a ConfigLoads,
    pub(super) stats: LimiterStats,
}

/// What has to be remembered between two collections: counts of others that may begin anew.
#[derive(Debug, Default)]
pub(super) struct Collected {
    dropped_refunds: ResettableCounter,
    unconfirmed_refunds: ResettableCounter,
    evictions: ResettableCounter,
    leases: HashMap<Arc<str>, LeaseUnits>,
}

/// The units of a policy's leases.
#[derive(Debug, Default)]
struct LeaseUnits {
    granted: ResettableCounter,
    spent: ResettableCounter,
    refunded: ResettableCounter,
    lapsed: ResettableCounter,
    held: u64,
}

/// The sum of a counter that may reset, as when a store is replaced.
#[derive(Debug, Default)]
struct ResettableCounter {
    last: u64,
    sum: u64,
}

/// Loads of a changed configuration file.
#[derive(Debug, Default)]
pub(super) struct ConfigLoads {
    applied: AtomicU64,
    failed: AtomicU64,
    /// When one was last applied, in seconds of Unix time.
    applied_at: AtomicU64,
}

impl Collected {
    pub(super) fn collect(&mut self, recorder: &LimiterRecorder, sources: &Sources<'_>) {
        let stats = &sources.stats;
        let totals = sources.counts.totals();
        collect_requests(recorder, &totals);
        self.count_leases(&stats.store);
        let states = stats.policies.iter().map(|now| (&now.policy, now));
        let states: HashMap<_, _> = states.collect();
        for policy in totals.policies() {
            let now = states.get(policy.name()).copied();
            collect_policy(recorder, policy);
            collect_policy_state(recorder, policy.name(), now);
            self.collect_leases(recorder, policy.name());
        }
        sources.nodes.collect(recorder, &stats.store.nodes);
        self.collect_store(recorder, &stats.store);
        sources.config_loads.collect(recorder);
    }

    fn collect_store(&mut self, recorder: &LimiterRecorder, store: &StoreStats) {
        set(recorder, &REFUNDS_QUEUED, store.queued_refunds);
        let entries = store.rejection_cache_entries.unwrap_or_default();
        set(recorder, &REJECTION_CACHE_ENTRIES, entries);
        set(
            recorder,
            &MEMORY_KEYS,
            store.memory_keys.unwrap_or_default(),
        );
        let evictions = store.memory_evictions.unwrap_or_default();
        for (metric, count, now) in [
            (
                &REFUNDS_DROPPED,
                &mut self.dropped_refunds,
                store.dropped_refunds,
            ),
            (
                &REFUNDS_UNCONFIRMED,
                &mut self.unconfirmed_refunds,
                store.unconfirmed_refunds,
            ),
            (&MEMORY_EVICTIONS, &mut self.evictions, evictions),
        ] {
            recorder.counter(metric, []).absolute(count.update(now));
        }
    }

    /// Goes on with the counts of other policies, which may begin anew. What was counted under those before is added first.
    pub(super) fn replace_policies(&mut self, before: Option<&LimiterStats>, now: &LimiterStats) {
        if let Some(before) = before {
            self.count_leases(&before.store);
        }
        // The store of another limiter is another one if it has leased nothing yet.
        for (policy, units) in &mut self.leases {
            let is_leased = now.store.leases.iter().any(|now| now.policy == *policy);
            if now.generation == 0 && !is_leased {
                units.restart();
            }
        }
    }

    /// Adds the units that were leased since the last look at them. What is held is of now.
    fn count_leases(&mut self, store: &StoreStats) {
        for units in self.leases.values_mut() {
            units.held = 0;
        }
        for stats in &store.leases {
            let units = self.leases.entry(stats.policy.clone()).or_default();
            units.update(stats);
        }
    }

    /// Sets the units of a policy's leases, to 0 if it has had none.
    fn collect_leases(&self, recorder: &LimiterRecorder, policy: &Arc<str>) {
        let units = self.leases.get(policy);
        let by_kind = units.map_or_else(|| LeaseUnits::default().by_kind(), LeaseUnits::by_kind);
        for (kind, sum) in by_kind {
            let labels = [policy.clone().into(), kind.into()];
            recorder.counter(&LEASE_UNITS, labels).absolute(sum);
        }
        let held = units.map_or(0, |units| units.held);
        let gauge = recorder.gauge(&LEASE_UNITS_HELD, [policy.clone().into()]);
        gauge.set(held as f64);
    }
}

fn collect_requests(recorder: &LimiterRecorder, totals: &Totals) {
    for (outcome, source, requests) in totals.requests() {
        let labels = [outcome.as_str().into(), source.as_str().into()];
        recorder.counter(&REQUESTS, labels).absolute(requests);
    }
    let counter = recorder.counter(&ADMITTED_UNCOUNTED, []);
    counter.absolute(totals.uncounted());
}

fn collect_policy(recorder: &LimiterRecorder, policy: &PolicyTotals) {
    let name = || SharedString::from(policy.name().clone());
    for (result, requests) in policy.requests() {
        let counter = recorder.counter(&POLICY_REQUESTS, [name(), result.as_str().into()]);
        counter.absolute(requests);
    }
    for (kind, units) in policy.units() {
        let counter = recorder.counter(&POLICY_UNITS, [name(), kind.as_str().into()]);
        counter.absolute(units);
    }
    recorder.counter(&BANS, [name()]).absolute(policy.bans());
}

/// Sets the gauges of a policy, to 0 if it is gone. A block list has no quota.
fn collect_policy_state(recorder: &LimiterRecorder, policy: &Arc<str>, now: Option<&PolicyStats>) {
    let quota = now.and_then(|now| now.quota);
    let period = quota.filter(|quota| !quota.is_concurrent());
    let period = period.map_or(Duration::ZERO, |quota| quota.period());
    let count = |count: fn(&PolicyStats) -> u64| now.map_or(0, count) as f64;
    for (metric, value) in [
        (
            &POLICY_QUOTA_UNITS,
            quota.map_or(0, |quota| quota.amount()) as f64,
        ),
        (&POLICY_QUOTA_PERIOD_SECONDS, period.as_secs_f64()),
        (&POLICY_BURST_UNITS, count(|now| now.limit)),
        (&PERMITS, count(|now| now.permits)),
        (&WAITERS, count(|now| now.waiters)),
        (&OVERRIDES, count(|now| now.overrides)),
    ] {
        recorder.gauge(metric, [policy.clone().into()]).set(value);
    }
}

/// Sets a gauge without labels of its own.
fn set(recorder: &LimiterRecorder, metric: &Metric, value: u64) {
    recorder.gauge(metric, []).set(value as f64);
}

impl ConfigLoads {
    pub(super) fn add(&self, applied: bool) {
        if applied {
            self.applied.fetch_add(1, Ordering::Relaxed);
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(0, |now| now.as_secs());
            self.applied_at.store(now, Ordering::Relaxed);
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn collect(&self, recorder: &LimiterRecorder) {
        for (result, loads) in [("applied", &self.applied), ("failed", &self.failed)] {
            let counter = recorder.counter(&CONFIG_LOADS, [result.into()]);
            counter.absolute(loads.load(Ordering::Relaxed));
        }
        let applied_at = self.applied_at.load(Ordering::Relaxed);
        set(recorder, &CONFIG_LOADED_TIMESTAMP, applied_at);
    }
}

impl LeaseUnits {
    /// Adds those since the last look, given those since the store was built.
    fn update(&mut self, now: &LeaseStats) {
        self.granted.update(now.granted);
        self.spent.update(now.spent);
        self.refunded.update(now.refunded);
        self.lapsed.update(now.lapsed);
        self.held = now.held;
    }

    /// Goes on with units that are counted from 0.
    fn restart(&mut self) {
        for counter in [
            &mut self.granted,
            &mut self.spent,
            &mut self.refunded,
            &mut self.lapsed,
        ] {
            counter.last = 0;
        }
        self.held = 0;
    }

    fn by_kind(&self) -> [(&'static str, u64); 4] {
        [
            ("granted", self.granted.sum),
            ("spent", self.spent.sum),
            ("refunded", self.refunded.sum),
            ("lapsed", self.lapsed.sum),
        ]
    }
}

impl ResettableCounter {
    fn update(&mut self, now: u64) -> u64 {
        let more = now.checked_sub(self.last).unwrap_or(now);
        (self.last, self.sum) = (now, self.sum + more);
        self.sum
    }
}
