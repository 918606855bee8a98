//! Quotas other than a policy's own, as requests come with them.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use crate::{
    decision::quota_override::{Terms, Tier},
    error::{ConfigError, InvalidValue},
    log::Seldom,
    policy::Policy,
    quota::Quota,
    store::{LimitHandle, Store},
    strategy::{Rule, TierRefills},
};

/// Bound of the quotas that are kept: callers that can choose their quota must not fill the memory.
const MOST_TIERS: usize = 1_024;

/// The tiers of a policy that are known, by the quotas that requests came with.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Or why they can't be counted.
    tiers: RwLock<HashMap<Quota, Result<Tier, InvalidValue>>>,
    refills: TierRefills,
    uncountable: Seldom,
}

impl Known {
    /// The policy's rule for one of its quotas.
    pub(crate) fn bind(
        &self,
        policy: &Policy,
        quota: Quota,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        policy.bind(&quota, &self.refills)
    }

    /// Opens the tiers that a policy declares.
    pub(crate) fn declare(&self, policy: &Policy, store: &dyn Store) -> Result<(), InvalidValue> {
        let mut known = self.tiers.write().unwrap_or_else(PoisonError::into_inner);
        for quota in policy.declared_quotas() {
            let terms = self.open(policy, store, *quota)?;
            known.insert(*quota, Ok(terms.into()));
        }
        Ok(())
    }

    /// Whether a request's own cost is more than the policy and its declared tiers can ever admit.
    pub(crate) fn check_cost(
        &self,
        policy: &Policy,
        own: &LimitHandle,
    ) -> Result<(), InvalidValue> {
        let tiers = self.limits();
        let capacities = tiers
            .iter()
            .chain([own])
            .map(|limit| limit.rule().capacity());
        let (cost, most) = (policy.plain_cost(), capacities.max().unwrap_or(0));
        if cost <= most {
            return Ok(());
        }
        Err(InvalidValue::new(
            format!("a cost of {cost} under {}", policy.quota()),
            format!("a cost of at most {most}, or a larger quota among Policy::tier_quotas"),
        ))
    }

    pub(crate) fn open(
        &self,
        policy: &Policy,
        store: &dyn Store,
        quota: Quota,
    ) -> Result<Terms, InvalidValue> {
        let rule = self.bind(policy, quota)?;
        Ok(Terms {
            quota,
            limit: store.register(policy.name(), rule)?,
            share_of: None,
        })
    }

    /// The tier of a quota, opened if it isn't known; `None` if it can't be counted.
    pub(crate) fn tier(
        &self,
        policy: &Policy,
        quota: Quota,
        open: impl FnOnce() -> Result<Terms, InvalidValue>,
    ) -> Option<Tier> {
        let known = self.tiers.read().unwrap_or_else(PoisonError::into_inner);
        let tier = known.get(&quota).cloned();
        drop(known);
        let tier = tier.unwrap_or_else(|| {
            let tier = open().map(Tier::from);
            let mut known = self.tiers.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST_TIERS {
                // The order of a map is as good as random. What is declared stays.
                let declared = policy.declared_quotas();
                let evicted = known.keys().find(|quota| !declared.contains(quota));
                if let Some(evicted) = evicted.copied() {
                    known.remove(&evicted);
                }
            }
            known.entry(quota).or_insert(tier).clone()
        });
        tier.map_err(|invalid| {
            self.uncountable.then(|suppressed| {
                let error = ConfigError::of(policy.name(), invalid);
                tracing::error!(%error, suppressed, "a request's own quota can't be counted; the policy's own quota is used");
            });
        })
        .ok()
    }

    /// The limits of all of them.
    pub(crate) fn limits(&self) -> Vec<LimitHandle> {
        let known = self.tiers.read().unwrap_or_else(PoisonError::into_inner);
        let tiers = known.values().flatten();
        tiers.map(|tier| tier.limit.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn no_more_tiers_are_cached_than_the_bound_however_many_quotas_are_used() {
        let known = Known::default();
        let policy = Policy::new("p", Quota::requests(1).per_second());
        let store = MemoryStore::new();
        for requests in 1..=3_000 {
            let quota = Quota::requests(requests).per_hour();
            let open = || known.open(&policy, &store, quota);
            let tier = known.tier(&policy, quota, open).expect("a tier");
            assert_eq!(tier.quota, quota);
            let kept = known.limits().len();
            let most = MOST_TIERS.min(requests as usize);
            assert_eq!(
                kept, most,
                "of {requests}: a new one takes the place of one"
            );
        }
    }
}
