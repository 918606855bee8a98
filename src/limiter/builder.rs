use std::{collections::HashSet, marker::PhantomData, sync::Arc};

use http::{Method, request::Parts};

use super::current::Limiter;
use crate::{
    access::{AccessList, Lists, OnUnknownAddress},
    error::{ConfigError, InvalidValue},
    observe::Observer,
    policy::{
        Policy,
        on_store_error::{OnMisconfiguration, OnStoreError},
        skip::{Conditions, SkipRules},
    },
    store::Store,
};

/// Builds a [`Limiter`], or a [`RateLimitLayer`](crate::RateLimitLayer) around one: from [`Limiter::builder`] or
/// [`RateLimitLayer::builder`](crate::RateLimitLayer::builder).
#[derive(Clone, Debug)]
#[must_use]
pub struct LimiterBuilder<T = Limiter> {
    pub(super) store: Option<Arc<dyn Store>>,
    pub(super) policies: Vec<Policy>,
    pub(super) on_store_error: Option<OnStoreError>,
    pub(super) on_misconfiguration: OnMisconfiguration,
    pub(super) lists: Lists,
    pub(super) skip: Conditions,
    pub(super) only: Conditions,
    pub(super) counts_preflights: bool,
    pub(super) observers: Vec<Arc<dyn Observer>>,
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
            skip: Conditions::default(),
            only: Conditions::default(),
            counts_preflights: false,
            observers: Vec::new(),
            builds: PhantomData,
        }
    }

    /// Sets the store that holds the counts. Default: a [`MemoryStore`](crate::MemoryStore) of the limiter's own.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets a store of any type, which other limiters may share.
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Adds a policy. A request is admitted if all policies but [shadow policies](Policy::shadow) admit it, and is charged
    /// under all of them or under none.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Denies the requests on a list, an [`AddressList`](crate::access::AddressList) or a [`KeyList`](crate::access::KeyList), with 403
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

    /// Sets what happens to a request whose address an [`AddressList`](crate::access::AddressList) can't find. Default:
    /// [`OnUnknownAddress::Pass`].
    ///
    /// The address is unknown if the server doesn't put it into the request's extensions (with axum, without
    /// `into_make_service_with_connect_info`), and in a [`check`](Limiter::check) without [`address`](crate::limiter::Check::address).
    pub fn on_unknown_address(mut self, action: OnUnknownAddress) -> Self {
        self.lists.on_unknown_address(action);
        self
    }

    /// Sets the requests to which no policy applies: those for which any of the conditions holds.
    pub fn skip(mut self, conditions: Conditions) -> Self {
        self.skip = conditions;
        self
    }

    /// Sets the only requests to which the policies apply: those for which the conditions hold.
    pub fn only(mut self, conditions: Conditions) -> Self {
        self.only = conditions;
        self
    }

    /// Exempts requests to this path from all policies: see [`Policy::skip_path`] for this and the other conditions.
    pub fn skip_path(mut self, path: impl AsRef<str>) -> Self {
        self.skip.add_path(path.as_ref());
        self
    }

    /// Exempts requests with this method from all policies: see [`Policy::skip_method`].
    pub fn skip_method(mut self, method: Method) -> Self {
        self.skip.add_method(method);
        self
    }

    /// Exempts requests for whose head `condition` returns true from all policies: see [`Policy::skip_with`].
    pub fn skip_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skip.add(condition);
        self
    }

    /// Restricts all policies to requests to this path. Several calls add paths: see [`Policy::only_path`].
    pub fn only_path(mut self, path: impl AsRef<str>) -> Self {
        self.only.add_path(path.as_ref());
        self
    }

    /// Restricts all policies to requests with this method. Several calls add methods: see [`Policy::only_method`].
    pub fn only_method(mut self, method: Method) -> Self {
        self.only.add_method(method);
        self
    }

    /// Restricts all policies to requests for whose head `condition` returns true. With several calls, all conditions have to
    /// be true: see [`Policy::only_with`].
    pub fn only_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.only.add(condition);
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

    /// Adds an observer, which receives the limiter's decisions, its calls of the store and its changes of state: see
    /// [`observe`](crate::observe). Several calls add several; one that is added twice is called once.
    /// [`reconfigure`](Limiter::reconfigure) keeps the observers, unless the new builder has some. Those that it replaces receive
    /// no further decisions; until they are dropped, they receive the calls and the state changes of the store, which other
    /// limiters may share.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Returns all mistakes in the settings, of which [`build`](Self::build) returns the first. No running limiter and no count
    /// is changed. Whether a strategy can count in the store is checked if a store is set.
    pub fn mistakes(&self) -> Vec<ConfigError> {
        let mut mistakes = Vec::new();
        self.validate(self.store.as_deref(), &mut |error| mistakes.push(error));
        mistakes
    }

    /// Reports each mistake in the settings. The first one reported is the error of [`build`](Self::build). No running limiter and
    /// no count is changed. `store` is the one that will count, if it is known.
    pub(crate) fn validate(&self, store: Option<&dyn Store>, report: &mut dyn FnMut(ConfigError)) {
        let in_general = |invalid| ConfigError::at("", invalid);
        if let Err(invalid) = self.on_store_error.unwrap_or_default().validate() {
            report(in_general(invalid));
        }
        let mut names = HashSet::new();
        for policy in &self.policies {
            let mut report = |invalid| report(ConfigError::of(policy.name(), invalid));
            if let Err(invalid) = policy.validate_name() {
                report(invalid);
            }
            if !names.insert(policy.name()) {
                report(InvalidValue::new(
                    "a second policy of this name",
                    "a unique name for each policy of a limiter",
                ));
            }
            policy.validate(store, self.on_store_error, &mut report);
        }
        SkipRules {
            skip: &self.skip,
            only: &self.only,
        }
        .validate(&mut |invalid| report(in_general(invalid)));
        let is_policy = |name: &str| names.contains(name);
        if let Err(invalid) = self.lists.validate(is_policy) {
            report(in_general(invalid));
        }
    }
}
