//! Code of the application that configuration documents refer to by name.

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map::Entry},
    error::Error,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use http::{Response, request::Parts};
use http_body::Body;

use super::names;
use crate::{
    Quota, Rejected,
    error::InvalidValue,
    extract::{Bearer, ClientIp, KeyExtractor, bearer, client_ip, extractor::delegate_to},
    observe::Observer,
    outcome::{self, Outcome},
    policy::{
        charging::OutcomeFn,
        cost::CostFn,
        quotas::{QuotaFn, TierFn},
        skip::ConditionFn,
    },
    respond::{self, OnRejection},
    shared_fn::SharedFn,
    strategy::{Rule, Strategy, Terms},
};

/// Code of the application that a [`Document`](crate::config::Document) refers to by name: extractors, costs, tiers and others.
///
/// A name has 1 to 64 letters, digits, `-`, `_` and `.`, and begins with a letter. Each kind of code has names of its own. A
/// name that is malformed, that of a built-in, or registered twice is an error when a document is loaded.
///
/// A name stands for the same code in all documents that a registry, or a clone of it, builds: a reload sees no change. Code that is
/// registered anew, also by the same name in another registry, is another setting.
///
/// ```
/// use tollgate::{Key, config::Registry, extract};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
///     plan: &'static str,
/// }
///
/// let registry = Registry::new()
///     // key = "user | peer"
///     .key("user", extract::extension::<User>(|user| Key::from(user.id)))
///     // tier = "plan"
///     .tier("plan", |parts| parts.extensions.get::<User>().map(|user| user.plan))
///     // cost = "pages"
///     .cost("pages", |parts| if parts.uri.path().starts_with("/export") { 10 } else { 1 });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    keys: Names<Arc<dyn KeyExtractor>>,
    strategies: Names<Arc<dyn Strategy>>,
    costs: Names<SharedFn<CostFn>>,
    tiers: Names<SharedFn<TierFn>>,
    outcomes: Names<SharedFn<OutcomeFn>>,
    conditions: Names<SharedFn<ConditionFn>>,
    quotas: Names<SharedFn<QuotaFn>>,
    responses: Names<SharedFn<OnRejection>>,
    observers: Vec<Arc<dyn Observer>>,
    mistakes: Vec<InvalidValue>,
    client_ip: Option<ClientIp>,
    bearer: Option<Bearer>,
}

type Names<T> = BTreeMap<Cow<'static, str>, T>;

impl Registry {
    /// A registry without code.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an observer of each limiter that is built with this registry, by
    /// [`LimiterBuilder::observe`](crate::limiter::LimiterBuilder::observe).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{
    ///     config::{Document, Format, Registry},
    ///     observe::{DecisionEvent, Observer},
    /// };
    ///
    /// #[derive(Debug)]
    /// struct Log;
    ///
    /// impl Observer for Log {
    ///     fn on_decision(&self, event: &DecisionEvent<'_>) {
    ///         println!("{}", event.outcome.as_str());
    ///     }
    /// }
    ///
    /// let text = "policies.api.quota = '10/min'";
    /// let registry = Registry::new().observe(Arc::new(Log));
    /// let layer = Document::parse(text, Format::Toml)?.layer(&registry)?;
    /// # Ok::<(), tollgate::config::LoadError>(())
    /// ```
    #[must_use]
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// The observers of each limiter.
    pub(crate) fn observers(&self) -> &[Arc<dyn Observer>] {
        &self.observers
    }

    /// Registers an extractor, for `key` and `caller`.
    #[must_use]
    pub fn key(self, name: impl Into<Cow<'static, str>>, extractor: impl KeyExtractor) -> Self {
        let name = name.into();
        let code: Arc<dyn KeyExtractor> = Arc::new(RegisteredKey {
            name: name.clone(),
            extractor,
        });
        self.register(|own| &mut own.keys, "key", name, code)
    }

    /// Registers a strategy, for `strategy`.
    #[must_use]
    pub fn strategy(self, name: impl Into<Cow<'static, str>>, strategy: impl Strategy) -> Self {
        let name = name.into();
        let code: Arc<dyn Strategy> = Arc::new(RegisteredStrategy {
            name: name.clone(),
            strategy,
        });
        self.register(|own| &mut own.strategies, "strategy", name, code)
    }

