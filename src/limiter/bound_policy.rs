//! A policy of a limiter, bound to its limit in the store.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use http::request::Parts;

use super::{
    bans::RecentBans,
    decision::DecisionKind,
    entry::{PolicyEntry, PolicyRole},
    fallback::LocalShare,
    other_quotas::{OtherQuota, OtherQuotas, QuotaLimit},
    resolve::RequestHead,
    shadow::ShadowCounters,
};
use crate::{
    error::InvalidValue,
    extract::{Extracted, MissingKey},
    key::Key,
    log::LogThrottle,
    observe::PolicyStats,
    policy::{Policy, on_store_error::OnStoreError},
    quota::Quota,
    store::{CounterMode, LimitHandle, Store, overrides::table::PolicyOverrides},
};

/// A policy, and its limit in the store.
pub(crate) struct BoundPolicy {
    pub(crate) policy: Policy,
    pub(crate) enforcement: Enforcement,
    pub(crate) limit: LimitHandle,
    /// The role of its entries in decisions.
    pub(crate) role: PolicyRole,
    /// How an arriving request is counted.
    pub(crate) arrival_mode: CounterMode,
    /// Limits for quotas other than the policy's own.
    pub(crate) other_quotas: Arc<OtherQuotas>,
    /// Whether operators have set any. Read by each request.
    pub(crate) has_overrides: Arc<AtomicBool>,
    /// What operators have set for single keys; `None` if the store has no overrides.
    pub(crate) overrides: Option<Arc<PolicyOverrides>>,
    /// `None` unless it was configured.
    pub(crate) on_store_error: Option<OnStoreError>,
    /// The share of the local fallback; `None` if it is not configured.
    pub(crate) local_share: Option<LocalShare>,
    /// The one key of all requests, as by `extract::global`.
    pub(crate) fixed_key: Option<Key>,
    /// The index of its extractor among those that are shared.
    pub(crate) shared_key: Option<usize>,
    /// The same for the extractor of callers.
    pub(crate) shared_caller: Option<usize>,
    pub(crate) missing_keys: Arc<MissingKeys>,
    /// The bans that began most recently, so that each is reported once.
    pub(crate) bans_begun: RecentBans,
    /// The permits that requests of this process hold, under this policy and those that it has replaced.
    pub(crate) permits_held: Arc<AtomicU64>,
    /// Whether the error about a decision that was dropped with a permit was logged.
    pub(crate) unclaimed_logged: AtomicBool,
}

/// What a policy does to requests.
#[derive(Debug)]
pub(crate) enum Enforcement {
    /// Rejects them.
    Live,
    /// Counts what the others reject, and rejects keys with too many rejections.
    Ban,
    /// Is evaluated only.
    Shadow(Arc<ShadowCounters>),
}

impl Enforcement {
    pub(crate) fn role(&self) -> PolicyRole {
        match self {
            Self::Live => PolicyRole::Live,
            Self::Ban => PolicyRole::Ban,
            Self::Shadow(_) => PolicyRole::Shadow { rejects: false },
        }
    }
}

impl BoundPolicy {
    /// The policy's limit, or that of the request's own quota.
    #[inline]
    pub(crate) fn limit_of<'a>(&'a self, entry: &'a PolicyEntry) -> &'a LimitHandle {
        match &entry.other_quota {
            Some(other_quota) => &other_quota.limit,
            None => &self.limit,
        }
    }

    pub(crate) fn is_ban(&self) -> bool {
        matches!(self.enforcement, Enforcement::Ban)
    }

    pub(crate) fn is_permit(&self) -> bool {
        self.limit.info().permit_ttl.is_some()
    }

    /// The cost of a request: 1 under a ban, which counts rejections.
    pub(crate) fn cost_of(&self, head: Option<&RequestHead<'_>>) -> u64 {
        match head {
            _ if self.is_ban() => 1,
            Some(head) => self.policy.cost_of(head.parts, &head.path),
            None => self.policy.default_cost(),
        }
    }

    /// The key of a request.
    #[inline]
    pub(crate) fn find_key(&self, head: &RequestHead<'_>) -> Extracted {
        let found = self.extract(head);
        self.missing_keys.record(found);
        found
    }

    /// What its extractor finds, without a record of whether requests have keys.
    #[inline]
    pub(crate) fn extract(&self, head: &RequestHead<'_>) -> Extracted {
        head.extract(self.policy.extractor(), self.shared_key)
    }

    /// The caller of a request, if it is another one than its key.
    pub(crate) fn extract_caller(&self, head: &RequestHead<'_>) -> Option<Key> {
        let extractor = self.policy.caller_extractor()?;
        head.extract(extractor, self.shared_caller).key()
    }

    /// The key that all requests without a key share, if they do.
    #[cold]
    pub(crate) fn shared_missing_key(&self) -> Option<Key> {
        self.missing_keys.missing_key(&self.policy)
    }

