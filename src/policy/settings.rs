//! The settings of a policy. Builder methods, configuration documents and `Changes` all use this type.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Policy,
    by_hand::BLOCKS,
    charging::Charge,
    cost::Cost,
    on_store_error::OnStoreError,
    quotas::{QuotaFn, TierFn},
    skip::{Conditions, conditions},
};
use crate::{
    extract::{self, KeyExtractor, MissingKey},
    quota::Quota,
    setting::{CodeId, Named, Slot, to_text, values::forms},
    strategy::{Concurrency, Gcra, Lease, Strategy},
};

/// The settings of a [`Policy`](crate::Policy).
///
/// A setting that is `None` or empty has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct PolicySettings {
    /// Units per period, with a burst, such as `"100/min burst 20"`. Required, except for a block list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// How units are counted: `gcra` (default), `token_bucket`, `fixed_window`, `sliding_window buckets 10`, `sliding_log`,
    /// `list_window`, `calendar_window utc`, `concurrency ttl 30s`, `ban 10min max 1day`, or a registered name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Slot<dyn Strategy>>,
    /// What requests are counted by: `peer` (default), `client_ip`, `header:x-api-key`, `bearer | peer` and others, a
    /// registered name, or an array of these, all of which together are the key.
    #[serde(deserialize_with = "key", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "config-schema", schemars(with = "Option<KeyForm>"))]
    pub key: Option<Slot<dyn KeyExtractor>>,
    /// What happens to a request without a key. Default: `shared` for client addresses, `reject` for other keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_key: Option<MissingKey>,
    /// The key of the caller that is recorded with each charge, for strategies that record callers. Default: the policy's key.
    #[serde(deserialize_with = "key", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "config-schema", schemars(with = "Option<KeyForm>"))]
    pub caller: Option<Slot<dyn KeyExtractor>>,
    /// The units that a request costs: a number, a registered name, or rules by method and path, of which the first that
    /// matches counts. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// When requests are charged: `arrival` (default), `{ after = OUTCOME }` or `{ refund_unless = OUTCOME }`. An outcome is
    /// `success`, `failure`, `client_error`, `server_error` or a registered name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge: Option<Charge>,
    /// Whether rejected requests are charged too. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge_rejected: Option<bool>,
    /// Whether requests that are dropped before they have a response are charged, if the charge is by outcome. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge_dropped: Option<bool>,
    /// The registered name of the function that finds a request's tier, a name in `tiers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Slot<TierFn>>,
    /// The quota of each tier. A request of another tier, or of none, has the policy's own quota.
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub tiers: Named<Quota>,
    /// The registered name of the function that returns a request's quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_with: Option<Slot<QuotaFn>>,
    /// Quotas that requests may have by `quota_with`: a mistake in one is found when the limiter is built.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tier_quotas: Vec<Quota>,
    /// Requests to which the policy does not apply.
    #[serde(
        deserialize_with = "conditions",
        skip_serializing_if = "Conditions::is_empty"
    )]
    pub skip: Conditions,
    /// The only requests to which the policy applies.
    #[serde(
        deserialize_with = "conditions",
        skip_serializing_if = "Conditions::is_empty"
    )]
    pub only: Conditions,
    /// Whether the policy is evaluated and not enforced. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<bool>,
    /// What happens in an outage of the store to requests under this policy. Default: as for the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_store_error: Option<OnStoreError>,
    /// Lets each process charge units of hot keys ahead of need, and admit requests by them in process. Default: no leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Whether the policy applies to calls by hand only. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<bool>,
    /// Whether the policy is a ban that counts no rejections and blocks keys by hand. It needs no quota. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_list: Option<bool>,
}

