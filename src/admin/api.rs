//! The JSON of the admin API: the bodies of requests, and the answers.
//!
//! Clients in Rust use these types; others find them in the [OpenAPI document](OPENAPI). Later versions may add fields to answers,
//! so clients ignore those that they do not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The OpenAPI document of the routes, which `GET /openapi.json` answers.
pub const OPENAPI: &str = include_str!("../../tollgate.openapi.json");

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
    /// How often it was rejected, never too low.
    pub rejected: u64,
    /// The most by which `rejected` is too high.
    pub at_most_over: u64,
}

/// The answer of `GET /config`: the configuration document in force, if the application has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ConfigInForce {
    /// The text of the document as it was loaded: with its comments, and with the names of variables in place of their values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// The state of the watch of a configuration file, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchInfo>,
}

/// The state of the watch of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct WatchInfo {
    /// The file.
    pub path: String,
    /// The BLAKE3 hash of the document in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// When the document in force was loaded (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<String>,
    /// When the file was last read, or could not be read (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt_at: Option<String>,
    /// Why the file could not be loaded at the last attempt, in which case the document before it is still in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// How many documents were put in force.
    pub loads: u64,
    /// How many documents could not be loaded.
    pub failures: u64,
}

/// The status of a key under a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Status {
    /// The policy's name.
    pub policy: String,
    /// The key, as requests take it: readable text, `hash:` and 20 characters, or `key:` and the key's text in the store.
    pub key: String,
    /// The most units that can be charged at once; left out under a block list, which has no quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The whole units left. Under a ban, the rejections left before it. Left out under a block list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// When the block of the key ends (RFC 3339), if the policy is a ban, or a block list, that blocks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_until: Option<String>,
    /// The cost of the request that the waits are of.
    pub cost: u64,
    /// The wait until a request of that cost would be admitted, 0 if it would be now; `null` if it never would be.
    pub retry_after_ms: Option<u64>,
    /// The wait until the full quota is available.
    pub reset_after_ms: u64,
    /// Whether the policy would admit such a request now.
    pub would_admit: bool,
}

/// The answer of `POST /reset`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Reset {
    /// The status before, under each policy in which the key was reset, shadow policies included.
    pub before: Vec<Status>,
    /// The status after.
    pub after: Vec<Status>,
}

/// The answer of `POST /credit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Credited {
    /// How many units were added: fewer than asked for if fewer were in use.
    pub credited: u64,
    /// The status after.
    pub after: Status,
}

/// The answer of `POST /block`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Blocked {
    /// The key under each ban in which it is blocked.
    pub blocked: Vec<BlockedKey>,
}

/// A key that is blocked under a ban, or was until the ban was lifted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BlockedKey {
    /// The ban's name.
    pub policy: String,
    /// The key, as requests take it: readable text, `hash:` and 20 characters, or `key:` and the key's text in the store.
    pub key: String,
    /// When the block ends (RFC 3339).
    pub ends_at: String,
}

/// The answer of `GET /blocks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BlocksInfo {
    /// The keys that are blocked now, by hand or by rejections, in any process.
    pub blocks: Vec<BlockInfo>,
    /// Whether these are all.
    pub complete: bool,
    /// Why these are not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<IncompleteReason>,
}

/// A key that is blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BlockInfo {
    /// The ban's name.
    pub policy: String,
    /// The key, as requests take it: readable text, `hash:` and 20 characters, or `key:` and the key's text in the store.
    pub key: String,
    /// When the block ends (RFC 3339).
    pub ends_at: String,
    /// The time until then.
    pub ends_in_ms: u64,
}

/// The answer of `POST /unblock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Unblocked {
    /// The key under each ban that was lifted, and when that ban would have ended; empty if the key was not blocked.
    pub unblocked: Vec<BlockedKey>,
    /// The status before, under each ban.
    pub before: Vec<Status>,
    /// The status after.
    pub after: Vec<Status>,
}

/// The answer of `GET /overrides`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OverridesInfo {
    /// The overrides, ordered by policy and key.
    pub overrides: Vec<OverrideInfo>,
    /// How many there are; these are all if it is their number.
    pub total: u64,
}

/// The override of a key under a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OverrideInfo {
    /// The policy's name.
    pub policy: String,
    /// The key, as requests take it: readable text, `hash:` and 20 characters, or `key:` and the key's text in the store.
    pub key: String,
    /// The quota in place of the policy's, such as `1000/min`; left out for an exemption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// Whether the policy does not apply to the key.
    pub exempt: bool,
    /// When it ends (RFC 3339); left out if it holds until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Why it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The user of the admin API that has set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_by: Option<String>,
    /// Why it has no effect; left out if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused: Option<String>,
}

/// The answer of `PUT /overrides` and `DELETE /overrides`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OverrideChanged {
    /// The override that was in force before; left out if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<OverrideInfo>,
    /// The override that is in force now; left out if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<OverrideInfo>,
}

/// The answer of `POST /callers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Callers {
    /// The callers whose charges count now, oldest first, one entry for each unit. None if the strategy does not record callers.
    pub callers: Vec<String>,
}

