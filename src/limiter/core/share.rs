//! The share of a policy's quota that one process counts by while the store fails.

use std::sync::Arc;

use super::{tiers::Known, write_back::Shares};
use crate::{
    decision::quota_override::{Terms, Tier},
    error::InvalidValue,
    policy::{Policy, on_store_error::LocalFallback},
    quota::Quota,
    store::LimitHandle,
};

/// This process's share of a policy, for when the store is at fault.
#[derive(Debug)]
pub(crate) struct Share {
    fallback: LocalFallback,
    own: Tier,
    tiers: Known,
}

impl Share {
    pub(crate) fn open(
        shares: &Shares,
        policy: &Policy,
        fallback: LocalFallback,
        whole: &LimitHandle,
    ) -> Result<Self, InvalidValue> {
        let tiers = Known::default();
        let own = open(shares, policy, &tiers, fallback, policy.quota(), whole)?;
        Ok(Self {
            fallback,
            own: Arc::new(own),
            tiers,
        })
    }

    /// The share of a request's own quota, or else of the policy's.
    pub(crate) fn of(&self, shares: &Shares, policy: &Policy, tier: Option<&Tier>) -> Tier {
        let tier = tier.and_then(|tier| {
            let quota = tier.quota;
            let (tiers, whole) = (&self.tiers, &tier.limit);
            let open = || open(shares, policy, tiers, self.fallback, quota, whole);
            self.tiers.tier(policy, quota, open)
        });
        tier.unwrap_or_else(|| self.own.clone())
    }
}

/// Opens the share of a quota, which is counted in the store under the limit `whole`.
fn open(
    shares: &Shares,
    policy: &Policy,
    tiers: &Known,
    fallback: LocalFallback,
    quota: Quota,
    whole: &LimitHandle,
) -> Result<Terms, InvalidValue> {
    let quota = fallback.share(quota);
    let rule = tiers.bind(policy, quota)?;
    let written_to = fallback.writes_back().then_some(whole);
    Ok(Terms {
        quota,
        limit: shares.open_share(policy.name(), rule, written_to)?,
        share_of: Some(whole.rule().capacity()),
    })
}
