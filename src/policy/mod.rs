//! A named limit: its quota, strategy, key and cost.

use std::{borrow::Cow, sync::Arc};

use http::request::Parts;

use self::{
    by_hand::{BLOCKS, ByHand},
    charging::Charge,
    cost::{Cost, CostFn},
    on_store_error::OnStoreError,
    quotas::QuotaByRequest,
    skip::{ConditionMatch, Conditions, Exemption, SkipRules, path::RequestPath},
};
use crate::{
    error::{ConfigError, InvalidValue},
    extract::{self, KeyExtractor, MissingKey},
    quota::Quota,
    strategy::{Concurrency, Gcra, Lease, Strategy, built_in},
};

mod by_hand;
pub(crate) mod charging;
pub(crate) mod cost;
mod key_text;
pub(crate) mod on_store_error;
pub(crate) mod quotas;
mod same;
mod shadow;
pub(crate) mod skip;
mod validate;

pub(crate) use key_text::stored_text;
#[cfg(feature = "admin")]
pub(crate) use key_text::{caller_text, short_text, stored_key};

/// A named limit: a quota, the strategy that counts it, the key of a request, and its cost.
///
/// By default it counts by [client address](extract::peer), with [`Gcra`] ([`Concurrency`] for a quota of requests in flight),
/// charges one unit per request, on arrival, and applies to every request. A mistake in a policy is a
/// [`ConfigError`](crate::ConfigError) when the limiter is built.
///
/// ```
/// use tollgate::{Policy, Quota, extract};
///
/// let policy = Policy::new("uploads", Quota::requests(100).per_hour())
///     .key(extract::header("x-api-key"))
///     .cost_with(|parts| if parts.uri.path().starts_with("/video") { 10 } else { 1 });
/// assert_eq!(policy.name(), "uploads");
/// ```
#[derive(Clone)]
pub struct Policy {
    name: Arc<str>,
    quota: Quota,
    /// `None` for the quota's default.
    strategy: Option<Arc<dyn Strategy>>,
    /// `None` for the peer's address, or for no key under `by_hand`.
    key: Option<Arc<dyn KeyExtractor>>,
    missing_key: Option<MissingKey>,
    caller: Option<Arc<dyn KeyExtractor>>,
    cost: Cost,
    charge: Charge,
    charge_rejected: bool,
    charge_dropped: bool,
    quota_by_request: Option<QuotaByRequest>,
    tier_quotas: Vec<Quota>,
    skip: Conditions,
    only: Conditions,
    shadow: bool,
    on_store_error: Option<OnStoreError>,
    lease: Option<Lease>,
    by_hand: bool,
    /// Whether the policy is a ban that counts no rejections. Its quota is not used.
    block_list: bool,
}

impl Policy {
    /// A policy that allows `quota` for each client address.
    ///
    /// The name is used in headers, logs and the store's keys. It has 1 to 64 printable ASCII characters, without `"` and `\`
    /// and without spaces around it. Policies of the same name in the same store share their counts.
    pub fn new(name: impl Into<Arc<str>>, quota: Quota) -> Self {
        Self {
            name: name.into(),
            quota,
            strategy: None,
            key: None,
            missing_key: None,
            caller: None,
            cost: Cost::default(),
            charge: Charge::default(),
            charge_rejected: false,
            charge_dropped: true,
            quota_by_request: None,
            tier_quotas: Vec::new(),
            skip: Conditions::default(),
            only: Conditions::default(),
            shadow: false,
            on_store_error: None,
            lease: None,
            by_hand: false,
            block_list: false,
        }
    }

    /// Sets the strategy that counts the quota. Default: [`Gcra`], or [`Concurrency`] for a quota of requests in flight.
    #[must_use]
    pub fn strategy(mut self, strategy: impl Strategy) -> Self {
        self.strategy = Some(Arc::new(strategy));
        self
    }

    /// Sets the strategy that a text stands for, such as `sliding_window buckets 10`: one of those that a
    /// [document](crate::strategy#in-a-configuration-document) can have without a registration.
    ///
    /// ```
    /// use tollgate::{Policy, Quota};
    ///
    /// let policy = Policy::new("api", Quota::requests(100).per_hour());
    /// let policy = policy.strategy_text("sliding_window buckets 10")?;
    /// let error = policy.strategy_text("leaky").unwrap_err();
    /// assert_eq!(error.value(), "an unknown strategy \"leaky\"");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it is the text of no strategy. Whether the strategy can count the quota is seen when a limiter is built.
    pub fn strategy_text(mut self, text: &str) -> Result<Self, ConfigError> {
        let unknown = |name: &str| {
            let expected = format!("one of {}", built_in::texts().join(", "));
            Err(InvalidValue::new(
                format!("an unknown strategy {name:?}"),
                expected,
            ))
        };
        let strategy = built_in::parse(text, unknown);
        let strategy = strategy.map_err(|error| ConfigError::of(&self.name, error))?;
        self.strategy = Some(strategy);
        Ok(self)
    }

    /// Sets the extractor of the key that a request is counted by, in place of [`by_hand`](Policy::by_hand). Default:
    /// [`extract::peer`], the client's address.
    #[must_use]
    pub fn key(mut self, extractor: impl KeyExtractor) -> Self {
        self.key = Some(Arc::new(extractor));
        self.by_hand = false;
        self
    }

    /// Sets what happens to a request without a key. By default requests without a client address share one bucket, and those
    /// without another key are rejected with 400 Bad Request: [by extractor](extract#requests-without-a-key).
    #[must_use]
    pub fn missing_key(mut self, missing: MissingKey) -> Self {
        self.missing_key = Some(missing);
        self
    }

