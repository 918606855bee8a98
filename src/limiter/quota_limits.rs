//! Limits for quotas other than a policy's own: those of requests, of overrides, and this process's share while the store fails.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, OnceLock, RwLock},
};

use crate::{
    error::{ConfigError, InvalidValue},
    log::LogThrottle,
    policy::{Policy, on_store_error::LocalFallback},
    quota::Quota,
    store::{LimitHandle, Store, memory::MemoryStore, overrides::Override},
    strategy::{Rule, TierRefills},
    sync::{read, write},
};

/// Upper bound of the quotas that are kept, since callers may choose theirs.
const MAX_OTHER_QUOTAS: usize = 1_024;

/// A quota that applies in place of a policy's own, and its limit in a store. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct QuotaLimit {
    shared: Arc<SharedLimit>,
    /// The override that an operator has set for the key, if the quota is of one.
    pub(crate) by_operator: Option<Arc<Override>>,
}

/// What all keys that a quota applies to share.
#[derive(Debug)]
pub(crate) struct SharedLimit {
    pub(crate) quota: Quota,
    pub(crate) limit: LimitHandle,
    /// The capacity of the full quota, if this is the share of it that limits requests in process while the store fails.
    pub(crate) full_capacity: Option<u64>,
    /// Its share, once the store has failed.
    share: OnceLock<QuotaLimit>,
}

impl QuotaLimit {
    fn new(quota: Quota, limit: LimitHandle, full_capacity: Option<u64>) -> Self {
        let shared = SharedLimit {
            quota,
            limit,
            full_capacity,
            share: OnceLock::new(),
        };
        Self {
            shared: Arc::new(shared),
            by_operator: None,
        }
    }

    /// The same limit for a key whose quota an operator has set.
    pub(crate) fn by_operator(self, known: Arc<Override>) -> Self {
        Self {
            by_operator: Some(known),
            ..self
        }
    }

    /// Whether it is this process's share.
    pub(crate) fn is_share(&self) -> bool {
        self.full_capacity.is_some()
    }
}

impl Deref for QuotaLimit {
    type Target = SharedLimit;

    fn deref(&self) -> &SharedLimit {
        &self.shared
    }
}

/// The quotas that requests have had in place of a policy's own, each with its limit.
#[derive(Debug, Default)]
pub(crate) struct QuotaLimits {
    /// With the reason, if the strategy can't count it.
    kept: RwLock<HashMap<Quota, Result<QuotaLimit, InvalidValue>>>,
    refills: TierRefills,
    log: LogThrottle,
}

impl QuotaLimits {
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
        let mut kept = write(&self.kept);
        // A quota of 0 admits nothing, and is not counted.
        for quota in policy.declared_quotas().filter(|quota| quota.amount() > 0) {
            let limit = self.register(policy, store, *quota)?;
            kept.insert(*quota, Ok(limit));
        }
        Ok(())
    }

    /// Registers a quota. One whose burst refills within a lease is counted without leases.
    pub(crate) fn open(
        &self,
        policy: &Policy,
        store: &dyn Store,
        quota: Quota,
    ) -> Result<QuotaLimit, InvalidValue> {
        let opened = self.register(policy, store, quota);
        if policy.lease_setting().is_none() {
            return opened;
        }
        // It is not replaced by the policy's own quota, which may be larger.
        opened.or_else(|_| self.register(&policy.clone().without_lease(), store, quota))
    }

    fn register(
        &self,
        policy: &Policy,
        store: &dyn Store,
        quota: Quota,
    ) -> Result<QuotaLimit, InvalidValue> {
        let limit = store.register(policy.name(), self.bind(policy, quota)?)?;
        Ok(QuotaLimit::new(quota, limit, None))
    }

    /// The limit of a quota, opened unless it is kept; `None`, and a log line with `action`, if the strategy can't count it.
    pub(crate) fn get_or_log(
        &self,
        policy: &Policy,
        quota: Quota,
        action: &str,
        open: impl FnOnce() -> Result<QuotaLimit, InvalidValue>,
    ) -> Option<QuotaLimit> {
        match self.get(policy, quota, open) {
            Ok(limit) => Some(limit),
            Err(invalid) => {
                self.log_uncountable(policy, quota, invalid, action);
                None
            }
        }
    }

    fn get(
        &self,
        policy: &Policy,
        quota: Quota,
        open: impl FnOnce() -> Result<QuotaLimit, InvalidValue>,
    ) -> Result<QuotaLimit, InvalidValue> {
        if let Some(found) = read(&self.kept).get(&quota) {
            return found.clone();
        }
        let opened = open();
        let mut kept = write(&self.kept);
        if kept.len() >= MAX_OTHER_QUOTAS {
            // The order of a map is arbitrary. Declared quotas stay.
            let is_declared = |quota: &Quota| policy.declared_quotas().any(|own| own == quota);
            let evicted = kept.keys().find(|quota| !is_declared(quota)).copied();
            if let Some(evicted) = evicted {
                kept.remove(&evicted);
            }
        }
        kept.entry(quota).or_insert(opened).clone()
    }

    /// Logs that a quota can't be counted. That nothing is admitted under a quota of 0 is no mistake.
    fn log_uncountable(&self, policy: &Policy, quota: Quota, invalid: InvalidValue, action: &str) {
        if quota.amount() > 0 {
            self.log.log_with(|suppressed| {
                let error = ConfigError::of(policy.name(), invalid);
                tracing::error!(%error, action, suppressed, "a quota in place of the policy's own can't be counted");
            });
        }
    }

    /// Why a quota of a request can't be counted, if there was such a quota lately.
    pub(crate) fn uncountable(&self) -> Option<InvalidValue> {
        let kept = read(&self.kept);
        let mut quotas = kept.iter().filter(|(quota, _)| quota.amount() > 0);
        quotas.find_map(|(_, counted)| counted.as_ref().err().cloned())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        read(&self.kept).len()
    }
}

