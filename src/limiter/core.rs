//! What a limiter consists of: its policies, each bound to a limit of the store, and the state that they share.
//!
//! Everything else in `limiter/` is built on this module, which uses none of it.

use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
    thread::LocalKey,
    time::Duration,
};

use bytes::Bytes;
use http::HeaderValue;
use tokio::sync::watch;

use super::{
    bans::RecentBans,
    entry::{PolicyEntry, PolicyRole},
    health_checks::HealthChecks,
    local_share::LocalShare,
    missing_keys::MissingKeys,
    permits::PermitRegistry,
    quota_overrides::{QuotaOverride, QuotaOverrideCache},
    resolve::RequestHead,
    shadow::ShadowCounters,
    wait_queue::WaitQueues,
    write_back::LocalShares,
};
use crate::{
    access::Lists,
    error::UnknownPolicy,
    extract::Extracted,
    key::Key,
    log::LogThrottle,
    observe::Observers,
    policy::{
        Policy,
        on_store_error::{OnMisconfiguration, OnStoreError},
        skip::SkipRules,
    },
    quota::Quota,
    setting::{Setting, SettingValue},
    store::{CounterMode, CounterOp, LimitHandle, Store, Units},
    sync::{CachePadded, ReplaceableValue, ReplacedFlag, ShardedArc, ThreadRefs},
};

/// The policies of a limiter, its store, and what they share.
pub(crate) struct LimiterCore {
    /// How many times the limiter's policies had been replaced before these.
    pub(crate) generation: u64,
    pub(crate) store: Arc<dyn Store>,
    /// `None` if there are none: then nothing is reported.
    pub(crate) observers: Option<Arc<Observers>>,
    /// Counts the policies' local shares while the store fails; `None` if no policy has or had one.
    pub(crate) local_shares: Option<Arc<LocalShares>>,
    pub(crate) policies: Box<[BoundPolicy]>,
    pub(crate) on_store_error: Option<OnStoreError>,
    pub(crate) on_misconfiguration: OnMisconfiguration,
    pub(crate) lists: Option<Box<Lists>>,
    pub(crate) skips: SkipRules,
    pub(crate) counts_preflights: bool,
    /// What a document says that `client_ip` and `bearer` stand for.
    #[cfg(feature = "config")]
    pub(crate) shared_by_keys: [crate::setting::SettingValue; 2],
    /// Whether a policy takes its quota, cost or conditions from requests.
    pub(crate) reads_parts: bool,
    /// Whether a policy's charge depends on the request's outcome.
    pub(crate) has_outcome_charges: bool,
    /// Whether any policy is an in-flight limit.
    pub(crate) has_permits: bool,
    /// The shortest permit TTL of any policy.
    pub(crate) permit_ttl: Duration,
    /// That of the policies in force, also once these are replaced: permits that are held then expire by the new TTL.
    pub(crate) permit_ttl_in_force: Arc<watch::Sender<Duration>>,
    pub(crate) permits: PermitRegistry,
    pub(crate) wait_queues: Arc<WaitQueues>,
    pub(crate) health_checks: Arc<HealthChecks>,
    pub(crate) outage_log: LogThrottle,
    pub(crate) misconfiguration_log: LogThrottle,
    pub(crate) double_counting_log: LogThrottle,
    /// For invalid calls.
    pub(crate) misuse_log: LogThrottle,
}

/// A policy, and its limit in the store.
pub(crate) struct BoundPolicy {
    pub(crate) policy: Policy,
    pub(crate) enforcement: Enforcement,
    pub(crate) limit: LimitHandle,
    /// The role of its entries in decisions.
    pub(crate) role: PolicyRole,
    /// How an arriving request is counted. Not used for shadows: see `shadow_mode`.
    pub(crate) arrival_mode: CounterMode,
    /// Limits for quotas other than the policy's own.
    pub(crate) quota_overrides: Arc<QuotaOverrideCache>,
    /// `None` unless it was configured.
    pub(crate) on_store_error: Option<OnStoreError>,
    /// The share of the local fallback; `None` if it is not configured.
    pub(crate) local_share: Option<LocalShare>,
    /// The one key of all requests, as by `extract::global`.
    pub(crate) fixed_key: Option<Key>,
    /// The index of its extractor among those that are shared.
    pub(crate) shared_key: Option<usize>,
    /// That of the extractor of callers.
    pub(crate) shared_caller: Option<usize>,
    pub(crate) missing_keys: Arc<MissingKeys>,
    /// The bans that have begun last, each reported once.
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
    Shadow {
        /// The live policy that it would replace.
        of: Option<u32>,
        counters: Arc<ShadowCounters>,
    },
}

/// Several references to a limiter's core, of which each thread uses one.
pub(crate) type LimiterRefs = ShardedArc<LimiterRef>;

/// A reference to a limiter's core, which the decisions of its threads hold. Padded, so that its reference count shares no cache
/// line.
pub(crate) struct LimiterRef {
    core: CachePadded<Arc<LimiterCore>>,
    response_cache: ResponseCache,
    replaced: ReplacedFlag,
}

impl LimiterRefs {
    pub(crate) fn of(core: LimiterCore) -> Self {
        let core = Arc::new(core);
        Self::new(|| LimiterRef::new(&core))
    }
}

impl ReplaceableValue for LimiterRef {
    #[inline]
    fn replaced_flag(&self) -> &ReplacedFlag {
        &self.replaced
    }

