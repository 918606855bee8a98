//! Quotas of requests that override a policy's own.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, RwLock},
};

use crate::{
    error::{ConfigError, InvalidValue},
    log::LogThrottle,
    policy::Policy,
    quota::Quota,
    store::{LimitHandle, Store, overrides::table::KnownOverride},
    strategy::{Rule, TierRefills},
    sync::{read, write},
};

/// Upper bound of the quotas that are kept, since callers may choose theirs.
const MAX_QUOTA_OVERRIDES: usize = 1_024;

/// The quotas that requests have had under a policy, each bound to a limit of the store.
#[derive(Debug, Default)]
pub(crate) struct QuotaOverrideCache {
    /// With the reason, if the strategy can't count it.
    overrides: RwLock<HashMap<Quota, Result<QuotaOverride, InvalidValue>>>,
    refills: TierRefills,
    log: LogThrottle,
}

impl QuotaOverrideCache {
    /// The policy's rule for one of its quotas.
    pub(crate) fn bind(
        &self,
        policy: &Policy,
        quota: Quota,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        policy.bind(&quota, &self.refills)
    }

    /// Registers the quotas that a policy declares.
    pub(crate) fn declare(&self, policy: &Policy, store: &dyn Store) -> Result<(), InvalidValue> {
        let mut overrides = write(&self.overrides);
        for quota in policy.declared_quotas() {
            let terms = self.open(policy, store, *quota)?;
            overrides.insert(*quota, Ok(terms.into()));
        }
        Ok(())
    }

    pub(crate) fn open(
        &self,
        policy: &Policy,
        store: &dyn Store,
        quota: Quota,
    ) -> Result<OverridingQuota, InvalidValue> {
        let rule = self.bind(policy, quota)?;
        Ok(OverridingQuota {
            quota,
            limit: store.register(policy.name(), rule)?,
            full_capacity: None,
        })
    }

    /// The override by a quota, opened unless it is cached; `None` if the strategy can't count it.
    pub(crate) fn get(
        &self,
        policy: &Policy,
        quota: Quota,
        open: impl FnOnce() -> Result<OverridingQuota, InvalidValue>,
    ) -> Option<QuotaOverride> {
        let overrides = read(&self.overrides);
        let cached = overrides.get(&quota).cloned();
        drop(overrides);
        let cached = cached.unwrap_or_else(|| {
            let opened = open().map(QuotaOverride::from);
            let mut overrides = write(&self.overrides);
            if overrides.len() >= MAX_QUOTA_OVERRIDES {
                // The order of a map is arbitrary. Declared quotas stay.
                let is_declared = |quota: &Quota| policy.declared_quotas().any(|own| own == quota);
                let evicted = overrides.keys().find(|quota| !is_declared(quota));
                if let Some(evicted) = evicted.copied() {
                    overrides.remove(&evicted);
                }
            }
            overrides.entry(quota).or_insert(opened).clone()
        });
        cached.map_err(|invalid| {
            self.log.log_with(|suppressed| {
                let error = ConfigError::of(policy.name(), invalid);
                tracing::error!(%error, suppressed, "the quota of a request or an override can't be counted; the policy's own quota is used");
            });
        })
        .ok()
    }

    /// The limits of all cached quotas.
    pub(crate) fn limits(&self) -> Vec<LimitHandle> {
        let overrides = read(&self.overrides);
        let cached = overrides.values().flatten();
        cached.map(|quota| quota.limit.clone()).collect()
    }
}

/// A quota that applies in place of a policy's own: a request's, an operator's for its key (`overrides`), or this process's share.
#[derive(Clone, Debug)]
pub(crate) struct QuotaOverride {
    /// Shared by all keys that it applies to.
    pub(crate) shared: Arc<OverridingQuota>,
    /// The override that an operator has set for the key, if the quota is of one.
    pub(crate) by_operator: Option<Arc<KnownOverride>>,
}

impl From<OverridingQuota> for QuotaOverride {
    fn from(quota: OverridingQuota) -> Self {
        Self {
            shared: Arc::new(quota),
            by_operator: None,
        }
    }
}

impl Deref for QuotaOverride {
    type Target = OverridingQuota;

    fn deref(&self) -> &OverridingQuota {
        &self.shared
    }
}

/// A quota, and its limit in a store.
#[derive(Debug)]
pub(crate) struct OverridingQuota {
    pub(crate) quota: Quota,
    pub(crate) limit: LimitHandle,
    /// The capacity of the full quota, if this is the share of it that limits requests in process while the store fails.
    pub(crate) full_capacity: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn no_more_quotas_are_kept_than_the_upper_bound() {
        let cache = QuotaOverrideCache::default();
        let policy = Policy::new("p", Quota::requests(1).per_second());
        let store = MemoryStore::new();
        for requests in 1..=3_000 {
            let quota = Quota::requests(requests).per_hour();
            let open = || cache.open(&policy, &store, quota);
            let cached = cache.get(&policy, quota, open).expect("an override");
            assert_eq!(cached.quota, quota);
            let kept = cache.limits().len();
            let most = MAX_QUOTA_OVERRIDES.min(requests as usize);
            assert_eq!(kept, most, "of {requests}: a new one replaces another");
        }
    }
}
