use std::{
    collections::HashSet,
    marker::PhantomData,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::{Method, request::Parts};

use super::{
    Limiter,
    core::{
        BoundPolicy, Enforcement, LimiterCore, LimiterRefs, local_share::LocalShare,
        missing_keys::MissingKeys, permit_registry::PermitRegistry,
        quota_overrides::QuotaOverrideCache, shadow_counters::ShadowCounters,
        write_back::LocalShares,
    },
    evaluate::shadow,
    wait::leader::Queues,
};
use crate::{
    access::{AccessList, Lists, OnUnknownAddress},
    charge::ChargeTime,
    error::ConfigError,
    log::LogThrottle,
    policy::{
        Policy,
        on_store_error::{OnMisconfiguration, OnStoreError},
        skip::SkipRules,
    },
    store::{CounterMode, Store, memory::MemoryStore},
};

/// Builds a [`Limiter`], or a [`RateLimitLayer`](crate::RateLimitLayer) around one: from [`Limiter::builder`] or
/// [`RateLimitLayer::builder`](crate::RateLimitLayer::builder).
#[derive(Clone, Debug)]
#[must_use]
pub struct LimiterBuilder<T = Limiter> {
    store: Option<Arc<dyn Store>>,
    policies: Vec<Policy>,
    on_store_error: Option<OnStoreError>,
    on_misconfiguration: OnMisconfiguration,
    lists: Lists,
    skips: SkipRules,
    counts_preflights: bool,
    builds: PhantomData<fn() -> T>,
}

impl Limiter {
    /// Returns a builder of a limiter.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::new()
    }
}

impl<T> LimiterBuilder<T> {
    pub(crate) fn new() -> Self {
        Self {
            store: None,
            policies: Vec::new(),
            on_store_error: None,
            on_misconfiguration: OnMisconfiguration::default(),
            lists: Lists::default(),
            skips: SkipRules::default(),
            counts_preflights: false,
            builds: PhantomData,
        }
    }

    /// Sets the store that holds the counts. Default: a [`MemoryStore`] of the limiter's own.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Adds a policy. A request is admitted if all policies but [shadow policies](Policy::shadow) admit it, and is charged
    /// under all of them or under none.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Denies the requests on a list, an [`AddressList`](crate::AddressList) or a [`KeyList`](crate::KeyList), with 403
    /// Forbidden; nothing is charged. May be called several times. Lists are evaluated first, in the order of this table:
    ///
    /// | a request | is |
    /// |---|---|
    /// | on a deny list | denied, also where it is on an allow list, a preflight, or skipped |
    /// | on an allow list | admitted; no policy applies, and no ban |
    /// | a CORS preflight, or one to skip | admitted; no policy applies, and no ban |
    /// | any other | decided by the policies |
    pub fn deny(mut self, list: impl Into<AccessList>) -> Self {
        self.lists.deny(list.into());
        self
    }

    /// Admits the requests on a list without evaluating a policy. May be called several times. See
    /// [`deny`](LimiterBuilder::deny) for requests on both kinds of lists.
    pub fn allow(mut self, list: impl Into<AccessList>) -> Self {
        self.lists.allow(list.into());
        self
    }

    /// Sets what happens to a request whose address an [`AddressList`](crate::AddressList) can't find. Default:
    /// [`OnUnknownAddress::Pass`].
    ///
    /// The address is unknown if the server doesn't put it into the request's extensions (with axum, without
    /// `into_make_service_with_connect_info`), and in a [`check`](Limiter::check) without [`address`](crate::Check::address).
    pub fn on_unknown_address(mut self, action: OnUnknownAddress) -> Self {
        self.lists.on_unknown_address(action);
        self
    }

    /// Exempts requests to this path from all policies: see [`Policy::skip_path`] for this and the other conditions.
    pub fn skip_path(mut self, path: impl AsRef<str>) -> Self {
        self.skips.add_path(path.as_ref());
        self
    }

    /// Exempts requests with this method from all policies: see [`Policy::skip_method`].
    pub fn skip_method(mut self, method: Method) -> Self {
        self.skips.add_method(method);
        self
    }

