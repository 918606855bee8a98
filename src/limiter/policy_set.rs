//! The policies in force: each bound to a limit of the store and, with a local fallback, to the limit of its share. Immutable: a
//! reconfiguration replaces the whole set, and decisions keep the set that made them.

use std::{
    any::Any,
    fmt,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderValue, request::Parts};
use smallvec::SmallVec;

use super::{
    keys::{CallEntry, Keys},
    listener::AdjustListener,
    policy_state::PolicyState,
    quota_limits::{LocalShare, QuotaLimit, QuotaLimits},
    request::RequestHead,
};
use crate::{
    access::Lists,
    differences::different,
    error::{StoreError, UnknownPolicy},
    extract::{Extracted, MissingKey},
    key::Key,
    log::LogThrottle,
    observe::{Observers, PolicyKind, PolicyStats},
    policy::{
        Policy,
        on_store_error::{OnMisconfiguration, OnStoreError},
        skip::{Conditions, SkipRules},
    },
    quota::Quota,
    store::{
        CounterMode, LimitHandle, Store, StoreAdmin,
        memory::MemoryStore,
        overrides::{Override, table::PolicyOverrides},
    },
    sync::{CachePadded, ReplacedFlag, ShardedArc, replaceable_value},
};

/// The policies in force, as one group of threads refers to them. There are several with the same policies, so that threads don't
/// contend for one reference count, each on cache lines of its own. Decisions hold one.
pub(crate) struct PolicySet {
    policies: CachePadded<Arc<Policies>>,
    pub(crate) response_cache: ResponseCache,
    replaced: ReplacedFlag,
}

/// The same policies for all groups of threads.
pub(crate) type PolicySets = ShardedArc<PolicySet>;

/// What a [`PolicySet`] refers to.
pub(crate) struct Policies {
    /// How many times the limiter's policies had been replaced before these.
    pub(crate) generation: u64,
    pub(crate) store: Arc<dyn Store>,
    /// Counts the shares of local fallbacks while the store fails; `None` if no policy has or had one.
    pub(crate) shares: Option<Arc<MemoryStore>>,
    /// Live policies first, then bans, then shadows.
    pub(crate) policies: Box<[BoundPolicy]>,
    /// `None` if there are none: then nothing is reported.
    pub(crate) observers: Option<Arc<Observers>>,
    /// Receives what charges and permits report.
    pub(crate) listener: Arc<dyn AdjustListener>,
    pub(crate) on_store_error: Option<OnStoreError>,
    pub(crate) on_misconfiguration: OnMisconfiguration,
    pub(crate) lists: Option<Box<Lists>>,
    pub(crate) skip: Conditions,
    pub(crate) only: Conditions,
    pub(crate) counts_preflights: bool,
    /// Whether a policy takes its quota, cost or conditions from requests.
    pub(crate) reads_parts: bool,
    /// Whether a policy's charge depends on the request's outcome.
    pub(crate) has_outcome_charges: bool,
    /// Whether any policy is an in-flight limit.
    pub(crate) has_permits: bool,
    pub(crate) outage_log: LogThrottle,
    pub(crate) misconfiguration_log: LogThrottle,
    /// Throttles the errors about invalid calls.
    pub(crate) misuse_log: LogThrottle,
}

/// A policy, and its limit in the store.
pub(crate) struct BoundPolicy {
    pub(crate) policy: Policy,
    pub(crate) role: PolicyRole,
    pub(crate) limit: LimitHandle,
    /// How an arriving request is counted.
    pub(crate) mode: CounterMode,
    /// Limits for quotas other than the policy's own.
    pub(crate) other_quotas: Arc<QuotaLimits>,
    /// Whether operators have set any override. Read by each request.
    pub(crate) has_overrides: Arc<AtomicBool>,
    /// The overrides that operators have set for keys; `None` if the store has none.
    pub(crate) overrides: Option<Arc<PolicyOverrides>>,
    /// The policy's own setting, or else the limiter's; `None` if neither is set.
    pub(crate) on_store_error: Option<OnStoreError>,
    /// This process's share of the quota; `None` without a local fallback.
    pub(crate) share: Option<LocalShare>,
    /// The one key of all requests, as by `extract::global`.
    pub(crate) fixed_key: Option<Key>,
    /// The index of the key extractor among those that several policies share, so that each runs once per request; `None` if it is
    /// not shared.
    pub(crate) shared_key: Option<usize>,
    /// The index of the extractor of callers, likewise.
    pub(crate) shared_caller: Option<usize>,
    /// Counters and memory that outlive this set.
    pub(crate) state: Arc<PolicyState>,
}

/// Whether and how a policy is enforced. The entries of a decision are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PolicyRole {
    /// Enforced.
    Live,
    /// Enforced, and counts the rejections of other policies.
    Ban,
    /// Evaluated, and not enforced.
    Shadow {
        /// Whether it would reject the request.
        rejects: bool,
    },
}

