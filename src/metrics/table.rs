//! The metrics: their names, labels and units. `docs/metrics.md` has the same table.

use metrics::Unit;

/// A metric.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Beside `limiter`, which all have.
    pub(super) labels: &'static [&'static str],
    pub(super) unit: Unit,
    pub(super) about: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Defines the metrics, and [`ALL`] of them.
macro_rules! metrics {
    ($($id:ident: $kind:ident $name:literal [$($label:literal),*] $unit:ident $about:literal;)*) => {
        $(pub(super) const $id: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            unit: Unit::$unit,
            about: $about,
        };)*

        /// In the order of the guide.
        pub(super) const ALL: &[Metric] = &[$($id),*];
    };
}

metrics! {
    REQUESTS: Counter "tollgate_requests_total" ["outcome", "source"] Count
        "Requests by outcome, and by what decided them";
    ADMITTED_UNCOUNTED: Counter "tollgate_admitted_uncounted_total" [] Count
        "Requests that were admitted without being counted, since the store failed";
    DECISION_SECONDS: Histogram "tollgate_decision_seconds" ["source"] Seconds
        "Time to a decision; of decisions without a call of the store, one in 64 is timed";
    WAIT_SECONDS: Histogram "tollgate_wait_seconds" [] Seconds
        "Time to the decision of a request that was allowed to wait";

    POLICY_REQUESTS: Counter "tollgate_policy_requests_total" ["policy", "result"] Count
        "Requests by their result under a policy";
    POLICY_UNITS: Counter "tollgate_policy_units_total" ["policy", "kind"] Count
        "Units charged, refunded, settled and credited under a policy";
    LEASE_UNITS: Counter "tollgate_lease_units_total" ["policy", "kind"] Count
        "Units that this process has leased under a policy, and what became of them";
    LEASE_UNITS_HELD: Gauge "tollgate_lease_units_held" ["policy"] Count
        "Units of leases that this process holds, and may still spend";
    POLICY_QUOTA_UNITS: Gauge "tollgate_policy_quota_units" ["policy"] Count
        "A policy's quota: the units of one period; 0 for a block list, and once the policy is gone";
    POLICY_QUOTA_PERIOD_SECONDS: Gauge "tollgate_policy_quota_period_seconds" ["policy"] Seconds
        "The period of a policy's quota; 0 for an in-flight limit or a block list, and once the policy is gone";
    POLICY_BURST_UNITS: Gauge "tollgate_policy_burst_units" ["policy"] Count
        "The most units that can be charged under a policy at once; 0 for a block list, and once the policy is gone";
    PERMITS: Gauge "tollgate_permits" ["policy"] Count
        "Permits of an in-flight limit that this process holds. One that is refunded early counts until its request ends";
    WAITERS: Gauge "tollgate_waiters" ["policy"] Count
        "Requests of this process that wait for a policy";
    OVERRIDES: Gauge "tollgate_overrides" ["policy"] Count
        "Overrides of keys of a policy that are in force in this process";
    BANS: Counter "tollgate_bans_total" ["policy"] Count
        "Bans that this process began, for rejections or by hand";

    STORE_CALLS: Counter "tollgate_store_calls_total" ["node", "result"] Count
        "Round trips to a server of the store";
    STORE_CALL_SECONDS: Histogram "tollgate_store_call_seconds" ["node"] Seconds
        "Time of a round trip to a server of the store";
    BATCH_REQUESTS: Histogram "tollgate_batch_requests" ["node"] Count
        "Requests of one round trip; those of a repeated one are counted once";
    STORE_ERRORS: Counter "tollgate_store_errors_total" ["code"] Count
        "Round trips by which requests or other operations failed, by the code of the error";
    CIRCUIT_BREAKER_STATE: Gauge "tollgate_circuit_breaker_state" ["node"] Count
        "State of a server's circuit breaker: 0 closed, 1 half-open, 2 open";
    STORE_CONNECTIONS: Gauge "tollgate_store_connections" ["node"] Count
        "Connections to a server of the store";
    REFUNDS_QUEUED: Gauge "tollgate_refunds_queued" [] Count
        "Refunds, charges, settlements and resets that are in flight or kept for later, also refunds of leases";
    REFUNDS_DROPPED: Counter "tollgate_refunds_dropped_total" [] Count
        "Refunds, charges and settlements without a waiter that were given up";
    REFUNDS_UNCONFIRMED: Counter "tollgate_refunds_unconfirmed_total" [] Count
        "Refunds, charges and settlements without a waiter whose result is unknown";
    REJECTION_CACHE_ENTRIES: Gauge "tollgate_rejection_cache_entries" [] Count
        "Rejections that are cached";
    MEMORY_KEYS: Gauge "tollgate_memory_keys" [] Count
        "Keys of a store in process";
    MEMORY_EVICTIONS: Counter "tollgate_memory_evictions_total" [] Count
        "Keys with units in use that a full store in process has evicted";

    CONFIG_LOADS: Counter "tollgate_config_loads_total" ["result"] Count
        "Loads of a watched configuration file: the first, and one for each change";
    CONFIG_LOADED_TIMESTAMP: Gauge "tollgate_config_loaded_timestamp_seconds" [] Seconds
        "When a watched configuration file was last put in force, in Unix time; 0 if none was";
}

/// Bounds of buckets for the histograms of this crate, by name: for exporters that need them, such as Prometheus'.
///
/// ```
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
///
/// let mut builder = PrometheusBuilder::new();
/// for (metric, bounds) in tollgate::metrics::BUCKETS {
///     builder = builder.set_buckets_for_metric(Matcher::Full((*metric).to_owned()), bounds)?;
/// }
/// let prometheus = builder.install_recorder()?;
/// # Ok(())
/// # }
/// # f().unwrap();
/// ```
pub const BUCKETS: &[(&str, &[f64])] = &[
    (DECISION_SECONDS.name, CALL_BUCKETS),
    (STORE_CALL_SECONDS.name, CALL_BUCKETS),
    (WAIT_SECONDS.name, WAIT_BUCKETS),
    (BATCH_REQUESTS.name, BATCH_BUCKETS),
];

/// The timeout of a store is 0.1 s unless it is set.
const CALL_BUCKETS: &[f64] = &[
    0.000_001, 0.000_01, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 1.0,
];
const WAIT_BUCKETS: &[f64] = &[0.001, 0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const BATCH_BUCKETS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0,
];
