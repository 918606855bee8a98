//! Binds a builder's policies to limits of the store. When a limiter is reconfigured, this decides what the new policies take over
//! from the old ones.

use std::{
    any::Any,
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::AtomicBool},
};

use super::{
    bound_policy::{BoundPolicy, Enforcement},
    builder::LimiterBuilder,
    core::LimiterCore,
    fallback::LocalShare,
    other_quotas::OtherQuotas,
};
#[cfg(feature = "redis")]
use crate::redis::RedisStore;
use crate::{
    access::Lists,
    error::{ConfigError, InvalidValue},
    extract::KeyExtractor,
    log::LogThrottle,
    observe::Observers,
    policy::{Policy, on_store_error::OnStoreError},
    store::{CounterMode, Store, StoreAdmin, memory::MemoryStore},
};

impl<T> LimiterBuilder<T> {
    /// The core of a limiter with these settings. If it replaces `old`, it has the same store, and takes over from each policy
    /// that counts alike its limit, so that cached rejections stay valid, and what was counted in process.
    pub(super) fn build_core(self, old: Option<&LimiterCore>) -> Result<LimiterCore, ConfigError> {
        if self.policies.is_empty() {
            return Err(ConfigError::new(
                "a limiter without a policy",
                "at least one",
            ));
        }
        let store = store_of(self.store.clone(), old)?;
        let mut first = None;
        self.validate(Some(&*store), &mut |error| {
            first.get_or_insert(error);
        });
        if let Some(error) = first {
            return Err(error);
        }
        let old_policies = old.iter().flat_map(|old| &old.policies);
        let old_policies = old_policies.map(|bound| (bound.policy.name(), bound));
        let mut binder = Binder {
            store,
            old: old_policies.collect(),
            on_store_error: self.on_store_error,
            shares: old.and_then(|old| old.local_shares.clone()),
        };
        let mut policies = Vec::with_capacity(self.policies.len());
        for policy in self.policies {
            let name = policy.shared_name();
            let bound = binder.bind_policy(policy);
            policies.push(bound.map_err(|invalid| ConfigError::of(&name, invalid))?);
        }
        policies.sort_by_key(|bound| bound.role);
        share_extractors(&mut policies, &self.lists);
        let observers = match (Observers::new(&self.observers), old) {
            (None, Some(old)) => old.observers.clone(),
            (observers, _) => observers,
        };
        Ok(LimiterCore {
            observers,
            store: binder.store,
            local_shares: binder.shares,
            has_outcome_charges: policies
                .iter()
                .any(|bound| !bound.policy.charges_on_arrival()),
            has_permits: policies.iter().any(BoundPolicy::is_permit),
            reads_parts: policies.iter().any(|bound| bound.policy.reads_parts()),
            misuse_log: LogThrottle::default(),
            health_checks: old.map_or_else(Arc::default, |old| old.health_checks.clone()),
            policies: policies.into(),
            on_store_error: self.on_store_error,
            on_misconfiguration: self.on_misconfiguration,
            lists: (!self.lists.is_empty()).then(|| Box::new(self.lists)),
            skip: self.skip,
            only: self.only,
            counts_preflights: self.counts_preflights,
            outage_log: LogThrottle::default(),
            misconfiguration_log: LogThrottle::default(),
            generation: old.map_or(0, |old| old.generation + 1),
            wait_queues: old.map_or_else(Arc::default, |old| old.wait_queues.clone()),
        })
    }
}

/// The store of a limiter: that of the core that it replaces, which can't be replaced by another.
fn store_of(
    store: Option<Arc<dyn Store>>,
    old: Option<&LimiterCore>,
) -> Result<Arc<dyn Store>, ConfigError> {
    let Some(old) = old else {
        return Ok(store.unwrap_or_else(|| Arc::new(MemoryStore::new())));
    };
    let is_same_store =
        |store: &Arc<dyn Store>| Arc::ptr_eq(store, &old.store) || is_clone(&**store, &*old.store);
    match store {
        Some(store) if !is_same_store(&store) => Err(ConfigError::new(
            "another store",
            "the store that the limiter has, or none: a limiter's store can't be replaced",
        )),
        _ => Ok(old.store.clone()),
    }
}

/// Whether both are clones of one of the built-in stores.
fn is_clone(a: &dyn Any, b: &dyn Any) -> bool {
    #[cfg(feature = "redis")]
    if let (Some(a), Some(b)) = (a.downcast_ref::<RedisStore>(), b.downcast_ref()) {
        return a.is_clone_of(b);
    }
    match (a.downcast_ref::<MemoryStore>(), b.downcast_ref()) {
        (Some(a), Some(b)) => a.is_clone_of(b),
        _ => false,
    }
}