impl From<PolicyRole> for PolicyKind {
    fn from(role: PolicyRole) -> Self {
        match role {
            PolicyRole::Live => Self::Live,
            PolicyRole::Ban => Self::Ban,
            PolicyRole::Shadow { .. } => Self::Shadow,
        }
    }
}

/// The effect of an operator's override on a request.
pub(crate) enum AppliedOverride {
    Quota(QuotaLimit),
    Exempt(Arc<Override>),
}

replaceable_value!(PolicySet, replaced);

impl PolicySet {
    /// The sets of all groups of threads, which share these policies.
    pub(crate) fn share(policies: Policies) -> PolicySets {
        let policies = Arc::new(policies);
        let of_live = policies.policies.iter();
        let live = of_live
            .filter(|bound| bound.role == PolicyRole::Live)
            .count();
        PolicySets::new(|| Self {
            response_cache: ResponseCache::new(policies.policies.len(), live),
            policies: CachePadded::new(policies.clone()),
            replaced: ReplacedFlag::default(),
        })
    }
}

impl Deref for PolicySet {
    type Target = Policies;

    #[inline]
    fn deref(&self) -> &Policies {
        &self.policies
    }
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicySet").finish_non_exhaustive()
    }
}

impl Policies {
    /// The policies, without their limits.
    pub(crate) fn policies(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.policies.iter().map(|bound| &bound.policy)
    }

    /// The index of the policy of that name.
    pub(crate) fn find(&self, name: &str) -> Result<usize, UnknownPolicy> {
        let mut policies = self.policies();
        policies
            .position(|policy| policy.name() == name)
            .ok_or_else(|| self.unknown(name))
    }

    /// The policy of that name.
    pub(crate) fn named(&self, name: &str) -> Result<&BoundPolicy, UnknownPolicy> {
        let mut policies = self.policies.iter();
        policies
            .find(|bound| bound.policy.name() == name)
            .ok_or_else(|| self.unknown(name))
    }

    #[cold]
    fn unknown(&self, name: &str) -> UnknownPolicy {
        UnknownPolicy::new(name, self.policies().map(|policy| policy.name().to_owned()))
    }

    #[inline]
    pub(crate) fn bound(&self, policy: u32) -> &BoundPolicy {
        &self.policies[policy as usize]
    }

    /// The index of the policy of a call's entry.
    pub(crate) fn index_of(&self, entry: &CallEntry) -> Result<usize, UnknownPolicy> {
        let index = entry.index as usize;
        let at_index = self.policies.get(index);
        if at_index.is_some_and(|bound| bound.policy.name() == &*entry.policy) {
            return Ok(index);
        }
        // The policies were replaced.
        self.find(&entry.policy)
    }

    /// A call's entries with the indices of their policies, ordered by policy and key. Entries of unknown policies are left out.
    pub(crate) fn sorted_entries<'a>(
        &self,
        entries: &'a [CallEntry],
    ) -> SmallVec<[(usize, &'a CallEntry); 4]> {
        let indexed = entries
            .iter()
            .filter_map(|entry| Some((self.index_of(entry).ok()?, entry)));
        let mut sorted: SmallVec<[_; 4]> = indexed.collect();
        sorted.sort_by_key(|(index, entry)| (*index, entry.key));
        sorted
    }

    /// The store's interface for operators. An error if it has none.
    pub(crate) fn admin(&self) -> Result<&dyn StoreAdmin, StoreError> {
        let unsupported = StoreError::Unsupported("listing callers and blocked keys, overrides");
        self.store.admin().ok_or(unsupported)
    }

    /// Whether the store counts in process, so that it responds at once, without a runtime.
    pub(crate) fn is_in_process(&self) -> bool {
        let store: &dyn Any = &*self.store;
        store.is::<MemoryStore>()
    }

    /// The conditions under which no policy applies to a request.
    pub(crate) fn skip_rules(&self) -> SkipRules<'_> {
        SkipRules {
            skip: &self.skip,
            only: &self.only,
        }
    }

    /// The names of the settings outside of policies in which `after` differs.
    pub(crate) fn differences(&self, after: &Self) -> Vec<&'static str> {
        let mut names = different([
            // Unset differs from the default, which outgoing calls do not have.
            (
                "on_store_error",
                self.on_store_error != after.on_store_error,
            ),
            (
                "on_misconfiguration",
                self.on_misconfiguration != after.on_misconfiguration,
            ),
            (
                "count_preflights",
                self.counts_preflights != after.counts_preflights,
            ),
            ("skip", self.skip != after.skip),
            ("only", self.only != after.only),
        ]);
        names.extend(Lists::differences(
            self.lists.as_deref(),
            after.lists.as_deref(),
        ));
        names
    }
}

impl BoundPolicy {
    pub(crate) fn is_ban(&self) -> bool {
        self.role == PolicyRole::Ban
    }

    pub(crate) fn is_shadow(&self) -> bool {
        matches!(self.role, PolicyRole::Shadow { .. })
    }

