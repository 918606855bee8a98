//! The part of a document about one policy.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::Error as _};

use super::{
    conditions::{ConditionsSection, conditions},
    store_error::OnStoreErrorSection,
    values::{duration, forms},
};
use crate::{extract::MissingKey, quota::Quota};

/// A policy: see [`Policy`](crate::Policy), whose methods have the fields' names.
///
/// What is left out has the builder's default; for a candidate of another policy (`shadow_of`) the live policy's setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct PolicySection {
    /// Units per period, with a burst, such as `"100/min burst 20"`. Required, except for a block list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// How units are counted: `gcra` (default), `token_bucket`, `fixed_window`, `sliding_window buckets 10`, `sliding_log`,
    /// `list_window`, `calendar_window utc`, `concurrency ttl 30s`, `ban 10min max 1day`, or a registered name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// What requests are counted by: `peer` (default), `client_ip`, `header:x-api-key`, `bearer | peer` and others, a
    /// registered name, or an array of these, all of which together are the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<KeySection>,
    /// What happens to a request without a key. Default: by key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_key: Option<MissingKey>,
    /// The key of the caller that is recorded with each charge, for strategies that record callers. Default: the policy's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<KeySection>,
    /// The units that a request costs: a number, a registered name, or rules by method and path, of which the first that
    /// matches counts. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostSection>,
    /// When requests are charged: `arrival` (default), `{ after = OUTCOME }` or `{ refund_unless = OUTCOME }`. An outcome is
    /// `success`, `failure`, `client_error`, `server_error` or a registered name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge: Option<ChargeSection>,
    /// Whether rejected requests are charged too. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge_rejected: Option<bool>,
    /// Whether requests that are dropped before they have a response are charged, if the charge is by outcome. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge_dropped: Option<bool>,
    /// The registered name of the function that finds a request's tier, a name in `tiers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The quota of each tier. A request of another tier, or of none, has the policy's own quota.
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub tiers: Named<Quota>,
    /// The registered name of the function that returns a request's quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_with: Option<String>,
    /// An async function that looks up a request's quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_lookup: Option<QuotaLookupSection>,
    /// Quotas that requests may have, which are checked beforehand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tier_quotas: Vec<Quota>,
    /// Requests to which the policy does not apply.
    #[serde(
        deserialize_with = "conditions",
        skip_serializing_if = "ConditionsSection::is_empty"
    )]
    pub skip: ConditionsSection,
    /// The only requests to which the policy applies.
    #[serde(
        deserialize_with = "conditions",
        skip_serializing_if = "ConditionsSection::is_empty"
    )]
    pub only: ConditionsSection,
    /// Whether the policy is evaluated and not enforced. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<bool>,
    /// The name of the policy that this one is a candidate for: it is evaluated in its place, and not enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow_of: Option<String>,
    /// What happens in an outage of the store to requests under this policy. Default: as for the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_store_error: Option<OnStoreErrorSection>,
    /// Lets each process charge units of hot keys ahead of need, and admit requests by them in process. Default: no leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseSection>,
    /// Whether the policy applies to calls by hand only. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<bool>,
    /// Whether the policy is a ban that counts no rejections and blocks keys by hand. It needs no quota. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_list: Option<bool>,
}

impl PolicySection {
    /// A policy with this quota.
    pub fn new(quota: Quota) -> Self {
        Self {
            quota: Some(quota),
            ..Self::default()
        }
    }
}

forms! {
    /// What requests are counted by.
    pub enum KeySection, "a key such as \"client_ip\", or an array of keys" {
        /// One key, such as `"client_ip"` or `"bearer | peer"`.
        One(String) from text;
        /// All of these together.
        Tuple(Vec<String>) from array;
    }
}

forms! {
    /// The units that a request costs.
    pub enum CostSection, "a number of units, a registered name, or an array of rules such as { path = \"/upload/*\", cost = 10 }" {
        /// The same for each request.
        Units(u64) from number;
        /// What the registered function of this name returns.
        Name(String) from text;
        /// The cost of the first rule that matches, or else 1.
        Rules(Vec<CostRule>) from array;
    }
}

/// The cost of requests with a method and a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CostRule {
    /// The requests' method. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The requests' path, or with `/*` at its end all paths beneath it. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The units that such a request costs.
    pub cost: u64,
}

/// When requests are charged.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(into = "ChargeForm")]
#[non_exhaustive]
pub enum ChargeSection {
    /// On arrival, whatever their outcome.
    #[default]
    Arrival,
    /// When they have ended with this outcome.
    After(String),
    /// On arrival; refunded when they have ended with another outcome.
    RefundUnless(String),
}

forms! {
    /// How a charge mode is written.
    enum ChargeForm, "\"arrival\", { after = \"success\" } or { refund_unless = \"success\" }" {
        Arrival(ArrivalForm) from text;
        ByOutcome(ByOutcomeForm) from table;
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum ArrivalForm {
    Arrival,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct ByOutcomeForm {
    /// Charges the requests that have ended with this outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// Charges requests on arrival, and refunds those that have ended with another outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refund_unless: Option<String>,
}

impl From<ChargeSection> for ChargeForm {
    fn from(charge: ChargeSection) -> Self {
        let (after, refund_unless) = match charge {
            ChargeSection::Arrival => return Self::Arrival(ArrivalForm::Arrival),
            ChargeSection::After(outcome) => (Some(outcome), None),
            ChargeSection::RefundUnless(outcome) => (None, Some(outcome)),
        };
        Self::ByOutcome(ByOutcomeForm {
            after,
            refund_unless,
        })
    }
}

impl<'de> Deserialize<'de> for ChargeSection {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match ChargeForm::deserialize(deserializer)? {
            ChargeForm::Arrival(_) => Ok(Self::Arrival),
            ChargeForm::ByOutcome(form) => match (form.after, form.refund_unless) {
                (Some(outcome), None) => Ok(Self::After(outcome)),
                (None, Some(outcome)) => Ok(Self::RefundUnless(outcome)),
                (Some(_), Some(_)) => Err(D::Error::invalid_value(
                    serde::de::Unexpected::Other("both after and refund_unless"),
                    &"one of them",
                )),
                (None, None) => Err(D::Error::invalid_value(
                    serde::de::Unexpected::Other("an empty table"),
                    &"after or refund_unless, with an outcome",
                )),
            },
        }
    }
}

#[cfg(feature = "config-schema")]
impl schemars::JsonSchema for ChargeSection {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ChargeSection".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        ChargeForm::json_schema(generator)
    }
}

/// An async function that looks up a request's quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct QuotaLookupSection {
    /// The function's registered name.
    pub name: String,
    /// How long the look-up may take, such as `"50ms"`. After that the policy's own quota applies. Default: 50 ms.
    #[serde(default, with = "duration", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<super::values::DurationSchema>")
    )]
    pub timeout: Option<Duration>,
}

/// The units of a hot key that a process charges ahead of need.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LeaseSection {
    /// The most units of one lease, from 2 to 1,000,000.
    #[cfg_attr(feature = "config-schema", schemars(range(min = 2, max = 1_000_000)))]
    pub max_units: u64,
    /// For how long the units of a lease may be spent, such as `"50ms"`: from 5 ms to 10 s. Default: 50 ms.
    #[serde(default, with = "duration", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<super::values::DurationSchema>")
    )]
    pub ttl: Option<Duration>,
}

pub use super::named::Named;
