//! Code of the application that configuration documents refer to by name.

use std::{borrow::Cow, collections::BTreeMap, error::Error, fmt, future::Future, sync::Arc};

use bytes::Bytes;
use http::{Response, request::Parts};
use http_body::Body;

use super::names;
use crate::{
    Quota, Rejected,
    error::InvalidValue,
    extract::{Bearer, ClientIp, KeyExtractor},
    observe::Observer,
    outcome::{self, Outcome},
    policy::{
        charging::OutcomeFn,
        cost::CostFn,
        label::LabelFn,
        quotas::{QuotaFn, QuotaLookupFn, QuotaLookupFuture, TierFn},
        skip::ConditionFn,
    },
    respond::{self, OnRejection},
    setting::Slot,
    strategy::Strategy,
};

mod find;
mod wrapped;

use wrapped::{RegisteredKey, RegisteredStrategy};

/// Code of the application that a [`Document`](crate::config::Document) refers to by name: extractors, costs, tiers and others.
///
/// A name has 1 to 64 letters, digits, `-`, `_` and `.`, and begins with a letter. Each kind of code has names of its own. A
/// name that is malformed, that of a built-in, or registered twice is an error when a document is loaded.
///
/// Policies are the same before and after a reload if the same names stand in them: register other code under another name.
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
#[derive(Clone, Default)]
pub struct Registry {
    keys: Names<dyn KeyExtractor>,
    strategies: Names<dyn Strategy>,
    costs: Names<CostFn>,
    tiers: Names<TierFn>,
    outcomes: Names<OutcomeFn>,
    conditions: Names<ConditionFn>,
    quotas: Names<QuotaFn>,
    labels: Names<LabelFn>,
    quota_lookups: Names<QuotaLookupFn>,
    responses: Names<OnRejection>,
    observers: Vec<Arc<dyn Observer>>,
    mistakes: Vec<InvalidValue>,
    client_ip: Option<ClientIp>,
    bearer: Option<Bearer>,
}

