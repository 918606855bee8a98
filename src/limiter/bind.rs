//! From a [`LimiterBuilder`] to a set of policies: what is bound, and what is kept of the set before.

use std::{
    any::Any,
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    builder::LimiterBuilder,
    listener::AdjustListener,
    policy_set::{BoundPolicy, Policies, PolicyRole},
    policy_state::PolicyState,
    quota_limits::{LocalShare, QuotaLimits},
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
    /// Binds the policies. They keep the limits, states and shares of `old` as far as both count the same. `listener` makes what
    /// charges report to, of the observers.
    pub(super) fn build_policies(
        self,
        old: Option<&Policies>,
        listener: impl FnOnce(Option<&Arc<Observers>>) -> Arc<dyn AdjustListener>,
    ) -> Result<Policies, ConfigError> {
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
        let mut binder = Binder {
            store,
            old,
            on_store_error: self.on_store_error,
            shares: old.and_then(|old| old.shares.clone()),
        };
        let mut policies = Vec::with_capacity(self.policies.len());
        for policy in self.policies {
            let name = policy.shared_name();
            let bound = binder.bind(policy);
            policies.push(bound.map_err(|invalid| ConfigError::of(&name, invalid))?);
        }
        policies.sort_by_key(|bound| bound.role);
        share_extractors(&mut policies, &self.lists);
        let observers =
            Observers::new(&self.observers).or_else(|| old.and_then(|old| old.observers.clone()));
        let has = |is: fn(&BoundPolicy) -> bool| policies.iter().any(is);
        Ok(Policies {
            generation: old.map_or(0, |old| old.generation + 1),
            store: binder.store,
            shares: binder.shares,
            has_outcome_charges: has(|bound| !bound.policy.charges_on_arrival()),
            has_permits: has(BoundPolicy::is_permit),
            reads_parts: has(|bound| bound.policy.reads_parts()),
            policies: policies.into(),
            listener: listener(observers.as_ref()),
            observers,
            on_store_error: self.on_store_error,
            on_misconfiguration: self.on_misconfiguration,
            lists: (!self.lists.is_empty()).then(|| Box::new(self.lists)),
            skip: self.skip,
            only: self.only,
            counts_preflights: self.counts_preflights,
            outage_log: LogThrottle::default(),
            misconfiguration_log: LogThrottle::default(),
            misuse_log: LogThrottle::default(),
        })
    }
}

/// The store of a set: that of `old`, which can't be replaced.
fn store_of(
    store: Option<Arc<dyn Store>>,
    old: Option<&Policies>,
) -> Result<Arc<dyn Store>, ConfigError> {
    let Some(old) = old else {
        return Ok(store.unwrap_or_else(|| Arc::new(MemoryStore::new())));
    };
    match store {
        Some(store) if !Arc::ptr_eq(&store, &old.store) && !is_clone(&*store, &*old.store) => {
            Err(ConfigError::new(
                "another store",
                "the store that the limiter has, or none: a limiter's store can't be replaced",
            ))
        }
        _ => Ok(old.store.clone()),
    }
}

/// Whether both are handles of one store.
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

/// Numbers the extractors that several policies, or a policy and a list of keys, have in common.
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
    let indices: HashMap<String, usize> = shared
        .zip(0..)
        .map(|((text, _), index)| (text, index))
        .collect();
    for bound in policies {
        let (key, caller) = texts(bound);
        bound.shared_key = indices.get(&key).copied();
        bound.shared_caller = indices.get(&caller).copied();
    }
}

/// The texts of a policy's extractors. That of a closure is the policy's own; without an extractor of callers it is empty.
fn texts(bound: &BoundPolicy) -> (String, String) {
    let text = |extractor: &dyn KeyExtractor| extractor.config_text().map(Cow::into_owned);
    let key = text(bound.policy.extractor());
    let caller = bound.policy.caller_extractor().and_then(text);
    let of_policy = || format!("code of {:?}", bound.policy.name());
    (key.unwrap_or_else(of_policy), caller.unwrap_or_default())
}

/// Binds policies to limits.
struct Binder<'a> {
    store: Arc<dyn Store>,
    old: Option<&'a Policies>,
    on_store_error: Option<OnStoreError>,
    shares: Option<Arc<MemoryStore>>,
}

impl Binder<'_> {
    fn bind(&mut self, policy: Policy) -> Result<BoundPolicy, InvalidValue> {
        let old = self.old.and_then(|old| old.named(policy.name()).ok());
        let same_limit = old.filter(|old| policy.counts_like(&old.policy));
        let on_store_error = policy.store_error_action().or(self.on_store_error);
        // A limit keeps its share, which depends on the fallback.
        let other_quotas = match same_limit {
            Some(old) if old.on_store_error == on_store_error => old.other_quotas.clone(),
            _ => {
                let quotas = Arc::new(QuotaLimits::default());
                quotas.declare(&policy, &*self.store)?;
                quotas
            }
        };
        let rule = other_quotas.bind(&policy, policy.quota())?;
        let bans = rule.info().counts_rejections;
        let limit = match same_limit {
            Some(old) => old.limit.clone(),
            None => self.store.register(policy.name(), rule)?,
        };
        let role = if policy.is_shadow() {
            PolicyRole::Shadow { rejects: false }
        } else if bans {
            PolicyRole::Ban
        } else {
            PolicyRole::Live
        };
        let mode = match role {
            PolicyRole::Live => policy.counter_mode(),
            PolicyRole::Ban => CounterMode::CountRejections,
            PolicyRole::Shadow { .. } => CounterMode::shadow(!policy.charges_after()),
        };
        let share = match on_store_error {
            Some(OnStoreError::LocalFallback(fallback)) if !policy.is_shadow() => {
                // It finds the counts of the old policy by their name.
                let shares = self.shares.get_or_insert_default();
                Some(LocalShare::open(
                    shares,
                    &policy,
                    fallback,
                    &other_quotas,
                    &limit,
                )?)
            }
            _ => None,
        };
        let overrides = self.store.admin().and_then(StoreAdmin::overrides);
        let overrides = overrides.map(|table| table.policy(policy.name()));
        let state = match old {
            None => Arc::default(),
            Some(old) if policy.is_same(&old.policy) => old.state.clone(),
            Some(old) => Arc::new(PolicyState::of_changed(&old.state)),
        };
        Ok(BoundPolicy {
            fixed_key: policy.extractor().fixed_key(),
            shared_key: None,
            shared_caller: None,
            has_overrides: overrides
                .as_ref()
                .map_or_else(Arc::default, |own| own.used_flag()),
            policy,
            role,
            limit,
            mode,
            other_quotas,
            overrides,
            on_store_error,
            share,
            state,
        })
    }
}