    /// Registers the function of [`Policy::cost_with`](crate::Policy::cost_with), for `cost`.
    #[must_use]
    pub fn cost<F>(self, name: impl Into<Cow<'static, str>>, cost: F) -> Self
    where
        F: Fn(&Parts) -> u64 + Send + Sync + 'static,
    {
        let code: Arc<CostFn> = Arc::new(cost);
        self.register(|own| &mut own.costs, "cost", name, code.into())
    }

    /// Registers a function that returns the name of a request's tier, for `tier`: one of the names in `tiers`. A request
    /// without a name, or with another one, has the policy's own quota. It runs on the request path and must not block.
    #[must_use]
    pub fn tier<F, T>(self, name: impl Into<Cow<'static, str>>, tier: F) -> Self
    where
        F: Fn(&Parts) -> Option<T> + Send + Sync + 'static,
        T: Into<Cow<'static, str>>,
    {
        let code: Arc<TierFn> = Arc::new(move |parts: &Parts| tier(parts).map(Into::into));
        self.register(|own| &mut own.tiers, "tier", name, code.into())
    }

    /// Registers whether an outcome is charged, for `charge`: see [`Policy::charge_after`](crate::Policy::charge_after).
    #[must_use]
    pub fn outcome<F>(self, name: impl Into<Cow<'static, str>>, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        let code: Arc<OutcomeFn> = Arc::new(charges);
        self.register(|own| &mut own.outcomes, "outcome", name, code.into())
    }

    /// Registers a condition on requests, for `with` in `skip` and `only`: see
    /// [`Policy::skip_with`](crate::Policy::skip_with).
    #[must_use]
    pub fn condition<F>(self, name: impl Into<Cow<'static, str>>, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        let code: Arc<ConditionFn> = Arc::new(condition);
        self.register(|own| &mut own.conditions, "condition", name, code.into())
    }

    /// Registers the function of [`Policy::quota_with`](crate::Policy::quota_with), for `quota_with`.
    #[must_use]
    pub fn quota<F>(self, name: impl Into<Cow<'static, str>>, find: F) -> Self
    where
        F: Fn(&Parts) -> Option<Quota> + Send + Sync + 'static,
    {
        let code: Arc<QuotaFn> = Arc::new(find);
        self.register(|own| &mut own.quotas, "quota_with", name, code.into())
    }

    /// Registers the function of [`RateLimitLayer::on_rejection`](crate::RateLimitLayer::on_rejection), for `on_rejection`.
    #[must_use]
    pub fn on_rejection<F, B>(self, name: impl Into<Cow<'static, str>>, respond: F) -> Self
    where
        F: Fn(&Rejected, &Parts) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let code = respond::on_rejection(respond);
        self.register(|own| &mut own.responses, "on_rejection", name, code)
    }

    /// Registers `code` under `name`, or notes why the name can't be used.
    fn register<T>(
        mut self,
        names: fn(&mut Self) -> &mut Names<T>,
        kind: &'static str,
        name: impl Into<Cow<'static, str>>,
        code: T,
    ) -> Self {
        let name = name.into();
        let mut built_in = built_in(kind).into_iter();
        let is_built_in = built_in.any(|own| names::first_word(own) == name);
        let (what, expected) = if !names::is_name(&name) {
            let expected = "1 to 64 letters, digits, -, _ and ., of which the first is a letter";
            ("under a malformed name", expected)
        } else if is_built_in {
            let expected = "a name that has no meaning in documents already";
            ("under a built-in's name", expected)
        } else if let Entry::Vacant(entry) = names(&mut self).entry(name.clone()) {
            entry.insert(code);
            return self;
        } else {
            ("twice", "each name once")
        };
        let found = format!("the {kind} {name:?}, registered {what}");
        self.mistakes.push(InvalidValue::new(found, expected));
        self
    }
}

/// The texts of the built-ins of a kind, which begin with their names.
fn built_in(kind: &str) -> Vec<&'static str> {
    match kind {
        "key" => names::built_in_keys().to_vec(),
        "strategy" => names::built_in_strategies(),
        "outcome" => BUILT_IN_OUTCOMES.map(|(name, _)| name).to_vec(),
        _ => Vec::new(),
    }
}

/// A function of [`outcome`], which need not be registered.
type BuiltInOutcome = (&'static str, fn(&Outcome<'_>) -> bool);

/// The built-in outcomes as they are shared by all documents of the process, so that a reload sees no other function.
static SHARED_OUTCOMES: LazyLock<[SharedFn<OutcomeFn>; 4]> = LazyLock::new(|| {
    BUILT_IN_OUTCOMES.map(|(_, charges)| {
        let charges: Arc<OutcomeFn> = Arc::new(charges);
        charges.into()
    })
});

/// The outcomes that need not be registered.
const BUILT_IN_OUTCOMES: [BuiltInOutcome; 4] = [
    ("success", outcome::success),
    ("failure", outcome::failure),
    ("client_error", outcome::client_error),
    ("server_error", outcome::server_error),
];

/// An extractor that a document has by its name.
#[derive(Debug)]
struct RegisteredKey<E> {
    name: Cow<'static, str>,
    extractor: E,
}

/// A strategy that a document has by its name.
#[derive(Debug)]
struct RegisteredStrategy<S> {
    name: Cow<'static, str>,
    strategy: S,
}

impl<E: KeyExtractor> KeyExtractor for RegisteredKey<E> {
    delegate_to!(self => self.extractor);

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some((&*self.name).into())
    }
}

