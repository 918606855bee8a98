//! Quotas other than a policy's own: those of requests and of overrides.

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
const MAX_OTHER_QUOTAS: usize = 1_024;

/// The quotas that requests have had in place of a policy's own, each bound to a limit of the store.
#[derive(Debug, Default)]
pub(crate) struct OtherQuotas {
    /// With the reason, if the strategy can't count it.
    quotas: RwLock<HashMap<Quota, Result<OtherQuota, InvalidValue>>>,
    refills: TierRefills,
    log: LogThrottle,
}

impl OtherQuotas {
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
        let mut kept = write(&self.quotas);
        // One of 0 admits nothing, and is not counted.
        let counted = policy.declared_quotas().filter(|quota| quota.amount() > 0);
        for quota in counted {
            let terms = self.open(policy, store, *quota)?;
            kept.insert(*quota, Ok(terms.into()));
        }
        Ok(())
    }

    pub(crate) fn open(
        &self,
        policy: &Policy,
        store: &dyn Store,
        quota: Quota,
    ) -> Result<QuotaLimit, InvalidValue> {
        let rule = self.bind(policy, quota)?;
        Ok(QuotaLimit {
            quota,
            limit: store.register(policy.name(), rule)?,
            full_capacity: None,
        })
    }

    /// A quota with its limit, which is opened unless it is kept. An error if the strategy can't count it.
    pub(crate) fn get(
        &self,
        policy: &Policy,
        quota: Quota,
        open: impl FnOnce() -> Result<QuotaLimit, InvalidValue>,
    ) -> Result<OtherQuota, InvalidValue> {
        let kept = read(&self.quotas);
        let cached = kept.get(&quota).cloned();
        drop(kept);
        cached.unwrap_or_else(|| {
            let opened = open().map(OtherQuota::from);
            let mut kept = write(&self.quotas);
            if kept.len() >= MAX_OTHER_QUOTAS {
                // The order of a map is arbitrary. Declared quotas stay.
                let is_declared = |quota: &Quota| policy.declared_quotas().any(|own| own == quota);
                let evicted = kept.keys().find(|quota| !is_declared(quota));
                if let Some(evicted) = evicted.copied() {
                    kept.remove(&evicted);
                }
            }
            kept.entry(quota).or_insert(opened).clone()
        })
    }

    /// Logs that a quota can't be counted. That nothing is admitted under a quota of 0 is no mistake.
    pub(crate) fn log_uncountable(
        &self,
        policy: &Policy,
        quota: Quota,
        invalid: InvalidValue,
        action: &str,
    ) {
        if quota.amount() > 0 {
            self.log.log_with(|suppressed| {
                let error = ConfigError::of(policy.name(), invalid);
                tracing::error!(%error, action, suppressed, "a quota in place of the policy's own can't be counted");
            });
        }
    }

    /// A quota of a request that can't be counted, if there was one lately, and why.
    pub(crate) fn uncountable(&self) -> Option<InvalidValue> {
        let kept = read(&self.quotas);
        let mut quotas = kept.iter().filter(|(quota, _)| quota.amount() > 0);
        quotas.find_map(|(_, counted)| counted.as_ref().err().cloned())
    }

    /// The limits of all cached quotas.
    #[cfg(test)]
    fn limits(&self) -> Vec<LimitHandle> {
        let kept = read(&self.quotas);
        let cached = kept.values().flatten();
        cached.map(|quota| quota.limit.clone()).collect()
    }
}

/// A quota that applies in place of a policy's own: a request's, an operator's for its key (`overrides`), or this process's share.
#[derive(Clone, Debug)]
pub(crate) struct OtherQuota {
    /// Shared by all keys that it applies to.
    pub(crate) shared: Arc<QuotaLimit>,
    /// The override that an operator has set for the key, if the quota is of one.
    pub(crate) by_operator: Option<Arc<KnownOverride>>,
}

impl From<QuotaLimit> for OtherQuota {
    fn from(quota: QuotaLimit) -> Self {
        Self {
            shared: Arc::new(quota),
            by_operator: None,
        }
    }
}

impl Deref for OtherQuota {
    type Target = QuotaLimit;

    fn deref(&self) -> &QuotaLimit {
        &self.shared
    }
}

/// A quota, and its limit in a store.
#[derive(Debug)]
pub(crate) struct QuotaLimit {
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
        let cache = OtherQuotas::default();
        let policy = Policy::new("p", Quota::requests(1).per_second());
        let store = MemoryStore::new();
        for requests in 1..=3_000 {
            let quota = Quota::requests(requests).per_hour();
            let open = || cache.open(&policy, &store, quota);
            let cached = cache.get(&policy, quota, open).expect("a quota");
            assert_eq!(cached.quota, quota);
            let kept = cache.limits().len();
            let most = MAX_OTHER_QUOTAS.min(requests as usize);
            assert_eq!(kept, most, "of {requests}: a new one replaces another");
        }
    }
}
