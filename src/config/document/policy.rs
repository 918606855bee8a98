//! What a document says of a policy.

use std::fmt;

use indexmap::IndexMap;
use serde::Deserialize;

use crate::{
    config::forms::{duration_text, forms, quota_text},
    extract::MissingKey,
    policy::on_store_error::{LocalFallback, OnMisconfiguration, OnStoreError},
};

/// The settings of a [`Policy`](crate::Policy). The fields have the names of its methods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct PolicyDocument {
    /// Units per period, with a burst, such as `"100/min burst 20"`. Required, except for a block list.
    #[serde(deserialize_with = "quota_text")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<super::schema::QuotaSchema>")
    )]
    pub quota: Option<String>,
    /// How units are counted: `gcra` (default), `token_bucket`, `fixed_window`, `sliding_window buckets 10`, `sliding_log`,
    /// `list_window`, `calendar_window utc`, `concurrency ttl 30s`, `ban 10min max 1day`, or a registered name.
    pub strategy: Option<String>,
    /// What requests are counted by: `peer` (default), `client_ip`, `header:x-api-key`, `bearer | peer` and others, a
    /// registered name, or an array of these, all of which together are the key.
    pub key: Option<KeySection>,
    /// What happens to a request without a key. Default: `shared` for client addresses, `reject` for other keys.
    pub missing_key: Option<MissingKeySection>,
    /// The key of the caller that is recorded with each charge, for strategies that record callers. Default: the policy's key.
    pub caller: Option<KeySection>,
    /// The units that a request costs: a number, a registered name, or rules by method and path, of which the first that
    /// matches counts. Default: 1.
    pub cost: Option<CostSection>,
    /// When requests are charged: `arrival` (default), `{ after = OUTCOME }` or `{ refund_unless = OUTCOME }`. An outcome is
    /// `success`, `failure`, `client_error`, `server_error` or a registered name.
    pub charge: Option<ChargeSection>,
    /// Whether rejected requests are charged too. Default: false.
    pub charge_rejected: Option<bool>,
    /// Whether requests that are dropped before they have a response are charged, if the charge is by outcome. Default: true.
    pub charge_dropped: Option<bool>,
    /// The registered name of the function that finds a request's tier, a name in `tiers`.
    pub tier: Option<String>,
    /// The quota of each tier. A request of another tier, or of none, has the policy's own quota.
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "std::collections::BTreeMap<String, super::schema::QuotaSchema>")
    )]
    pub tiers: IndexMap<String, String>,
    /// The registered name of the function that returns a request's quota.
    pub quota_with: Option<String>,
    /// Quotas that requests may have by `quota_with`: a mistake in one is found when the limiter is built.
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Vec<super::schema::QuotaSchema>")
    )]
    pub tier_quotas: Vec<String>,
    /// Requests to which the policy does not apply.
    pub skip: Option<ConditionsSection>,
    /// The only requests to which the policy applies.
    pub only: Option<ConditionsSection>,
    /// Whether the policy is evaluated and not enforced. Default: false.
    pub shadow: Option<bool>,
    /// What happens in an outage of the store to requests under this policy. Default: as for the document.
    pub on_store_error: Option<OnStoreErrorSection>,
    /// Lets each process charge units of hot keys ahead of need, and admit requests by them in process. Default: no leases.
    pub lease: Option<LeaseSection>,
    /// Whether the policy applies to calls by hand only. Default: false.
    pub by_hand: Option<bool>,
    /// Whether the policy is a ban that counts no rejections and blocks keys by hand. It needs no quota. Default: false.
    pub block_list: Option<bool>,
}

forms! {
    /// What requests are counted by.
    pub enum KeySection, "a key such as \"client_ip\", or an array of keys" {
        /// This.
        One(String) from text;
        /// All of these together.
        Tuple(Vec<String>) from array;
    }
}

/// The text of the key: that of a tuple is `[a, b]`.
impl fmt::Display for KeySection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(text) => f.write_str(text),
            Self::Tuple(texts) => write!(f, "[{}]", texts.join(", ")),
        }
    }
}