    /// Whether it limits the requests in flight.
    pub(crate) fn is_permit(&self) -> bool {
        self.limit.info().permit_ttl.is_some()
    }

    /// The policy's key in a call. One key for all policies does not replace the key of those that count all requests together.
    #[inline(always)]
    pub(crate) fn key_of<'a>(&'a self, keys: &'a Keys) -> Option<&'a Key> {
        match keys.all() {
            Some(all) => Some(self.fixed_key.as_ref().unwrap_or(all)),
            None => keys.of(self.policy.name()),
        }
    }

    /// What its extractor finds in a request.
    #[inline]
    pub(crate) fn extract(&self, head: &RequestHead<'_>) -> Extracted {
        head.extract(self.policy.extractor(), self.shared_key)
    }

    /// The caller that its extractor finds in a request.
    pub(crate) fn extract_caller(&self, head: &RequestHead<'_>) -> Option<Key> {
        let extractor = self.policy.caller_extractor()?;
        head.extract(extractor, self.shared_caller).key()
    }

    /// The cost of a request, unless the call sets one.
    pub(crate) fn cost_of(&self, head: Option<&RequestHead<'_>>) -> u64 {
        match head {
            Some(head) => self.policy.cost_of(head.parts, &head.path),
            None => self.policy.default_cost(),
        }
    }

    /// The caller to store with the charge: a unique name for a permit, `caller` if the strategy records callers.
    #[inline]
    pub(crate) fn caller_key(&self, caller: impl FnOnce() -> Option<Key>) -> Option<Box<Key>> {
        match self.limit.info().permit_ttl {
            Some(_) => Some(Box::new(Key::unique())),
            None if self.limit.info().records_caller => caller().map(Box::new),
            None => None,
        }
    }

    /// Whether a request without a key, or with an ambiguous one, is rejected.
    pub(crate) fn rejects_without_key(&self, found: Extracted) -> bool {
        let rejects = match found {
            Extracted::Key(_) => false,
            Extracted::Absent => self.policy.on_missing_key() == MissingKey::Reject,
            Extracted::Ambiguous => true,
        };
        rejects && !self.is_shadow()
    }

    /// What a request without a key lacks, for its response: `the header x-api-key`.
    pub(crate) fn missing_key_name(&self, parts: &Parts) -> Arc<str> {
        self.policy.missing_key_name(parts)
    }

    /// The limit for a quota in place of the policy's own; `None`, and a log line, if the strategy can't count it. `action` says
    /// what happens then.
    pub(crate) fn other_quota(
        &self,
        store: &dyn Store,
        quota: Quota,
        action: &str,
    ) -> Option<QuotaLimit> {
        self.other_quotas
            .get_or_log(&self.policy, quota, action, || {
                self.other_quotas.open(&self.policy, store, quota)
            })
    }

    /// The operators' override for the key.
    #[inline]
    pub(crate) fn override_of(&self, store: &dyn Store, key: &Key) -> Option<AppliedOverride> {
        if !self.has_overrides.load(Ordering::Relaxed) {
            return None;
        }
        self.find_override(store, key)
    }

    #[inline(never)]
    fn find_override(&self, store: &dyn Store, key: &Key) -> Option<AppliedOverride> {
        let known = self.overrides.as_ref()?.find(key)?;
        let Some(quota) = known.own_quota() else {
            return Some(AppliedOverride::Exempt(known));
        };
        let limit = self.other_quota(store, quota, "the override is not used")?;
        Some(AppliedOverride::Quota(limit.by_operator(known)))
    }

    /// Its state in this process. `waiters` is the number of calls that wait.
    pub(crate) fn stats(&self, waiters: u64) -> PolicyStats {
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
            permits: self.state.permits_held.load(Ordering::Relaxed),
            waiters,
            overrides: self
                .overrides
                .as_ref()
                .map_or(0, |overrides| overrides.len() as u64),
            shadow: self.is_shadow().then(|| self.state.shadow.stats()),
        }
    }
}

/// Header values and problem bodies that are the same for each response, rendered once.
#[derive(Debug)]
pub(crate) struct ResponseCache {
    /// How many policies are enforced, bans left out.
    pub(crate) live: usize,
    /// The value of `RateLimit-Policy`, if each live policy applies with its own quota.
    pub(crate) policy_header: OnceLock<HeaderValue>,
    /// By policy: the problem body of a rejection by that policy alone.
    pub(crate) problems: Box<[OnceLock<CachedBody>]>,
}

/// A body, and its length as a header's value.
#[derive(Clone, Debug)]
pub(crate) struct CachedBody {
    pub(crate) body: Bytes,
    pub(crate) length: HeaderValue,
}

impl ResponseCache {
    fn new(policies: usize, live: usize) -> Self {
        Self {
            live,
            policy_header: OnceLock::new(),
            problems: (0..policies).map(|_| OnceLock::new()).collect(),
        }
    }
}