    /// The caller stored with the charge, for strategies that record callers: the request's caller if there is one, else the
    /// key. A permit gets a unique caller, which identifies it.
    pub(crate) fn caller_key(&self, caller: impl FnOnce() -> Option<Key>) -> Option<Box<Key>> {
        match self.limit.info().permit_ttl {
            Some(_) => Some(Box::new(Key::unique())),
            None if self.limit.info().records_caller => caller().map(Box::new),
            None => None,
        }
    }

    /// A quota other than the policy's own, bound to the store; `None` if the strategy can't count it, and the `action` then.
    pub(crate) fn other_quota(
        &self,
        store: &dyn Store,
        quota: Quota,
        action: &str,
    ) -> Option<OtherQuota> {
        let cache = &self.other_quotas;
        let counted = cache.get(&self.policy, quota, || self.open_quota(store, quota));
        let log = |invalid| cache.log_uncountable(&self.policy, quota, invalid, action);
        counted.map_err(log).ok()
    }

    /// A limit of the store for a quota other than the policy's own.
    pub(crate) fn open_quota(
        &self,
        store: &dyn Store,
        quota: Quota,
    ) -> Result<QuotaLimit, InvalidValue> {
        let (policy, cache) = (&self.policy, &self.other_quotas);
        let opened = cache.open(policy, store, quota);
        // A quota whose burst refills within a lease can't be leased, and is counted without leases. It is not replaced by the
        // policy's own quota, which may be larger.
        if policy.lease_setting().is_some() {
            opened.or_else(|_| cache.open(&policy.clone().without_lease(), store, quota))
        } else {
            opened
        }
    }

    /// The key that a request would be counted by, without recording whether requests have keys.
    pub(crate) fn peek_key(&self, head: &RequestHead<'_>) -> Extracted {
        let is_shared = || self.policy.on_missing_key() == MissingKey::Shared;
        let shared = || is_shared().then(Key::missing).into();
        self.extract(head).or_else(shared)
    }

    /// Whether it rejects requests without a key.
    pub(crate) fn rejects_without_key(&self, found: Extracted) -> bool {
        let rejects = match found {
            Extracted::Key(_) => false,
            Extracted::Absent => self.policy.on_missing_key() == MissingKey::Reject,
            Extracted::Ambiguous => true,
        };
        rejects && !matches!(self.enforcement, Enforcement::Shadow(_))
    }

    /// The kind of a decision about a request that lacks the policy's key, or has several.
    pub(crate) fn missing_key_kind(&self, parts: &Parts) -> DecisionKind {
        DecisionKind::MissingKey {
            policy: self.policy.shared_name(),
            missing: self.policy.missing_key_name(parts),
        }
    }

    /// Its state in this process.
    pub(super) fn stats(&self, waiters: u64) -> PolicyStats {
        let has_quota = !self.policy.is_block_list();
        PolicyStats {
            policy: self.policy.shared_name(),
            kind: self.role.into(),
            quota: has_quota.then(|| self.policy.quota()),
            limit: if has_quota {
                self.limit.info().capacity
            } else {
                0
            },
            permits: self.permits_held.load(Ordering::Relaxed),
            waiters,
            overrides: self
                .overrides
                .as_ref()
                .map_or(0, |overrides| overrides.len() as u64),
            shadow: match &self.enforcement {
                Enforcement::Shadow(counters) => Some(counters.stats()),
                Enforcement::Live | Enforcement::Ban => None,
            },
        }
    }
}

/// Records whether a policy's requests have keys.
#[derive(Debug, Default)]
pub(crate) struct MissingKeys {
    /// Whether the last request shared the bucket of those without a key, by a mistake of the application.
    shares_by_mistake: AtomicBool,
    logged: LogThrottle,
}

impl MissingKeys {
    /// Records what the policy's extractor found in a request.
    #[inline]
    pub(crate) fn record(&self, found: Extracted) {
        // Written only if it changes, so that the cache line stays shared.
        if found != Extracted::Absent && self.shares_by_mistake.load(Ordering::Relaxed) {
            self.shares_by_mistake.store(false, Ordering::Relaxed);
        }
    }

    /// The key that requests without a key share, if the policy has them share one. Logs the missing key.
    #[cold]
    pub(crate) fn missing_key(&self, policy: &Policy) -> Option<Key> {
        let missing = policy.on_missing_key();
        let extractor = policy.extractor();
        let policy = policy.name();
        let hint = extractor.missing_key_hint();
        self.logged.log_with(|suppressed| {
            if hint.is_empty() {
                tracing::debug!(policy, action = ?missing, suppressed, "a request has no key");
            } else {
                tracing::error!(policy, action = ?missing, suppressed, "a request has no key: {hint}");
            }
        });
        if missing != MissingKey::Shared {
            return None;
        }
        if !hint.is_empty() && !self.shares_by_mistake.load(Ordering::Relaxed) {
            self.shares_by_mistake.store(true, Ordering::Relaxed);
        }
        Some(Key::missing())
    }

    /// Whether the last request shared the bucket of those without a key, which its extractor calls a mistake.
    pub(crate) fn shares_by_mistake(&self) -> bool {
        self.shares_by_mistake.load(Ordering::Relaxed)
    }
}
