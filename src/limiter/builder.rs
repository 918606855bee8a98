use std::{
    collections::HashSet,
    marker::PhantomData,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::{Method, request::Parts};

use super::{
    Bound, Desks, Inner, Limiter, OnMisconfiguration, OnStoreError, Role,
    evaluate::{
        fallback::Share,
        shadow::{self, Comparison},
    },
    missing::MissingKeys,
    permit::Held,
    plain,
    tiers::Known,
    wait::leader::Queues,
    write_back::Shares,
};
use crate::{
    access::{AccessList, Lists, OnUnknownAddress},
    error::ConfigError,
    log::Seldom,
    policy::{Policy, skip::Skips},
    store::{Store, memory::MemoryStore},
};

/// Builds a [`Limiter`], or a [`RateLimitLayer`](crate::RateLimitLayer) around one: what it was made by says which.
#[derive(Clone, Debug)]
#[must_use]
pub struct LimiterBuilder<T = Limiter> {
    store: Option<Arc<dyn Store>>,
    policies: Vec<Policy>,
    on_store_error: Option<OnStoreError>,
    on_misconfiguration: OnMisconfiguration,
    lists: Lists,
    skips: Skips,
    counts_preflights: bool,
    builds: PhantomData<fn() -> T>,
}

impl<T> LimiterBuilder<T> {
    pub(crate) fn new() -> Self {
        Self {
            store: None,
            policies: Vec::new(),
            on_store_error: None,
            on_misconfiguration: OnMisconfiguration::default(),
            lists: Lists::default(),
            skips: Skips::default(),
            counts_preflights: false,
            builds: PhantomData,
        }
    }

    /// Counts in `store`: in a [`MemoryStore`] of its own unless set.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Adds a policy. A request must pass them all, but for those [in the shadow](Policy::shadow); it is charged under
    /// all of them, or under none.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Denies the requests of a list, an [`AddressList`](crate::AddressList) or a [`KeyList`](crate::KeyList): 403 Forbidden,
    /// and nothing is charged. Lists come before all else, in the order of this table:
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

    /// Admits the requests of a list: no policy applies to them. See [`deny`](LimiterBuilder::deny) for requests on both.
    pub fn allow(mut self, list: impl Into<AccessList>) -> Self {
        self.lists.allow(list.into());
        self
    }

    /// What to do with a request whose address a list of addresses can't see: [`OnUnknownAddress::Pass`] unless set.
    ///
    /// The address is unknown where the server doesn't leave it in the request's extensions (with axum, without
    /// `into_make_service_with_connect_info`), and in a [`check`](Limiter::check) without
    /// [`address`](crate::Check::address).
    pub fn on_unknown_address(mut self, action: OnUnknownAddress) -> Self {
        self.lists.on_unknown_address(action);
        self
    }

    /// Applies no policy to requests to this path: see [`Policy::skip_path`] for this and the other conditions.
    pub fn skip_path(mut self, path: impl AsRef<str>) -> Self {
        self.skips.add_path(path.as_ref());
        self
    }

    /// Applies no policy to requests by this method.
    pub fn skip_method(mut self, method: Method) -> Self {
        self.skips.add_method(method);
        self
    }

    /// Applies no policy to requests of which `condition` is true.
    pub fn skip_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skips.add(condition);
        self
    }

    /// Applies policies only to requests to this path, or to another one that is given so: see [`Policy::only_path`].
    pub fn only_path(mut self, path: impl AsRef<str>) -> Self {
        self.skips.only_path(path.as_ref());
        self
    }

    /// Applies policies only to requests by this method, or by another one that is given so: see [`Policy::only_method`].
    pub fn only_method(mut self, method: Method) -> Self {
        self.skips.only_method(method);
        self
    }

    /// Applies policies only to requests of which `condition` is true, and all others that are given so: see
    /// [`Policy::only_with`].
    pub fn only_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skips.only_with(condition);
        self
    }

    /// Counts CORS preflights like any other request. They are free unless this is set: a browser sends them by
    /// itself, and a page whose preflight is rejected can't read why.
    ///
    /// A preflight is what the Fetch standard says: `OPTIONS` with an `Origin` and an `Access-Control-Request-Method`.
    /// Where `OPTIONS` itself does costly work, set this, or put the CORS layer, which answers preflights, outside.
    pub fn count_preflights(mut self, count: bool) -> Self {
        self.counts_preflights = count;
        self
    }

    /// What to do with a request in an outage of the store. Unless set, layers and [`check`](Limiter::check) admit, and outgoing calls
    /// [wait](Limiter::wait) for the store until their timeout. A policy may have a setting [of its own](Policy::on_store_error).
    pub fn on_store_error(mut self, answer: impl Into<OnStoreError>) -> Self {
        self.on_store_error = Some(answer.into());
        self
    }

    /// What to do with a request when the store is [misconfigured](crate::StoreError::is_misconfiguration):
    /// [`OnMisconfiguration::Reject`] unless set.
    pub fn on_misconfiguration(mut self, answer: OnMisconfiguration) -> Self {
        self.on_misconfiguration = answer;
        self
    }

    /// Builds the limiter or the layer. Nothing connects before the first request.
    ///
    /// # Errors
    ///
    /// If there is no policy, a name is empty, unprintable or used twice, a quota or a [tier's](Policy::tier_quotas) is past what its strategy counts, a
    /// strategy can't count in the store, a [fallback](crate::LocalFallback) is across no processes or its shares can't be
    /// counted in process, a request costs more than a policy can ever admit, or a list is of a policy that isn't there.
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
        let in_general = |unfit| ConfigError::at("", unfit);
        self.on_store_error
            .unwrap_or_default()
            .check()
            .map_err(in_general)?;
        let mut shares: Option<Shares> = None;
        let mut names = HashSet::new();
        let mut policies = Vec::with_capacity(self.policies.len());
        for policy in shadow::with_live_settings(self.policies) {
            let name = policy.shared_name();
            let of = |unfit| ConfigError::of(&name, unfit);
            policy.check_name().map_err(of)?;
            if !names.insert(name.clone()) {
                return Err(of(crate::error::InvalidValue::new(
                    "a second policy of this name",
                    "each policy of a limiter has a name of its own",
                )));
            }
            policy.check_parts().map_err(of)?;
            let tiers = Known::default();
            let rule = tiers.bind(&policy, policy.quota()).map_err(of)?;
            let bans = rule.counts_rejections();
            if bans {
                policy.check_ban().map_err(of)?;
            }
            let role = match policy.shadowed() {
                Some(_) => Role::Shadow {
                    of: None,
                    compared: Comparison::default(),
                },
                None if bans => Role::Ban,
                None => Role::Live,
            };
            let limit = store.register(&name, rule).map_err(of)?;
            tiers.declare(&policy, &*store).map_err(of)?;
            if !bans {
                tiers.check_cost(&policy, &limit).map_err(of)?;
            }
            let on_store_error = policy.on_store_error.or(self.on_store_error);
            on_store_error.unwrap_or_default().check().map_err(of)?;
            let share = match on_store_error {
                Some(OnStoreError::LocalFallback(fallback))
                    if !matches!(role, Role::Shadow { .. }) =>
                {
                    let shares = shares.get_or_insert_default();
                    Some(Share::open(shares, &policy, fallback, &limit).map_err(of)?)
                }
                _ => None,
            };
            policies.push(Bound {
                fixed_key: policy.extractor().fixed_key(),
                policy,
                role,
                limit,
                tiers,
                on_store_error,
                share,
                missing_keys: MissingKeys::default(),
                unclaimed_logged: AtomicBool::new(false),
            });
        }
        policies.sort_by_key(Bound::part);
        shadow::find_live(&mut policies)?;
        self.skips.check().map_err(in_general)?;
        let is_policy = |name: &str| names.contains(name);
        self.lists.check(is_policy).map_err(in_general)?;
        let lives = policies.iter().filter_map(|bound| bound.limit.permit_ttl());
        let permit_ttl = lives.min().unwrap_or(Duration::MAX);
        let queues = Arc::<Queues>::default();
        Ok(Limiter {
            queues: queues.clone(),
            desks: Arc::new(Desks::of(Inner {
                store,
                shares,
                reads_parts: policies.iter().any(|bound| bound.policy.reads_parts()),
                misuse: Seldom::default(),
                is_plain: plain::is_plain(&policies, &self.lists),
                policies: policies.into(),
                on_store_error: self.on_store_error,
                on_misconfiguration: self.on_misconfiguration,
                lists: (!self.lists.is_empty()).then(|| Box::new(self.lists)),
                skips: self.skips,
                counts_preflights: self.counts_preflights,
                outages: Seldom::default(),
                misconfigurations: Seldom::default(),
                twice: Seldom::default(),
                held: Held::default(),
                queues,
                permit_ttl,
            })),
        })
    }
}