/// Calls a macro with the names of all fields of [`PolicySettings`]. The destructuring in it fails to compile if one is missing.
macro_rules! each_field {
    ($macro:ident!($($arguments:tt)*)) => {
        $macro!(
            ($($arguments)*)
            quota, strategy, key, missing_key, caller, cost, charge, charge_rejected, charge_dropped, tier, tiers,
            quota_with, tier_quotas, skip, only, shadow, on_store_error, lease, by_hand,
            block_list
        )
    };
}

impl PolicySettings {
    /// The settings of a policy with this quota.
    pub fn new(quota: Quota) -> Self {
        Self {
            quota: Some(quota),
            ..Self::default()
        }
    }
}

impl Policy {
    /// The settings that differ from their defaults.
    pub fn settings(&self) -> PolicySettings {
        let defaults = self.defaults();
        let mut settings = self.settings.clone();
        macro_rules! unset_defaults {
            (() $($field:ident),+) => {
                let PolicySettings { $($field),+ } = &mut settings;
                $(if *$field == defaults.$field {
                    *$field = Default::default();
                })+
            };
        }
        each_field!(unset_defaults!());
        settings
    }

    /// The default of each setting that has one.
    fn defaults(&self) -> PolicySettings {
        PolicySettings {
            strategy: Some(match self.quota().is_concurrent() {
                _ if self.is_block_list() => Slot::strategy(BLOCKS),
                true => Slot::strategy(Concurrency::new()),
                false => Slot::strategy(Gcra),
            }),
            key: Some(Slot::extractor(extract::peer())),
            missing_key: Some(self.extractor().on_missing_key()),
            cost: Some(Cost::Units(1)),
            charge: Some(Charge::Arrival),
            charge_rejected: Some(false),
            charge_dropped: Some(true),
            shadow: Some(false),
            by_hand: Some(false),
            block_list: Some(false),
            ..PolicySettings::default()
        }
    }

    /// The settings that are no defaults, with the texts of their values.
    pub(crate) fn setting_texts(&self) -> Vec<(&'static str, String)> {
        let settings = self.settings();
        let mut texts = Vec::new();
        macro_rules! add {
            (() $($field:ident),+) => {
                $(if !is_unset(&settings.$field) {
                    texts.push((stringify!($field), to_text(&settings.$field)));
                })+
            };
        }
        each_field!(add!());
        texts
    }

    /// Whether all settings are the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.settings() == other.settings()
    }

    /// Whether both count the same quotas by the same strategy.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        let [own, other] = [self, other].map(Self::settings);
        own.quota == other.quota
            && own.strategy == other.strategy
            && own.tiers == other.tiers
            && own.tier_quotas == other.tier_quotas
            && own.lease == other.lease
    }
}

fn is_unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Slot<dyn Strategy> {
    pub(crate) fn strategy(strategy: impl Strategy) -> Self {
        let strategy = Arc::new(strategy);
        let id = CodeId::of(&strategy);
        Self::filled(strategy.clone(), strategy.config_text(), id)
    }

    /// A strategy that was parsed.
    pub(crate) fn shared_strategy(strategy: Arc<dyn Strategy>) -> Self {
        Self::shared(strategy.clone(), strategy.config_text())
    }
}

impl Slot<dyn KeyExtractor> {
    pub(crate) fn extractor(extractor: impl KeyExtractor) -> Self {
        let extractor = Arc::new(extractor);
        let id = CodeId::of(&extractor);
        Self::filled(extractor.clone(), extractor.config_text(), id)
    }
}

forms! {
    /// What requests are counted by.
    enum KeyForm, "a key such as \"client_ip\", or an array of keys" {
        One(String) from text;
        /// All of these together.
        Tuple(Vec<String>) from array;
    }
}

fn key<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Slot<dyn KeyExtractor>>, D::Error> {
    let form = Option::<KeyForm>::deserialize(deserializer)?;
    Ok(form.map(|form| match form {
        KeyForm::One(text) => Slot::named(text),
        KeyForm::Tuple(texts) => Slot::named(format!("[{}]", texts.join(", "))),
    }))
}