impl<S: Strategy> Strategy for RegisteredStrategy<S> {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        self.strategy.bind(quota, terms)
    }

    fn tiers_share_period(&self) -> bool {
        self.strategy.tiers_share_period()
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some((&*self.name).into())
    }
}

impl Registry {
    /// Sets what `client_ip` without settings stands for.
    pub(crate) fn with_client_ip(mut self, client_ip: ClientIp) -> Self {
        self.client_ip = Some(client_ip);
        self
    }

    /// Sets what `bearer` stands for.
    pub(crate) fn with_bearer(mut self, bearer: Bearer) -> Self {
        self.bearer = Some(bearer);
        self
    }

    /// What `client_ip` without settings stands for.
    pub(crate) fn client_ip(&self) -> ClientIp {
        self.client_ip.clone().unwrap_or_else(client_ip)
    }

    /// What `bearer` stands for.
    pub(crate) fn bearer(&self) -> Bearer {
        self.bearer.clone().unwrap_or_else(bearer)
    }

    /// The names that can't be used, with the reason: mistakes of every document that is loaded with the registry.
    pub(crate) fn mistakes(&self) -> &[InvalidValue] {
        &self.mistakes
    }

    /// The names of the registered extractors.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(|name| &**name)
    }

    /// The names of the registered strategies.
    pub(crate) fn strategy_names(&self) -> impl Iterator<Item = &str> {
        self.strategies.keys().map(|name| &**name)
    }

    pub(crate) fn find_key(&self, name: &str) -> Option<Arc<dyn KeyExtractor>> {
        self.keys.get(name).cloned()
    }

    pub(crate) fn find_strategy(&self, name: &str) -> Option<Arc<dyn Strategy>> {
        self.strategies.get(name).cloned()
    }

    pub(crate) fn find_cost(&self, name: &str) -> Result<SharedFn<CostFn>, InvalidValue> {
        find(&self.costs, "cost", name)
    }

    pub(crate) fn find_tier(&self, name: &str) -> Result<SharedFn<TierFn>, InvalidValue> {
        find(&self.tiers, "tier", name)
    }

    /// A registered outcome, or one of [`outcome`](crate::outcome).
    pub(crate) fn find_outcome(&self, name: &str) -> Result<SharedFn<OutcomeFn>, InvalidValue> {
        let mut built_in = BUILT_IN_OUTCOMES.iter().zip(&*SHARED_OUTCOMES);
        if let Some((_, charges)) = built_in.find(|((own, _), _)| *own == name) {
            return Ok(charges.clone());
        }
        let code = self.outcomes.get(name).cloned();
        code.ok_or_else(|| {
            let built_in = BUILT_IN_OUTCOMES.map(|(name, _)| name);
            let registered = self.outcomes.keys().map(|name| &**name);
            names::unknown("outcome", name, &built_in, registered)
        })
    }

    pub(crate) fn find_condition(&self, name: &str) -> Result<SharedFn<ConditionFn>, InvalidValue> {
        find(&self.conditions, "condition", name)
    }

    pub(crate) fn find_quota(&self, name: &str) -> Result<SharedFn<QuotaFn>, InvalidValue> {
        find(&self.quotas, "quota", name)
    }

    pub(crate) fn find_on_rejection(
        &self,
        name: &str,
    ) -> Result<SharedFn<OnRejection>, InvalidValue> {
        find(&self.responses, "on_rejection", name)
    }
}

fn find<T: Clone>(names: &Names<T>, kind: &'static str, name: &str) -> Result<T, InvalidValue> {
    let code = names.get(name).cloned();
    let registered = names.keys().map(|name| &**name);
    code.ok_or_else(|| names::unknown(kind, name, &[], registered))
}

#[cfg(test)]
mod tests;