/// Gives an index to each extractor that is asked more than once for a request: by several policies, or by a list of its keys.
fn share_extractors(policies: &mut [BoundPolicy], lists: &Lists) {
    let listed: HashSet<&str> = lists.policies_of_keys().collect();
    let mut uses: HashMap<String, usize> = HashMap::new();
    for bound in &*policies {
        let is_listed = listed.contains(bound.policy.name());
        let (key, caller) = texts(bound);
        for (text, count) in [(key, 1 + usize::from(is_listed)), (caller, 1)] {
            *uses.entry(text).or_default() += count;
        }
    }
    let shared = uses
        .into_iter()
        .filter(|(text, uses)| !text.is_empty() && *uses > 1);
    let shared: HashMap<String, usize> = shared
        .zip(0..)
        .map(|((text, _), index)| (text, index))
        .collect();
    for bound in policies {
        let (key, caller) = texts(bound);
        bound.shared_key = shared.get(&key).copied();
        bound.shared_caller = shared.get(&caller).copied();
    }
}

/// The texts of a policy's extractors of keys and callers, which are empty for callers of code without a text. Such code finds keys of
/// this policy alone.
fn texts(bound: &BoundPolicy) -> (String, String) {
    let text = |extractor: &dyn KeyExtractor| extractor.config_text().map(Cow::into_owned);
    let key = text(bound.policy.extractor());
    let caller = bound.policy.caller_extractor().and_then(text);
    let of_policy = || format!("code of {:?}", bound.policy.name());
    (key.unwrap_or_else(of_policy), caller.unwrap_or_default())
}

/// Binds policies to limits of a store.
struct Binder<'a> {
    store: Arc<dyn Store>,
    /// The policies that are replaced, by name.
    old: HashMap<&'a str, &'a BoundPolicy>,
    on_store_error: Option<OnStoreError>,
    shares: Option<Arc<MemoryStore>>,
}

impl Binder<'_> {
    /// Binds one policy, with what it takes over from the old policy of its name. Fails if the store or the strategy now refuses
    /// what it accepted in `validate`.
    fn bind_policy(&mut self, policy: Policy) -> Result<BoundPolicy, InvalidValue> {
        let old = self.old.get(policy.name()).copied();
        // Of the old policy, if both count the same quotas by the same strategy.
        let same_limit = old.filter(|old| policy.counts_like(&old.policy));
        let is_unchanged = old.is_some_and(|old| policy.is_same(&old.policy));
        let other_quotas = match same_limit {
            Some(old) => old.other_quotas.clone(),
            None => Arc::new(OtherQuotas::default()),
        };
        let rule = other_quotas.bind(&policy, policy.quota())?;
        let bans = rule.info().counts_rejections;
        let limit = match same_limit {
            Some(old) => old.limit.clone(),
            None => {
                let limit = self.store.register(policy.name(), rule)?;
                other_quotas.declare(&policy, &*self.store)?;
                limit
            }
        };
        let overrides = self.store.admin().and_then(StoreAdmin::overrides);
        let overrides = overrides.map(|table| table.policy(policy.name()));
        let enforcement = match policy.is_shadow() {
            true => Enforcement::Shadow(match old.map(|old| &old.enforcement) {
                Some(Enforcement::Shadow(counters)) if is_unchanged => counters.clone(),
                _ => Arc::default(),
            }),
            false if bans => Enforcement::Ban,
            false => Enforcement::Live,
        };
        let on_store_error = policy.store_error_action().or(self.on_store_error);
        let local_share = match on_store_error {
            Some(OnStoreError::LocalFallback(fallback))
                if !matches!(enforcement, Enforcement::Shadow(_)) =>
            {
                // It finds the counts of the old policy by their name.
                let shares = self.shares.get_or_insert_default();
                Some(LocalShare::open(shares, &policy, fallback, &limit)?)
            }
            _ => None,
        };
        Ok(BoundPolicy {
            fixed_key: policy.extractor().fixed_key(),
            shared_key: None,
            shared_caller: None,
            role: enforcement.role(),
            arrival_mode: match enforcement {
                Enforcement::Ban => CounterMode::CountRejections,
                Enforcement::Shadow(_) => CounterMode::shadow(!policy.charges_after()),
                Enforcement::Live => policy.counter_mode(),
            },
            missing_keys: match old.filter(|_| is_unchanged) {
                Some(old) => old.missing_keys.clone(),
                None => Arc::default(),
            },
            bans_begun: Default::default(),
            permits_held: old.map_or_else(Arc::default, |old| old.permits_held.clone()),
            policy,
            enforcement,
            limit,
            other_quotas,
            has_overrides: overrides
                .as_ref()
                .map_or_else(Arc::default, |own| own.used_flag()),
            overrides,
            on_store_error,
            local_share,
            unclaimed_logged: AtomicBool::new(false),
        })
    }
}
