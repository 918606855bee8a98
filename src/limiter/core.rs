//! What a limiter consists of: its policies, each bound to a limit of the store, and the state that they share.

use std::{
    any::Any,
    fmt,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::HeaderValue;

use super::{
    bound_policy::{BoundPolicy, Enforcement},
    entry::PolicyEntry,
    health_checks::HealthChecks,
    other_quotas::OtherQuota,
    wait_queue::WaitQueues,
};
use crate::{
    access::Lists,
    differences::different,
    error::{StoreError, UnknownPolicy},
    log::LogThrottle,
    observe::{LimiterStats, Observers},
    policy::{
        Policy,
        on_store_error::{OnMisconfiguration, OnStoreError},
        skip::{Conditions, SkipRules},
    },
    store::{CounterMode, CounterOp, LimitHandle, Store, StoreAdmin, Units, memory::MemoryStore},
    sync::{CachePadded, ReplacedFlag, ShardedArc, replaceable_value},
};

/// The policies of a limiter, its store, and what they share.
pub(crate) struct LimiterCore {
    /// How many times the limiter's policies had been replaced before these.
    pub(crate) generation: u64,
    pub(crate) store: Arc<dyn Store>,
    /// `None` if there are none: then nothing is reported.
    pub(crate) observers: Option<Arc<Observers>>,
    /// Counts the policies' local shares while the store fails; `None` if no policy has or had one.
    pub(crate) local_shares: Option<Arc<MemoryStore>>,
    pub(crate) policies: Box<[BoundPolicy]>,
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
    pub(crate) wait_queues: Arc<WaitQueues>,
    pub(crate) health_checks: Arc<HealthChecks>,
    pub(crate) outage_log: LogThrottle,
    pub(crate) misconfiguration_log: LogThrottle,
    /// Throttles the errors about invalid calls.
    pub(crate) misuse_log: LogThrottle,
}

/// A limiter's core, by one [`LimiterRef`] for each group of threads.
pub(crate) type LimiterRefs = ShardedArc<LimiterRef>;

/// A reference to a limiter's core for one group of threads, whose decisions hold it. There are several, so that threads don't
/// contend for one reference count; padded, so that the counts share no cache line.
pub(crate) struct LimiterRef {
    core: CachePadded<Arc<LimiterCore>>,
    pub(super) response_cache: ResponseCache,
    replaced: ReplacedFlag,
}

impl LimiterRefs {
    pub(crate) fn of(core: LimiterCore) -> Self {
        let core = Arc::new(core);
        Self::new(|| LimiterRef::new(&core))
    }
}

replaceable_value!(LimiterRef, replaced);

impl LimiterRef {
    fn new(core: &Arc<LimiterCore>) -> Self {
        let policies = core.policies.iter();
        let live = policies.filter(|bound| matches!(bound.enforcement, Enforcement::Live));
        Self {
            response_cache: ResponseCache::new(core.policies.len(), live.count()),
            core: CachePadded::new(core.clone()),
            replaced: ReplacedFlag::default(),
        }
    }

    pub(crate) fn core(&self) -> &Arc<LimiterCore> {
        &self.core
    }
}

impl fmt::Debug for LimiterRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterRef").finish_non_exhaustive()
    }
}

impl Deref for LimiterRef {
    type Target = LimiterCore;

    fn deref(&self) -> &LimiterCore {
        &self.core
    }
}

impl LimiterCore {
    pub(crate) fn policies(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.policies.iter().map(|bound| &bound.policy)
    }

    /// What operators ask of the store. An error if the store does not support it.
    pub(super) fn admin(&self) -> Result<&dyn StoreAdmin, StoreError> {
        let unsupported = StoreError::Unsupported("listing callers and blocked keys, overrides");
        self.store.admin().ok_or(unsupported)
    }

    /// The index of the policy of that name.
    pub(crate) fn find(&self, name: &str) -> Result<usize, UnknownPolicy> {
        let mut policies = self.policies.iter();
        let found = policies.position(|bound| bound.policy.name() == name);
        found.ok_or_else(|| {
            let policies = self.policies.iter();
            UnknownPolicy::new(name, policies.map(|bound| bound.policy.name().to_owned()))
        })
    }

    #[inline]
    pub(crate) fn bound(&self, policy: u32) -> &BoundPolicy {
        &self.policies[policy as usize]
    }

    /// The limit of a policy, or of a request's own quota under it.
    #[inline]
    pub(crate) fn limit<'a>(&'a self, entry: &'a PolicyEntry) -> &'a LimitHandle {
        self.bound(entry.policy).limit_of(entry)
    }

    /// An operation on what the entry charged on arrival.
    #[inline]
    pub(crate) fn counter_op<'a>(&'a self, entry: &'a PolicyEntry) -> CounterOp<'a> {
        CounterOp {
            limit: self.limit(entry),
            key: entry.key,
            units: Units::new(entry.receipts.first().remaining),
            receipt: None,
            caller: entry.caller(),
            mode: CounterMode::Charge,
        }
    }

    /// The store that charged the entry, and so refunds, renews and settles it.
    pub(crate) fn store_for(&self, entry: &PolicyEntry) -> &dyn Store {
        match &self.local_shares {
            Some(shares) if self.is_local_share(entry) => &**shares,
            _ => &*self.store,
        }
    }

    pub(crate) fn shared_store_for(&self, entry: &PolicyEntry) -> Arc<dyn Store> {
        match &self.local_shares {
            Some(shares) if self.is_local_share(entry) => shares.clone(),
            _ => self.store.clone(),
        }
    }

    /// Whether this process's share counts the entry.
    pub(crate) fn is_local_share(&self, entry: &PolicyEntry) -> bool {
        let is_share = |quota: &OtherQuota| quota.full_capacity.is_some();
        entry.other_quota.as_ref().is_some_and(is_share)
    }

    /// Whether the store counts in process, so that it responds at once, without a runtime.
    pub(super) fn is_in_process(&self) -> bool {
        let store: &dyn Any = &*self.store;
        store.is::<MemoryStore>()
    }

    /// The state of the limiter and its store in this process.
    pub(super) fn stats(&self) -> LimiterStats {
        let mut waiters = vec![0; self.policies.len()];
        self.wait_queues
            .count_waiters(self.generation, &mut waiters);
        let policies = self.policies.iter().zip(waiters);
        LimiterStats {
            generation: self.generation,
            policies: policies
                .map(|(bound, waiters)| bound.stats(waiters))
                .collect(),
            store: self.store.stats(),
        }
    }

    /// The conditions by which no policy applies to a request.
    pub(crate) fn skip_rules(&self) -> SkipRules<'_> {
        SkipRules {
            skip: &self.skip,
            only: &self.only,
        }
    }

    /// The names of the settings outside of policies in which `after` differs.
    pub(crate) fn differences(&self, after: &Self) -> Vec<&'static str> {
        let mut names = different([
            // Unset, it differs for outgoing calls.
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
        let lists = [self, after].map(|core| core.lists.as_deref());
        names.extend(Lists::differences(lists[0], lists[1]));
        names
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
    /// An empty cache, for so many policies.
    pub(crate) fn new(policies: usize, live: usize) -> Self {
        Self {
            live,
            policy_header: OnceLock::new(),
            problems: (0..policies).map(|_| OnceLock::new()).collect(),
        }
    }
}