    /// Sets the cost of each request in units. Default: 1. Requests that cost 0 are always admitted.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = Cost::Units(units);
        self
    }

    /// Sets the cost of each request to the units that `cost` returns for its head, in place of [`cost`](Policy::cost). Any
    /// number is valid, also one that a client chooses, such as a body's length: a request that costs more than the quota's
    /// capacity is rejected, without a `Retry-After`. `cost` runs on the request path and must not block. Calls by hand set
    /// [`Check::parts`](crate::limiter::Check::parts), or a cost of their own.
    ///
    /// If the cost is in the body, which the layer doesn't read, a middleware in front of the layer can read the body and put
    /// the cost into the request's extensions, where `cost` finds it. Or the handler that has read the body calls
    /// [`Limiter::admit`](crate::Limiter::admit) with [`Check::cost`](crate::limiter::Check::cost) and adds the fields to its response
    /// by [`RateLimitHeaders::add_to`](crate::RateLimitHeaders::add_to).
    #[must_use]
    pub fn cost_with<F>(self, cost: F) -> Self
    where
        F: Fn(&Parts) -> u64 + Send + Sync + 'static,
    {
        let cost: Arc<CostFn> = Arc::new(cost);
        self.cost_by(Cost::With(cost.into()))
    }

    /// Sets the cost of each request to units, a shared function, or rules by method and path.
    #[must_use]
    pub fn cost_by(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the extractor of the caller that is recorded with each charge, for strategies that store callers, such as
    /// [`ListWindow`](crate::ListWindow). Default: the policy's own key. Calls by hand set
    /// [`Check::parts`](crate::limiter::Check::parts) or [`Keys::caller`](crate::limiter::Keys::caller).
    #[must_use]
    pub fn caller(mut self, extractor: impl KeyExtractor) -> Self {
        self.caller = Some(Arc::new(extractor));
        self
    }

    /// Sets what happens to requests under this policy when the store fails, in place of the limiter's
    /// [setting](crate::limiter::LimiterBuilder::on_store_error): logins may be rejected while reads are admitted. It has no effect for
    /// a [shadow policy](Policy::shadow).
    #[must_use]
    pub fn on_store_error(mut self, action: impl Into<OnStoreError>) -> Self {
        self.on_store_error = Some(action.into());
        self
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy's quota. A block list has none: it is one per day then.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// The text of its strategy in a configuration document, as [`Strategy::config_text`] returns it.
    pub fn strategy_config_text(&self) -> Option<Cow<'_, str>> {
        self.strategy_or_default().config_text()
    }

    /// Whether it applies to calls by hand only.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.by_hand
    }

    /// Whether it is a ban that counts no rejections.
    pub(crate) fn is_block_list(&self) -> bool {
        self.block_list
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }

    pub(crate) fn strategy_or_default(&self) -> &dyn Strategy {
        match &self.strategy {
            Some(strategy) => &**strategy,
            None if self.is_block_list() => &BLOCKS,
            None if self.quota().is_concurrent() => const { &Concurrency::new() },
            None => &Gcra,
        }
    }

    pub(crate) fn extractor(&self) -> &dyn KeyExtractor {
        match &self.key {
            Some(extractor) => &**extractor,
            None if self.is_by_hand() => &ByHand,
            None => const { &extract::peer() },
        }
    }

    pub(crate) fn on_missing_key(&self) -> MissingKey {
        self.missing_key
            .unwrap_or_else(|| self.extractor().on_missing_key())
    }

    /// What a request lacks that has no key: `the header x-api-key`.
    pub(crate) fn missing_key_name(&self, parts: &Parts) -> Arc<str> {
        self.extractor().missing_key_name(Some(parts)).into()
    }

    pub(crate) fn cost_of(&self, parts: &Parts, path: &RequestPath<'_>) -> u64 {
        self.cost.of(parts, path)
    }

    fn skip_rules(&self) -> SkipRules<'_> {
        SkipRules {
            skip: &self.skip,
            only: &self.only,
        }
    }

    /// The condition by which it doesn't apply to a request; `None` if it does.
    pub(crate) fn exempting(
        &self,
        parts: &Parts,
        path: &RequestPath<'_>,
    ) -> Option<ConditionMatch> {
        self.skip_rules().exempting(parts, path)
    }

    /// Describes the condition by which it doesn't apply to a request.
    pub(crate) fn describe_exemption(&self, matched: ConditionMatch, parts: &Parts) -> Exemption {
        self.skip_rules().describe(matched, parts)
    }

    pub(crate) fn has_skips(&self) -> bool {
        !self.skip_rules().is_empty()
    }

    /// Whether the cost is a function of the request.
    pub(crate) fn has_cost_of_request(&self) -> bool {
        !matches!(self.cost, Cost::Units(_))
    }

    /// Whether its quota, cost or conditions depend on the request.
    pub(crate) fn reads_parts(&self) -> bool {
        self.has_skips() || self.has_cost_of_request() || self.has_quota_of_request()
    }

    /// What happens to requests under this policy when the store fails, if it is not the limiter's setting.
    pub(crate) fn store_error_action(&self) -> Option<OnStoreError> {
        self.on_store_error
    }

    /// What finds the caller that is recorded with a charge, in place of the key.
    pub(crate) fn caller_extractor(&self) -> Option<&dyn KeyExtractor> {
        self.caller.as_deref()
    }

    /// The cost of a call by hand without a request.
    pub(crate) fn default_cost(&self) -> u64 {
        match self.cost {
            Cost::Units(units) => units,
            Cost::With(_) | Cost::Rules(_) => 1,
        }
    }
}
