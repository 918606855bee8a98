use serde::{Deserialize, Serialize};

use super::values::forms;

forms! {
    /// What happens to a request in an outage of the store: see [`OnStoreError`](crate::OnStoreError).
    pub enum OnStoreErrorSection, "\"admit\", \"reject\" or { local_fallback = { processes = 4 } }" {
        /// Admits or rejects it.
        Action(StoreErrorAction) from text;
        /// Limits it in process.
        Local(LocalSection) from table;
    }
}

/// What happens to a request in an outage of the store, if it is not limited in process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoreErrorAction {
    /// Admits the request without counting it.
    Admit,
    /// Rejects the request.
    Reject,
}

/// Limits requests in process while the store fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalSection {
    /// The share of each quota.
    pub local_fallback: LocalFallbackSection,
}

/// The share of each quota that a process has while the store fails: see [`LocalFallback`](crate::LocalFallback).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalFallbackSection {
    /// The number of processes that share the store; at least 1.
    pub processes: u32,
    /// Whether the store is charged afterwards for what was admitted meanwhile. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_back: Option<bool>,
}
