//! The answers.

use serde::{Deserialize, Serialize};

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
    /// The live policy that a shadow policy is a candidate for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_of: Option<String>,
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

/// The answer of `GET /config`: the configuration in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ConfigInForce {
    /// The document in TOML, without secrets.
    pub document: String,
    /// Whether the document can be loaded: it has neither `code` of the application nor hidden secrets.
    pub loadable: bool,
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
    /// The status before, under each policy in which the key was reset, shadow candidates included.
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

/// A key that is blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BlockInfo {
    /// The ban's name.
    pub policy: String,
    /// The key, as requests take it: readable text, `hash:` and 20 characters, or `key:` and the key's text in the store.
    pub key: String,
    /// The name of the caller, if the policy names its callers and the process that answers knows this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
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
    /// Why the store could not be read, so that these are what this process knows, which is in force here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
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
    /// Whether the store has it. If not, the store has lost it: it holds in processes that know it, and can be restored.
    pub stored: bool,
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

/// The answer of `POST /overrides/restore`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Restored {
    /// How many overrides were written back that the store had lost.
    pub restored: u64,
}

/// The answer of `POST /callers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Callers {
    /// The callers whose charges count now, oldest first, one entry for each unit. None if the strategy does not record callers.
    pub callers: Vec<String>,
}

/// The answer of `GET /shadows`: how shadow policies would have changed the decisions of this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Shadows {
    /// The shadow policies.
    pub shadows: Vec<Shadow>,
}

/// What a shadow policy would have changed, in requests of this process since it was added or last changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Shadow {
    /// The policy's name.
    pub policy: String,
    /// The live policy that it is a candidate for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_of: Option<String>,
    /// Requests that it was evaluated for.
    pub evaluated: u64,
    /// Requests that were admitted, and that it would have rejected.
    pub stricter: u64,
    /// Requests that were rejected, and that would have been admitted with it in place of the live policy.
    pub looser: u64,
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
    /// Charges in process that were dropped before they were written back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_write_backs: Option<u64>,
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
