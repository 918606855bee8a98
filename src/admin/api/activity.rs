//! What limiters do in this process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The answer of `GET /activity`, and the data of each event of `GET /events`. All counts are of this process, since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ActivityReport {
    /// The process.
    pub process: ProcessInfo,
    /// When the report was made (RFC 3339).
    pub at: String,
    /// How many times the policies have been replaced.
    pub generation: u64,
    /// The requests under each policy that is or was in force.
    pub policies: Vec<PolicyActivity>,
    /// The requests by outcome: `admitted`, `rejected`, `deny_listed`, `allow_listed`, `skipped`, `missing_key`, `store_failed`,
    /// `cancelled` and `invalid`.
    pub outcomes: BTreeMap<String, u64>,
    /// Requests that were admitted without being counted, since the store failed.
    pub uncounted: u64,
    /// How long calls took.
    pub latency: Latencies,
    /// The store, as this process sees it.
    pub store: StoreInfo,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its id.
    pub pid: u32,
    /// The name of its machine, or the one that the application gives to it; empty if there is none.
    pub host: String,
    /// Since when it counts (RFC 3339).
    pub started_at: String,
}

/// The requests under a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PolicyActivity {
    /// The policy's name.
    pub policy: String,
    /// Requests within the limit. None under a ban or a block list, whose requests are counted if it rejects them.
    pub within: u64,
    /// Requests within the limit, of which more than 80 % were used.
    pub near: u64,
    /// Requests that the policy rejected.
    pub over: u64,
    /// Requests that the shadow policy would have rejected.
    pub shadow_over: u64,
    /// The units that were charged.
    pub units: u64,
    /// The bans that requests have begun.
    pub bans: u64,
    /// Charges in process that were dropped before they were written back.
    pub dropped_write_backs: u64,
}

/// How long calls took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Latencies {
    /// Round trips to the store. There are none if it counts in process.
    pub store: LatencyInfo,
}

/// How long calls of one kind took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LatencyInfo {
    /// The number of calls since the start.
    pub calls: u64,
    /// What half of the last calls took at most, in microseconds: of up to the last minute with calls. An eighth too high at most.
    pub p50_us: Option<u64>,
    /// What 99 % of them took at most.
    pub p99_us: Option<u64>,
}

/// The store, as a process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StoreInfo {
    /// The circuit breaker of each server that was called.
    pub breaker: Vec<BreakerInfo>,
    /// Refunds, charges and settlements that are not done yet.
    pub queued_refunds: u64,
    /// Those that were dropped.
    pub dropped_refunds: u64,
    /// The rejections that are cached.
    pub rejection_cache_entries: Option<u64>,
    /// The keys of a store in process.
    pub memory_keys: Option<u64>,
    /// The leases of each policy that had some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<LeaseInfo>,
}

/// The units that a process has leased under a policy. Those that were granted are those that were spent, refunded, lapsed, and
/// held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The policy's name.
    pub policy: String,
    /// Units that were charged in the store ahead of need.
    pub granted: u64,
    /// Units of requests that were admitted by them.
    pub spent: u64,
    /// Units that were left, and refunded.
    pub refunded: u64,
    /// Units that were left, and are lost until they refill.
    pub lapsed: u64,
    /// Units that the process holds now. They count as used.
    pub held: u64,
}

/// A circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BreakerInfo {
    /// The server.
    pub node: String,
    /// `closed`, `half_open` or `open`.
    pub state: String,
}

/// The answer of `GET /top`: the keys with the most rejections in this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TopReport {
    /// Since when rejections are counted (RFC 3339).
    pub since: String,
    /// The policies.
    pub policies: Vec<TopPolicy>,
}

/// The keys that a policy rejected most often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TopPolicy {
    /// The policy's name.
    pub policy: String,
    /// The rejections of all keys, exactly. Of a shadow policy, those that it would have made.
    pub rejected: u64,
    /// The keys with the most rejections, most first.
    pub keys: Vec<TopKeyInfo>,
}

/// A key that was rejected often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TopKeyInfo {
    /// The key, as requests take it: readable text, `hash:` and 20 characters, or `key:` and the key's text in the store.
    pub key: String,
    /// The name of the caller, if the policy names its callers and the process that answers knows this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// How often it was rejected, never too low.
    pub rejected: u64,
    /// The most by which `rejected` is too high.
    pub at_most_over: u64,
}