    #[inline]
    fn thread_refs() -> &'static LocalKey<ThreadRefs<Self>> {
        thread_local! {
            static REFS: ThreadRefs<LimiterRef> = const { ThreadRefs::new() };
        }
        &REFS
    }
}

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

    pub(crate) fn response_cache(&self) -> &ResponseCache {
        &self.response_cache
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

impl Enforcement {
    pub(crate) fn role(&self) -> PolicyRole {
        match self {
            Self::Live => PolicyRole::Live,
            Self::Ban => PolicyRole::Ban,
            Self::Shadow { .. } => PolicyRole::Shadow { rejects: false },
        }
    }
}

impl LimiterCore {
    pub(crate) fn policies(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.policies.iter().map(|bound| &bound.policy)
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

    /// Where a policy's counters are, if that is known: the store's id, the policy's name and its state format.
    pub(super) fn counter_location(&self, policy: u32) -> Option<(u64, &str, &'static str)> {
        let bound = self.bound(policy);
        let format = bound.limit.rule().state_format();
        Some((self.store.id()?, bound.policy.name(), format))
    }

    /// The limit of a policy, or of a request's own quota under it.
    #[inline]
    pub(crate) fn limit<'a>(&'a self, entry: &'a PolicyEntry) -> &'a LimitHandle {
        self.bound(entry.policy).limit_of(entry)
    }

    /// The operation that refunds, renews or settles the entry's first charge.
    #[inline]
    pub(crate) fn counter_op<'a>(&'a self, entry: &'a PolicyEntry) -> CounterOp<'a> {
        let receipt = entry.receipts.first();
        CounterOp {
            limit: self.limit(entry),
            key: entry.key,
            units: Units::new(receipt.remaining),
            receipt,
            caller: entry.caller.as_deref().copied().unwrap_or(entry.key),
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

    /// Whether this process's share counts the entry.
    pub(crate) fn is_local_share(&self, entry: &PolicyEntry) -> bool {
        let is_share = |quota: &QuotaOverride| quota.full_capacity.is_some();
        entry.quota_override.as_ref().is_some_and(is_share)
    }

    /// Charges the store, which has just responded, for some of what was charged in process. Each charge is sent once, so it is
    /// charged once or not at all.
    #[inline]
    pub(crate) fn write_back(&self) {
        if let Some(shares) = &self.local_shares {
            shares.write_back(&*self.store);
        }
    }
}

impl BoundPolicy {
    /// The policy's limit, or that of the request's own quota.
    #[inline]
    pub(crate) fn limit_of<'a>(&'a self, entry: &'a PolicyEntry) -> &'a LimitHandle {
        match &entry.quota_override {
            Some(quota_override) => &quota_override.limit,
            None => &self.limit,
        }
    }

    pub(crate) fn is_ban(&self) -> bool {
        matches!(self.enforcement, Enforcement::Ban)
    }

    pub(crate) fn is_permit(&self) -> bool {
        self.limit.permit_ttl().is_some()
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
        match self.limit.permit_ttl() {
            Some(_) => Some(Box::new(Key::unique())),
            None if self.limit.records_caller() => caller().map(Box::new),
            None => None,
        }
    }

    /// A quota other than the policy's own, bound to the store; `None` if the strategy can't count it.
    pub(crate) fn quota_override(&self, store: &dyn Store, quota: Quota) -> Option<QuotaOverride> {
        let (policy, cache) = (&self.policy, &self.quota_overrides);
        cache.get(policy, quota, || {
            let opened = cache.open(policy, store, quota);
            // A quota whose burst refills within a lease is counted without leases: never by the policy's own, which may be larger.
            match policy.lease_setting().is_some() {
                true => {
                    opened.or_else(|_| cache.open(&policy.clone().without_lease(), store, quota))
                }
                false => opened,
            }
        })
    }
}

impl LimiterCore {
    /// Always the same settings in the same order, so that those of two limiters can be compared one by one.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let misconfiguration = |action| {
            SettingValue::text(match action {
                OnMisconfiguration::Reject => "reject",
                OnMisconfiguration::AsStoreError => "as_store_error",
            })
        };
        let [skip, only] = self.skips.values();
        let lists = self.lists.as_deref();
        let lists = lists.map_or_else(|| Lists::default().settings(), Lists::settings);
        let mut settings = vec![
            Setting::or_default(
                "on_store_error",
                // Unset, it differs for outgoing calls.
                self.on_store_error
                    .map_or(SettingValue::Unset, OnStoreError::value),
                &SettingValue::Unset,
            ),
            Setting::or_default(
                "on_misconfiguration",
                misconfiguration(self.on_misconfiguration),
                &misconfiguration(OnMisconfiguration::default()),
            ),
            Setting::or_default(
                "count_preflights",
                SettingValue::Flag(self.counts_preflights),
                &SettingValue::Flag(false),
            ),
            Setting::or_default("skip", skip, &SettingValue::Unset),
            Setting::or_default("only", only, &SettingValue::Unset),
        ];
        settings.extend(lists);
        #[cfg(feature = "config")]
        for (name, section) in ["client_ip", "bearer"]
            .into_iter()
            .zip(&self.shared_by_keys)
        {
            settings.push(Setting::or_default(
                name,
                section.clone(),
                &SettingValue::Unset,
            ));
        }
        settings
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
