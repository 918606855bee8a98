//! The share of a policy's quota that one process counts by while the store fails.

use super::{
    quota_overrides::{OverridingQuota, QuotaOverride, QuotaOverrideCache},
    write_back::LocalShares,
};
use crate::{
    error::InvalidValue,
    policy::{Policy, on_store_error::LocalFallback},
    quota::Quota,
    store::LimitHandle,
};

/// This process's share of a policy's quota, which limits requests while the store fails.
#[derive(Debug)]
pub(crate) struct LocalShare {
    fallback: LocalFallback,
    /// Of the policy's own quota.
    default: QuotaOverride,
    overrides: QuotaOverrideCache,
}

impl LocalShare {
    pub(crate) fn open(
        shares: &LocalShares,
        policy: &Policy,
        fallback: LocalFallback,
        full: &LimitHandle,
    ) -> Result<Self, InvalidValue> {
        let overrides = QuotaOverrideCache::default();
        let default = open(shares, policy, &overrides, fallback, policy.quota(), full)?;
        Ok(Self {
            fallback,
            default: default.into(),
            overrides,
        })
    }

    /// The share of a request's own quota, or else of the policy's.
    pub(crate) fn of(
        &self,
        shares: &LocalShares,
        policy: &Policy,
        full: Option<&QuotaOverride>,
    ) -> QuotaOverride {
        let share = full.and_then(|full| {
            let (quota, overrides) = (full.quota, &self.overrides);
            let open = || open(shares, policy, overrides, self.fallback, quota, &full.limit);
            overrides.get(policy, quota, open)
        });
        share.unwrap_or_else(|| self.default.clone())
    }
}

/// Opens the share of a quota, which the store counts under the limit `full`.
fn open(
    shares: &LocalShares,
    policy: &Policy,
    overrides: &QuotaOverrideCache,
    fallback: LocalFallback,
    quota: Quota,
    full: &LimitHandle,
) -> Result<OverridingQuota, InvalidValue> {
    let quota = fallback.share(quota);
    // It counts in process, where units are spent as they are charged.
    let rule = overrides.bind(&policy.clone().without_lease(), quota)?;
    let written_to = fallback.writes_back().then_some(full);
    Ok(OverridingQuota {
        quota,
        limit: shares.open_share(policy.name(), rule, written_to)?,
        full_capacity: Some(full.info().capacity),
    })
}
