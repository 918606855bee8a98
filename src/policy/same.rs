//! Which policies are the same, and how a policy is shown.

use std::{fmt, ptr};

use super::{Policy, charging::Charge, cost::Cost};
use crate::{extract::KeyExtractor, quota::Quota, strategy::Strategy};

impl Policy {
    /// Whether all settings are the same. Strategies and extractors are, if their texts are or they are one value; functions, if
    /// they are one value.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let Self {
            name,
            quota: _,
            strategy: _,
            key: _,
            missing_key: _,
            caller,
            cost,
            charge,
            charge_rejected,
            charge_dropped,
            quota_by_request,
            tier_quotas: _,
            skip,
            only,
            shadow,
            on_store_error,
            lease: _,
            by_hand: _,
            block_list,
        } = self;
        let is_same_caller = match (caller, &other.caller) {
            (Some(own), Some(other)) => is_same_extractor(&**own, &**other),
            (own, other) => own.is_none() && other.is_none(),
        };
        self.counts_like(other)
            && self.finds_keys_like(other)
            && self.on_missing_key() == other.on_missing_key()
            && is_same_caller
            && *name == other.name
            && *cost == other.cost
            && *charge == other.charge
            && *charge_rejected == other.charge_rejected
            && *charge_dropped == other.charge_dropped
            && *quota_by_request == other.quota_by_request
            && *skip == other.skip
            && *only == other.only
            && *shadow == other.shadow
            && *on_store_error == other.on_store_error
            && *block_list == other.block_list
    }

    /// Whether both count the same quotas by the same strategy.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        let declared = |policy: &Self| policy.declared_quotas().copied().collect::<Vec<_>>();
        self.quota == other.quota
            && self.has_same_strategy(other)
            && declared(self) == declared(other)
            && self.lease == other.lease
    }

    /// Whether both count by the same strategy, of whatever quotas.
    pub(crate) fn has_same_strategy(&self, other: &Self) -> bool {
        let (own, other) = (self.strategy_or_default(), other.strategy_or_default());
        match (own.config_text(), other.config_text()) {
            (Some(own), Some(other)) => own == other,
            _ => is_one::<dyn Strategy>(own, other),
        }
    }

    /// Whether both find the same key in a request.
    pub(crate) fn finds_keys_like(&self, other: &Self) -> bool {
        self.by_hand == other.by_hand
            && (self.by_hand || is_same_extractor(self.extractor(), other.extractor()))
    }

    /// The quota; `None` for a block list.
    pub(crate) fn own_quota(&self) -> Option<Quota> {
        (!self.block_list).then_some(self.quota)
    }
}

fn is_same_extractor(own: &dyn KeyExtractor, other: &dyn KeyExtractor) -> bool {
    match (own.config_text(), other.config_text()) {
        (Some(own), Some(other)) => own == other,
        _ => is_one::<dyn KeyExtractor>(own, other),
    }
}

/// Whether two shared values are one.
fn is_one<T: ?Sized>(own: &T, other: &T) -> bool {
    ptr::addr_eq(own, other)
}

/// The settings that are no defaults.
impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Policy");
        debug.field("name", &self.name);
        if let Some(quota) = self.own_quota() {
            debug.field("quota", &format_args!("{quota}"));
        }
        debug
            .field("strategy", &self.strategy_or_default())
            .field("key", &self.extractor());
        if let Some(missing_key) = &self.missing_key {
            debug.field("missing_key", missing_key);
        }
        if let Some(caller) = &self.caller {
            debug.field("caller", caller);
        }
        if self.cost != Cost::default() {
            debug.field("cost", &self.cost);
        }
        if self.charge != Charge::default() {
            debug.field("charge", &self.charge);
        }
        if let Some(quota_by_request) = &self.quota_by_request {
            debug.field("quota_by_request", quota_by_request);
        }
        if !self.tier_quotas.is_empty() {
            debug.field("tier_quotas", &self.tier_quotas);
        }
        for (name, conditions) in [("skip", &self.skip), ("only", &self.only)] {
            if !conditions.is_empty() {
                debug.field(name, conditions);
            }
        }
        if let Some(action) = &self.on_store_error {
            debug.field("on_store_error", action);
        }
        if let Some(lease) = &self.lease {
            debug.field("lease", lease);
        }
        for (name, is_set) in [
            ("charge_rejected", self.charge_rejected),
            ("charge_dropped", self.charge_dropped),
            ("shadow", self.shadow),
            ("by_hand", self.by_hand),
            ("block_list", self.block_list),
        ] {
            debug.field(name, &is_set);
        }
        debug.finish()
    }
}