/// The share of a policy's quotas by which this process limits requests while the store fails.
#[derive(Debug)]
pub(crate) struct LocalShare {
    fallback: LocalFallback,
    /// The share of the policy's own quota.
    default: QuotaLimit,
}

impl LocalShare {
    /// Registers the share of the policy's own quota, whose limit in the store is `full`.
    pub(crate) fn open(
        shares: &MemoryStore,
        policy: &Policy,
        fallback: LocalFallback,
        quotas: &QuotaLimits,
        full: &LimitHandle,
    ) -> Result<Self, InvalidValue> {
        let default = open_share(shares, policy, fallback, quotas, policy.quota(), full)?;
        Ok(Self { fallback, default })
    }

    /// The share of a request's quota: of `full`, or else of the policy's own.
    pub(crate) fn of(
        &self,
        shares: &MemoryStore,
        policy: &Policy,
        quotas: &QuotaLimits,
        full: Option<&QuotaLimit>,
    ) -> QuotaLimit {
        let Some(full) = full else {
            return self.default.clone();
        };
        let share = full.share.get_or_init(|| {
            let (quota, limit) = (full.quota, &full.limit);
            open_share(shares, policy, self.fallback, quotas, quota, limit).unwrap_or_else(
                |invalid| {
                    let action = "the share of the policy's own quota is used";
                    quotas.log_uncountable(policy, quota, invalid, action);
                    self.default.clone()
                },
            )
        });
        share.clone()
    }
}

fn open_share(
    shares: &MemoryStore,
    policy: &Policy,
    fallback: LocalFallback,
    quotas: &QuotaLimits,
    quota: Quota,
    full: &LimitHandle,
) -> Result<QuotaLimit, InvalidValue> {
    let quota = fallback.share(quota);
    // It counts in process, where units are spent as they are charged.
    let rule = quotas.bind(&policy.clone().without_lease(), quota)?;
    let limit = shares.register(policy.name(), rule)?;
    Ok(QuotaLimit::new(quota, limit, Some(full.info().capacity)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_quotas_are_kept_than_the_upper_bound() {
        let limits = QuotaLimits::default();
        let policy = Policy::new("p", Quota::requests(1).per_second());
        let store = MemoryStore::new();
        for requests in 1..=3_000 {
            let quota = Quota::requests(requests).per_hour();
            let open = || limits.open(&policy, &store, quota);
            let limit = limits.get(&policy, quota, open).expect("a quota");
            assert_eq!(limit.quota, quota);
            let most = MAX_OTHER_QUOTAS.min(requests as usize);
            assert_eq!(
                limits.len(),
                most,
                "of {requests}: a new one replaces another"
            );
        }
    }
}
