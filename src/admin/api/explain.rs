//! How a request would be decided.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::KeyText;

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
    /// The name of the caller, if the policy names its callers and the process that answers knows this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
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