/// What happens to a request without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MissingKeySection {
    /// The policy does not apply to it.
    Skip,
    /// It is rejected: 400 Bad Request.
    Reject,
    /// It is counted in one bucket with all others without one.
    Shared,
}

impl From<MissingKeySection> for MissingKey {
    fn from(document: MissingKeySection) -> Self {
        match document {
            MissingKeySection::Skip => Self::Skip,
            MissingKeySection::Reject => Self::Reject,
            MissingKeySection::Shared => Self::Shared,
        }
    }
}

forms! {
    /// The units that a request costs.
    pub enum CostSection, "a number of units, a registered name, or an array of rules such as { path = \"/upload/*\", cost = 10 }" {
        /// The same for each request. A request that costs 0 is always admitted.
        Units(u64) from number;
        /// What the registered function of this name returns for the request's head.
        With(String) from text;
        /// The cost of the first rule that matches its method and path, or else 1.
        Rules(Vec<CostRuleSection>) from array;
    }
}

/// The cost of requests with a method and a path.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CostRuleSection {
    /// The requests' method. Default: any.
    pub method: Option<String>,
    /// The requests' path, or with `/*` at its end all paths beneath it. Default: any.
    pub path: Option<String>,
    /// The units that such a request costs.
    pub cost: u64,
}

/// When requests are charged, and by which outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChargeSection {
    /// On arrival, whatever their outcome.
    Arrival,
    /// When they have ended with this outcome.
    After(String),
    /// On arrival; refunded when they have ended with another outcome.
    RefundUnless(String),
}

/// Conditions on requests, at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ConditionsSection {
    /// Paths such as `/health`, or with `/*` at their end all paths beneath them.
    #[cfg_attr(feature = "config-schema", schemars(length(min = 1)))]
    pub paths: Option<Vec<String>>,
    /// Methods such as `OPTIONS`.
    #[cfg_attr(feature = "config-schema", schemars(length(min = 1)))]
    pub methods: Option<Vec<String>>,
    /// Names of registered functions.
    #[cfg_attr(feature = "config-schema", schemars(length(min = 1)))]
    pub with: Option<Vec<String>>,
}

/// What happens to a request in an outage of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnStoreErrorSection {
    /// Admits the request without counting it.
    Admit,
    /// Rejects the request.
    Reject,
    /// Counts it in process.
    LocalFallback(LocalFallbackSection),
}

/// The share of a quota that a process counts by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalFallbackSection {
    /// The number of processes that share the store.
    pub processes: u32,
}

impl From<OnStoreErrorSection> for OnStoreError {
    fn from(document: OnStoreErrorSection) -> Self {
        match document {
            OnStoreErrorSection::Admit => Self::Admit,
            OnStoreErrorSection::Reject => Self::Reject,
            OnStoreErrorSection::LocalFallback(LocalFallbackSection { processes }) => {
                LocalFallback::shared_by(processes).into()
            }
        }
    }
}

/// What happens to a request when the store is misconfigured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnMisconfigurationSection {
    /// It is rejected: 503 Service Unavailable.
    Reject,
    /// As in an outage.
    AsStoreError,
}

impl From<OnMisconfigurationSection> for OnMisconfiguration {
    fn from(document: OnMisconfigurationSection) -> Self {
        match document {
            OnMisconfigurationSection::Reject => Self::Reject,
            OnMisconfigurationSection::AsStoreError => Self::AsStoreError,
        }
    }
}

/// The units of a hot key that a process charges ahead of need.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LeaseSection {
    /// The most units of one lease, from 2 to 1,000,000.
    #[cfg_attr(feature = "config-schema", schemars(range(min = 2, max = 1_000_000)))]
    pub max_units: u64,
    /// For how long the units of a lease may be spent, such as `"50ms"`: from 5 ms to 10 s. Default: 50 ms.
    #[serde(default, deserialize_with = "duration_text")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<crate::config::forms::DurationSchema>")
    )]
    pub ttl: Option<String>,
}