    /// Exempts requests for whose head `condition` returns true from all policies: see [`Policy::skip_with`].
    pub fn skip_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skips.add(condition);
        self
    }

    /// Restricts all policies to requests to this path. Several calls add paths: see [`Policy::only_path`].
    pub fn only_path(mut self, path: impl AsRef<str>) -> Self {
        self.skips.only_path(path.as_ref());
        self
    }

    /// Restricts all policies to requests with this method. Several calls add methods: see [`Policy::only_method`].
    pub fn only_method(mut self, method: Method) -> Self {
        self.skips.only_method(method);
        self
    }

    /// Restricts all policies to requests for whose head `condition` returns true. With several calls, all conditions have to
    /// be true: see [`Policy::only_with`].
    pub fn only_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skips.only_with(condition);
        self
    }

    /// Sets whether CORS preflights are counted like any other request. Default: false, since a browser sends them by itself,
    /// and a page whose preflight is rejected can't read why.
    ///
    /// A preflight is what the Fetch standard defines: `OPTIONS` with an `Origin` and an `Access-Control-Request-Method`. If
    /// the service does costly work for `OPTIONS`, set this, or put the CORS layer, which responds to preflights, outside of
    /// the limiter's.
    pub fn count_preflights(mut self, count: bool) -> Self {
        self.counts_preflights = count;
        self
    }

    /// Sets what happens to a request in an outage of the store. By default layers and [`check`](Limiter::check) admit, and
    /// outgoing calls [wait](Limiter::wait) for the store until their timeout. A policy may have a setting [of its
    /// own](Policy::on_store_error).
    pub fn on_store_error(mut self, action: impl Into<OnStoreError>) -> Self {
        self.on_store_error = Some(action.into());
        self
    }

    /// Sets what happens to a request when the store is [misconfigured](crate::StoreError::is_misconfiguration). Default:
    /// [`OnMisconfiguration::Reject`].
    pub fn on_misconfiguration(mut self, action: OnMisconfiguration) -> Self {
        self.on_misconfiguration = action;
        self
    }

    /// Builds the limiter or the layer. Nothing connects before the first request.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if there is no policy; a policy's name is invalid or used twice; a strategy can't count a quota or a
    /// [tier](Policy::tier_quotas), or can't count in the store; an extractor or a condition is invalid; a
    /// [fallback](crate::LocalFallback) is shared by 0 processes, or its shares can't be counted in process; a policy's cost is
    /// more than it can ever admit; a shadow policy or a [`KeyList`](crate::KeyList) names a policy that the limiter doesn't
    /// have.
    pub fn build(self) -> Result<T, ConfigError>
    where
        T: From<Limiter>,
    {
        self.limiter().map(T::from)
    }

    fn limiter(self) -> Result<Limiter, ConfigError> {
        if self.policies.is_empty() {
            return Err(ConfigError::new(
                "a limiter without a policy",
                "at least one",
            ));
        }
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let in_general = |invalid| ConfigError::at("", invalid);
        self.on_store_error
            .unwrap_or_default()
            .validate()
            .map_err(in_general)?;
        let mut shares: Option<LocalShares> = None;
        let mut names = HashSet::new();
        let mut policies = Vec::with_capacity(self.policies.len());
        for policy in shadow::with_settings_of_live(self.policies) {
            let name = policy.shared_name();
            let of = |invalid| ConfigError::of(&name, invalid);
            policy.validate_name().map_err(of)?;
            if !names.insert(name.clone()) {
                return Err(of(crate::error::InvalidValue::new(
                    "a second policy of this name",
                    "a unique name for each policy of a limiter",
                )));
            }
            policy.validate().map_err(of)?;
            let quota_overrides = QuotaOverrideCache::default();
            let rule = quota_overrides.bind(&policy, policy.quota()).map_err(of)?;
            let bans = rule.counts_rejections();
            if bans {
                policy.validate_ban().map_err(of)?;
            }
            let enforcement = match policy.shadow_config() {
                Some(_) => Enforcement::Shadow {
                    of: None,
                    counters: ShadowCounters::default(),
                },
                None if bans => Enforcement::Ban,
                None => Enforcement::Live,
            };
            let limit = store.register(&name, rule).map_err(of)?;
            quota_overrides.declare(&policy, &*store).map_err(of)?;
            if !bans {
                quota_overrides.check_cost(&policy, &limit).map_err(of)?;
            }
            let on_store_error = policy.on_store_error.or(self.on_store_error);
            on_store_error.unwrap_or_default().validate().map_err(of)?;
            let share = match on_store_error {
                Some(OnStoreError::LocalFallback(fallback))
                    if !matches!(enforcement, Enforcement::Shadow { .. }) =>
                {
                    let shares = shares.get_or_insert_default();
                    Some(LocalShare::open(shares, &policy, fallback, &limit).map_err(of)?)
                }
                _ => None,
            };
            policies.push(BoundPolicy {
                fixed_key: policy.extractor().fixed_key(),
                role: enforcement.role(),
                arrival_mode: match enforcement {
                    Enforcement::Ban => CounterMode::CountRejections,
                    Enforcement::Live | Enforcement::Shadow { .. } => policy.counter_mode(),
                },
                policy,
                enforcement,
                limit,
                quota_overrides,
                on_store_error,
                local_share: share,
                missing_keys: MissingKeys::default(),
                unclaimed_logged: AtomicBool::new(false),
            });
        }
        policies.sort_by_key(|bound| bound.role);
        shadow::resolve_shadowed(&mut policies)?;
        self.skips.validate().map_err(in_general)?;
        let is_policy = |name: &str| names.contains(name);
        self.lists.validate(is_policy).map_err(in_general)?;
        let lives = policies.iter().filter_map(|bound| bound.limit.permit_ttl());
        let permit_ttl = lives.min().unwrap_or(Duration::MAX);
        let queues = Arc::<Queues>::default();
        Ok(Limiter {
            queues: queues.clone(),
            refs: Arc::new(LimiterRefs::of(LimiterCore {
                store,
                local_shares: shares,
                has_outcome_charges: policies
                    .iter()
                    .any(|bound| bound.policy.charge_mode().when != ChargeTime::Arrival),
                reads_parts: policies.iter().any(|bound| bound.policy.reads_parts()),
                misuse_log: LogThrottle::default(),
                policies: policies.into(),
                on_store_error: self.on_store_error,
                on_misconfiguration: self.on_misconfiguration,
                lists: (!self.lists.is_empty()).then(|| Box::new(self.lists)),
                skips: self.skips,
                counts_preflights: self.counts_preflights,
                outage_log: LogThrottle::default(),
                misconfiguration_log: LogThrottle::default(),
                double_counting_log: LogThrottle::default(),
                permits: PermitRegistry::default(),
                wait_queues: queues,
                has_permits: permit_ttl < Duration::MAX,
                permit_ttl,
            })),
        })
    }
}