type Names<F> = BTreeMap<Cow<'static, str>, Slot<F>>;

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
    pub fn key(mut self, name: impl Into<Cow<'static, str>>, extractor: impl KeyExtractor) -> Self {
        let name = name.into();
        let extractor = RegisteredKey::new(name.clone(), extractor);
        let code = Arc::new(extractor);
        register(
            &mut self.keys,
            &mut self.mistakes,
            "key",
            name,
            code,
            &names::built_in_keys(),
        );
        self
    }

    /// Registers a strategy, for `strategy`.
    #[must_use]
    pub fn strategy(mut self, name: impl Into<Cow<'static, str>>, strategy: impl Strategy) -> Self {
        let name = name.into();
        let strategy = RegisteredStrategy::new(name.clone(), strategy);
        let (names, code) = (&mut self.strategies, Arc::new(strategy));
        let built_in = &names::built_in_strategies();
        register(names, &mut self.mistakes, "strategy", name, code, built_in);
        self
    }

    /// Registers the function of [`Policy::cost_with`](crate::Policy::cost_with), for `cost`.
    #[must_use]
    pub fn cost<F>(mut self, name: impl Into<Cow<'static, str>>, cost: F) -> Self
    where
        F: Fn(&Parts) -> u64 + Send + Sync + 'static,
    {
        let code = Arc::new(cost);
        register(
            &mut self.costs,
            &mut self.mistakes,
            "cost",
            name.into(),
            code,
            &[],
        );
        self
    }

    /// Registers a function that returns the name of a request's tier, for `tier`: one of the names in `tiers`. A request
    /// without a name, or with another one, has the policy's own quota. It runs on the request path and must not block.
    #[must_use]
    pub fn tier<F, T>(mut self, name: impl Into<Cow<'static, str>>, tier: F) -> Self
    where
        F: Fn(&Parts) -> Option<T> + Send + Sync + 'static,
        T: Into<Cow<'static, str>>,
    {
        let code = Arc::new(move |parts: &Parts| tier(parts).map(Into::into));
        register(
            &mut self.tiers,
            &mut self.mistakes,
            "tier",
            name.into(),
            code,
            &[],
        );
        self
    }

    /// Registers whether an outcome is charged, for `charge`: see [`Policy::charge_after`](crate::Policy::charge_after).
    #[must_use]
    pub fn outcome<F>(mut self, name: impl Into<Cow<'static, str>>, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        let code = Arc::new(charges);
        let built_in = &BUILT_IN_OUTCOMES.map(|(name, _)| name);
        register(
            &mut self.outcomes,
            &mut self.mistakes,
            "outcome",
            name.into(),
            code,
            built_in,
        );
        self
    }

    /// Registers a condition on requests, for `with` in `skip` and `only`: see
    /// [`Policy::skip_with`](crate::Policy::skip_with).
    #[must_use]
    pub fn condition<F>(mut self, name: impl Into<Cow<'static, str>>, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        let (names, code) = (&mut self.conditions, Arc::new(condition));
        register(
            names,
            &mut self.mistakes,
            "condition",
            name.into(),
            code,
            &[],
        );
        self
    }

    /// Registers the function of [`Policy::quota_with`](crate::Policy::quota_with), for `quota_with`.
    #[must_use]
    pub fn quota<F>(mut self, name: impl Into<Cow<'static, str>>, find: F) -> Self
    where
        F: Fn(&Parts) -> Option<Quota> + Send + Sync + 'static,
    {
        let code = Arc::new(find);
        register(
            &mut self.quotas,
            &mut self.mistakes,
            "quota_with",
            name.into(),
            code,
            &[],
        );
        self
    }

    /// Registers the function of [`Policy::label_with`](crate::Policy::label_with), for `label_with`.
    #[must_use]
    pub fn label<F>(mut self, name: impl Into<Cow<'static, str>>, label: F) -> Self
    where
        F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    {
        let code = Arc::new(label);
        register(
            &mut self.labels,
            &mut self.mistakes,
            "label_with",
            name.into(),
            code,
            &[],
        );
        self
    }

    /// Registers the async function of [`Policy::quota_lookup`](crate::Policy::quota_lookup), for `quota_lookup`.
    #[must_use]
    pub fn quota_lookup<F, L>(mut self, name: impl Into<Cow<'static, str>>, look_up: F) -> Self
    where
        F: Fn(&Parts) -> L + Send + Sync + 'static,
        L: Future<Output = Option<Quota>> + Send + 'static,
    {
        let look_up = move |parts: &Parts| -> QuotaLookupFuture { Box::pin(look_up(parts)) };
        let (names, code) = (&mut self.quota_lookups, Arc::new(look_up));
        register(
            names,
            &mut self.mistakes,
            "quota_lookup",
            name.into(),
            code,
            &[],
        );
        self
    }

    /// Registers the function of [`RateLimitLayer::on_rejection`](crate::RateLimitLayer::on_rejection), for `on_rejection`.
    #[must_use]
    pub fn on_rejection<F, B>(mut self, name: impl Into<Cow<'static, str>>, respond: F) -> Self
    where
        F: Fn(&Rejected, &Parts) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (names, code) = (&mut self.responses, respond::with_any_body(respond));
        register(
            names,
            &mut self.mistakes,
            "on_rejection",
            name.into(),
            code,
            &[],
        );
        self
    }
}

/// A function of [`outcome`], which need not be registered.
type BuiltInOutcome = (&'static str, fn(&Outcome<'_>) -> bool);

/// The outcomes that need not be registered.
const BUILT_IN_OUTCOMES: [BuiltInOutcome; 4] = [
    ("success", outcome::success),
    ("failure", outcome::failure),
    ("client_error", outcome::client_error),
    ("server_error", outcome::server_error),
];

/// Registers `code` under `name`, or notes why the name can't be used.
fn register<F: ?Sized>(
    names: &mut Names<F>,
    mistakes: &mut Vec<InvalidValue>,
    kind: &str,
    name: Cow<'static, str>,
    code: Arc<F>,
    built_in: &[&str],
) {
    let named = |what: &str| format!("the {kind} {name:?}, registered {what}");
    let mistake = if !names::is_name(&name) {
        Some(InvalidValue::new(
            named("under a malformed name"),
            "1 to 64 letters, digits, -, _ and ., of which the first is a letter",
        ))
    } else if built_in.iter().any(|own| names::first_word(own) == name) || name == names::CODE {
        let expected = "a name that has no meaning in documents already";
        Some(InvalidValue::new(
            named("under a built-in's name"),
            expected,
        ))
    } else if names.contains_key(&name) {
        Some(InvalidValue::new(named("twice"), "each name once"))
    } else {
        None
    };
    match mistake {
        Some(mistake) => mistakes.push(mistake),
        None => {
            let slot = Slot::shared(code, Some(name.clone()));
            names.insert(name, slot);
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("keys", &self.keys)
            .field("strategies", &self.strategies)
            .field("costs", &self.costs)
            .field("tiers", &self.tiers)
            .field("outcomes", &self.outcomes)
            .field("conditions", &self.conditions)
            .field("quotas", &self.quotas)
            .field("quota_lookups", &self.quota_lookups)
            .field("responses", &self.responses)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
