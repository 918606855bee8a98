//! The bodies of requests.

use serde::{Deserialize, Serialize};

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

/// The body of `POST /overrides/restore`: an empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RestoreRequest {}

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