/// The answer of `GET /shadows`: what shadow policies would have rejected in this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Shadows {
    /// The shadow policies.
    pub shadows: Vec<Shadow>,
}

/// What a shadow policy would have rejected, in requests of this process since it was added or last changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Shadow {
    /// The policy's name.
    pub policy: String,
    /// Requests that the enforced policies admitted, and that it was evaluated for.
    pub evaluated: u64,
    /// Those of them that it would have rejected.
    pub would_reject: u64,
}

/// Problem details (RFC 9457), the body of every error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Problem {
    /// The problem's type: `about:blank`, which is that of the status.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status as text.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong, and what to do.
    pub detail: String,
}

/// The answer of `POST /explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExplanationInfo {
    /// How the request would be decided: `admitted`, `rejected`, `deny_listed`, `allow_listed`, `skipped` or `missing_key`.
    pub outcome: String,
    /// The access list or the condition that decides, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The wait until it would be admitted, 0 if it would be now; left out if waiting does not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What the outcome leaves out, separated by semicolons: the peer's address, if a policy counts by it and the request as given has
    /// none; and policies by hand, which calls of the application evaluate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// All policies.
    pub policies: Vec<ExplainedPolicyInfo>,
}

/// How a policy concerns a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExplainedPolicyInfo {
    /// The policy's name.
    pub policy: String,
    /// Whether it applies to the request. Without, there are neither key nor numbers.
    pub applies: bool,
    /// Why it does not apply; or else the override whose quota it has, or, if the request has no key of its own, with which requests it
    /// is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The request's key, as requests take it: readable text, `hash:` and 20 characters, or `key:` and the key's text in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The request's cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// The most units that can be charged at once; left out under a block list, which has no quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The whole units left before the request; left out under a block list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// When the block of the key ends (RFC 3339), if the policy is a ban, or a block list, that blocks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_until: Option<String>,
    /// The wait until the policy would admit it, 0 if it would now; left out if it never would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Whether the policy would admit the request now.
    pub would_admit: bool,
    /// Whether it is evaluated only, not enforced.
    pub shadow: bool,
}

/// The answer of `GET /policies`: the policies in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Policies {
    /// How many times the policies have been replaced since the limiter was built.
    pub generation: u64,
    /// The policies, in their order of evaluation.
    pub policies: Vec<PolicyInfo>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PolicyInfo {
    /// Its name.
    pub name: String,
    /// What it does to requests.
    pub role: Role,
    /// The quota as text, such as `100/min burst 20`; left out for a block list, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// The units of the quota; left out for a block list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<u64>,
    /// The quota's period; left out for requests in flight and for a block list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// The most units that can be charged at once; left out for a block list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// The strategy as in a configuration document, `block_list`, or `code`.
    pub strategy: String,
    /// The key as in a configuration document, or `code`.
    pub key: String,
    /// The leases of hot keys; left out without leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseSettings>,
}

/// The settings of a policy's leases.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LeaseSettings {
    /// The most units of one lease.
    pub max_units: u64,
    /// For how long the units of a lease may be spent, in milliseconds, with up to three decimal places.
    pub ttl_ms: f64,
}

/// What a policy does to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// Rejects them.
    Live,
    /// Blocks keys that are rejected too often.
    Ban,
    /// Is evaluated, not enforced.
    Shadow,
}

/// Why a list of blocked keys has not all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum IncompleteReason {
    /// There are more than `limit`.
    Limit,
    /// The search took too long.
    Timeout,
    /// Keys of a cluster moved to another node during the search, so that some may have been missed.
    KeysMoved,
}

/// The answer of `GET /health`. Without a token it is `healthy` alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Health {
    /// Whether there are no issues.
    pub healthy: bool,
    /// The problems of the store, each with its remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issues: Option<Vec<String>>,
    /// The mistakes of the application under which limits hold, though not as meant, each with its remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Vec<String>>,
    /// What could not be checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchecked: Option<Vec<String>>,
    /// Refunds that the store has dropped since it was built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_refunds: Option<u64>,
    /// Refunds, charges and settlements that got no response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<u64>,
}

// Requests: those with other fields are mistakes.
/// The body of `POST /explain`: the head of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExplainRequest {
    /// The method.
    pub method: String,
    /// The path and query, or the URL.
    pub uri: String,
    /// The names and values of the headers.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// The address of the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Keys by the names of their policies, in place of those that the policies find in the request. A policy by hand that has one
    /// is evaluated, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, KeyText>,
}

/// The body of `POST /peek`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PeekRequest {
    /// The policy's name.
    pub policy: String,
    /// The key.
    pub key: KeyText,
    /// The quota of the key's tier, such as `100/min`, if it is not the policy's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
}

/// The body of `POST /reset`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ResetRequest {
    /// The policy's name. Left out, the key is reset under every policy that can read its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The key.
    pub key: KeyText,
}

/// The body of `POST /credit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CreditRequest {
    /// The policy's name.
    pub policy: String,
    /// The key.
    pub key: KeyText,
    /// How many units are added to those that the key has left.
    pub units: u64,
    /// The quota of the key's tier, such as `100/min`, if it is not the policy's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
}

/// The body of `POST /block`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BlockRequest {
    /// The name of a ban. Left out, the key is blocked under every ban that can read its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The key.
    pub key: KeyText,
    /// For how long the key is blocked from now on: at most ten years.
    pub seconds: u64,
}

/// The body of `POST /unblock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UnblockRequest {
    /// The name of a ban. Left out, the key is unblocked under every ban that can read its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The key.
    pub key: KeyText,
}

/// The body of `POST /callers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CallersRequest {
    /// The policy's name.
    pub policy: String,
    /// The key.
    pub key: KeyText,
}

/// The body of `PUT /overrides`: a quota, or an exemption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OverrideRequest {
    /// The policy's name.
    pub policy: String,
    /// The key.
    pub key: KeyText,
    /// The quota in place of the policy's, such as `1000/min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// Whether the policy does not apply to the key, in place of a quota.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exempt: bool,
    /// When it ends (RFC 3339). Left out, it holds until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// For how long it holds from now on, in place of `until`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// Why it is set: at most 200 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The body of `DELETE /overrides`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OverrideKey {
    /// The policy's name.
    pub policy: String,
    /// The key.
    pub key: KeyText,
}

impl ExplainRequest {
    /// A request without headers.
    pub fn new(method: impl Into<String>, uri: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            uri: uri.into(),
            headers: Vec::new(),
            peer: None,
            keys: BTreeMap::new(),
        }
    }
}

/// A key as text: what a policy's extractor finds in a request, such as an API key or an address, or a key as answers show it
/// (`alice`, `tenant-7+/ocr`, `hash:7lEM2SSxGPnYHjFZP0wx`, `key:mallory`).
///
/// Several texts are for extractors that take several: a tuple takes one for each of its parts, `or_else` the number of one of its
/// extractors followed by the texts of that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "the key is neither a text nor a list of texts")]
pub enum KeyText {
    /// One text.
    One(String),
    /// Several texts.
    Parts(Vec<String>),
}

impl From<&str> for KeyText {
    fn from(text: &str) -> Self {
        Self::One(text.to_owned())
    }
}

impl From<String> for KeyText {
    fn from(text: String) -> Self {
        Self::One(text)
    }
}

impl From<Vec<String>> for KeyText {
    fn from(texts: Vec<String>) -> Self {
        Self::Parts(texts)
    }
}

impl OverrideRequest {
    /// A request to set another quota for a key under a policy, such as `1000/min`.
    pub fn quota(
        policy: impl Into<String>,
        key: impl Into<KeyText>,
        quota: impl Into<String>,
    ) -> Self {
        Self {
            quota: Some(quota.into()),
            exempt: false,
            ..Self::exempt(policy, key)
        }
    }

    /// A request to exempt a key from a policy.
    pub fn exempt(policy: impl Into<String>, key: impl Into<KeyText>) -> Self {
        Self {
            policy: policy.into(),
            key: key.into(),
            quota: None,
            exempt: true,
            until: None,
            seconds: None,
            note: None,
        }
    }
}

impl OverrideKey {
    /// A request about a key under a policy.
    pub fn new(policy: impl Into<String>, key: impl Into<KeyText>) -> Self {
        Self {
            policy: policy.into(),
            key: key.into(),
        }
    }
}

impl PeekRequest {
    /// A request about a key under a policy.
    pub fn new(policy: impl Into<String>, key: impl Into<KeyText>) -> Self {
        Self {
            policy: policy.into(),
            key: key.into(),
            quota: None,
        }
    }

    /// Sets the quota of the key's tier.
    #[must_use]
    pub fn quota(mut self, quota: impl Into<String>) -> Self {
        self.quota = Some(quota.into());
        self
    }
}

impl CreditRequest {
    /// A request to add `units` to what a key has left under a policy.
    pub fn new(policy: impl Into<String>, key: impl Into<KeyText>, units: u64) -> Self {
        Self {
            policy: policy.into(),
            key: key.into(),
            units,
            quota: None,
        }
    }

    /// Sets the quota of the key's tier.
    #[must_use]
    pub fn quota(mut self, quota: impl Into<String>) -> Self {
        self.quota = Some(quota.into());
        self
    }
}

impl ResetRequest {
    /// A request about a key, under one policy or all.
    pub fn new(policy: Option<String>, key: impl Into<KeyText>) -> Self {
        let key = key.into();
        Self { policy, key }
    }
}

impl BlockRequest {
    /// A request about a key, under one ban or all.
    pub fn new(policy: Option<String>, key: impl Into<KeyText>, seconds: u64) -> Self {
        Self {
            policy,
            key: key.into(),
            seconds,
        }
    }
}

impl UnblockRequest {
    /// A request about a key, under one ban or all.
    pub fn new(policy: Option<String>, key: impl Into<KeyText>) -> Self {
        let key = key.into();
        Self { policy, key }
    }
}

impl CallersRequest {
    /// A request about a key under a policy.
    pub fn new(policy: impl Into<String>, key: impl Into<KeyText>) -> Self {
        Self {
            policy: policy.into(),
            key: key.into(),
        }
    }
}
