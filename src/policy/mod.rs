//! A named limit: its quota, strategy, key and cost.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use http::request::Parts;

use self::{
    on_store_error::OnStoreError,
    skip::{
        SkipRules,
        exemption::{ConditionMatch, Exemption},
        path::RequestPath,
    },
};
use crate::{
    charge::{ChargeMode, ChargeTime},
    extract::{self, KeyExtractor, MissingKey},
    quota::Quota,
    setting::{Code, CodeId},
    store::CounterMode,
    strategy::{Concurrency, Gcra, Lease, Strategy},
};

mod by_hand;
mod charging;
mod conditions;
#[cfg(feature = "config")]
mod cost;
mod key_text;
pub(crate) mod on_store_error;
mod quotas;
mod settings;
mod shadow;
pub(crate) mod skip;
#[cfg(feature = "config")]
pub(crate) mod tiers;
mod validate;

#[cfg(feature = "config")]
pub(crate) use cost::CostRules;
pub(crate) use key_text::stored_text;
#[cfg(feature = "admin")]
pub(crate) use key_text::{caller_text, short_text};
#[cfg(feature = "config")]
pub(crate) use validate::{stand_in, validate_range};

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
    strategy: Option<Code<dyn Strategy>>,
    extractor: Option<Code<dyn KeyExtractor>>,
    missing: Option<MissingKey>,
    cost: Option<Cost>,
    caller: Option<Code<dyn KeyExtractor>>,
    pub(crate) charge: ChargeMode,
    quota_source: QuotaSource,
    tier_quotas: Vec<Quota>,
    skips: SkipRules,
    shadow: Option<ShadowConfig>,
    pub(crate) on_store_error: Option<OnStoreError>,
    by_hand: bool,
    block_list: bool,
    lease: Option<Lease>,
}

/// Marks a policy that is evaluated and not enforced.
#[derive(Clone, Debug)]
pub(crate) struct ShadowConfig {
    /// The live policy that it is a candidate for.
    pub(crate) replaces: Option<Arc<str>>,
}

/// Where the quota of a request is from.
#[derive(Clone)]
pub(crate) enum QuotaSource {
    /// The policy, for all requests.
    Policy,
    FromRequest(Code<QuotaFn>),
    /// Looked up, with a timeout.
    Lookup(Code<QuotaLookupFn>, Duration),
}

pub(crate) type CostFn = dyn Fn(&Parts) -> u64 + Send + Sync;
pub(crate) type QuotaFn = dyn Fn(&Parts) -> Option<Quota> + Send + Sync;
pub(crate) type QuotaLookupFn = dyn Fn(&Parts) -> QuotaLookupFuture + Send + Sync;

/// The look-up of a quota.
pub(crate) type QuotaLookupFuture = Pin<Box<dyn Future<Output = Option<Quota>> + Send>>;

/// The cost of a request, in units.
#[derive(Clone, Debug)]
enum Cost {
    /// The same number of units for each request. A request that costs 0 is always admitted.
    Fixed(u64),
    /// The number of units that the function returns for the request's head.
    With(Code<CostFn>),
    /// By its method and path.
    #[cfg(feature = "config")]
    Rules(CostRules),
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
            extractor: None,
            missing: None,
            cost: None,
            caller: None,
            charge: ChargeMode::default(),
            quota_source: QuotaSource::Policy,
            tier_quotas: Vec::new(),
            skips: SkipRules::default(),
            shadow: None,
            on_store_error: None,
            by_hand: false,
            block_list: false,
            lease: None,
        }
    }

    /// Sets the strategy that counts the quota. Default: [`Gcra`], or [`Concurrency`] for a quota of requests in flight.
    #[must_use]
    pub fn strategy(self, strategy: impl Strategy) -> Self {
        let strategy = Arc::new(strategy);
        let id = CodeId::of(&strategy);
        self.counted_by(Code::new(strategy, id))
    }

    /// Sets the extractor of the key that a request is counted by. Default: [`extract::peer`], the client's address.
    #[must_use]
    pub fn key(self, extractor: impl KeyExtractor) -> Self {
        let extractor = Arc::new(extractor);
        let id = CodeId::of(&extractor);
        self.keyed_by(Code::new(extractor, id))
    }

    /// Sets what happens to a request without a key. By default requests without a client address share one bucket, and those
    /// without another key are rejected with 400 Bad Request: [by extractor](extract#requests-without-a-key).
    #[must_use]
    pub fn missing_key(mut self, missing: MissingKey) -> Self {
        self.missing = Some(missing);
        self
    }

    /// Sets the cost of each request in units. Default: 1. Requests that cost 0 are always admitted.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = Some(Cost::Fixed(units));
        self
    }

    /// Sets the cost of each request to the units that `cost` returns for its head, in place of [`cost`](Policy::cost). Any
    /// number is valid, also one that a client chooses, such as a body's length: a request that costs more than the quota's
    /// capacity is rejected, without a `Retry-After`. `cost` runs on the request path and must not block. Calls by hand set
    /// [`Check::parts`](crate::Check::parts), or a cost of their own.
    ///
    /// If the cost is in the body, which the layer doesn't read, a middleware in front of the layer can read the body and put
    /// the cost into the request's extensions, where `cost` finds it. Or the handler that has read the body calls
    /// [`Limiter::admit`](crate::Limiter::admit) with [`Check::cost`](crate::Check::cost) and adds the fields to its response
    /// by [`RateLimitHeaders::add_to`](crate::RateLimitHeaders::add_to).
    #[must_use]
    pub fn cost_with<F>(self, cost: F) -> Self
    where
        F: Fn(&Parts) -> u64 + Send + Sync + 'static,
    {
        let cost = Arc::new(cost);
        let id = CodeId::of(&cost);
        self.cost_from(Code::new(cost, id))
    }

    /// Sets the extractor of the caller that is recorded with each charge, for strategies that store callers, such as
    /// [`ListWindow`](crate::ListWindow). Default: the policy's own key. Calls by hand set
    /// [`Check::parts`](crate::Check::parts) or [`Keys::caller`](crate::Keys::caller).
    #[must_use]
    pub fn caller(self, extractor: impl KeyExtractor) -> Self {
        let extractor = Arc::new(extractor);
        let id = CodeId::of(&extractor);
        self.called_by(Code::new(extractor, id))
    }

    /// Sets what happens to requests under this policy when the store fails, in place of the limiter's
    /// [setting](crate::LimiterBuilder::on_store_error): logins may be rejected while reads are admitted. It has no effect for
    /// a [shadow policy](Policy::shadow).
    #[must_use]
    pub fn on_store_error(mut self, action: impl Into<OnStoreError>) -> Self {
        self.on_store_error = Some(action.into());
        self
    }

    /// [`strategy`](Policy::strategy), of any type.
    pub(crate) fn counted_by(mut self, strategy: Code<dyn Strategy>) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// [`key`](Policy::key), of any type.
    pub(crate) fn keyed_by(mut self, extractor: Code<dyn KeyExtractor>) -> Self {
        self.extractor = Some(extractor);
        self.by_hand = false;
        self
    }

    /// [`cost_with`](Policy::cost_with), of any type.
    pub(crate) fn cost_from(mut self, cost: Code<CostFn>) -> Self {
        self.cost = Some(Cost::With(cost));
        self
    }

    /// [`caller`](Policy::caller), of any type.
    pub(crate) fn called_by(mut self, extractor: Code<dyn KeyExtractor>) -> Self {
        self.caller = Some(extractor);
        self
    }

    /// Sets all conditions.
    #[cfg(feature = "config")]
    pub(crate) fn conditions(mut self, rules: SkipRules) -> Self {
        self.skips = rules;
        self
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy's quota.
    pub fn quota(&self) -> Quota {
        self.quota
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
            None if self.quota.is_concurrent() => const { &Concurrency::new() },
            None => &Gcra,
        }
    }

    pub(crate) fn extractor(&self) -> &dyn KeyExtractor {
        match &self.extractor {
            Some(extractor) => &**extractor,
            None => const { &extract::peer() },
        }
    }

    /// The extractor, shared with the policy.
    #[cfg(feature = "config")]
    pub(crate) fn shared_extractor(&self) -> Arc<dyn KeyExtractor> {
        match &self.extractor {
            Some(extractor) => extractor.clone().into_arc(),
            None => Arc::new(extract::peer()),
        }
    }

    pub(crate) fn on_missing_key(&self) -> MissingKey {
        self.missing
            .unwrap_or_else(|| self.extractor().on_missing_key())
    }

    /// Whether it was set to skip requests without a key, which are then no mistake.
    pub(crate) fn skips_missing_key(&self) -> bool {
        self.missing == Some(MissingKey::Skip)
    }

    /// What a request lacks that has no key: `the header x-api-key`.
    pub(crate) fn missing_key_name(&self, parts: &Parts) -> Arc<str> {
        self.extractor().missing_key_name(Some(parts)).into()
    }

    #[cfg_attr(not(feature = "config"), expect(unused_variables))]
    pub(crate) fn cost_of(&self, parts: &Parts, path: &RequestPath<'_>) -> u64 {
        match &self.cost {
            None => 1,
            Some(Cost::Fixed(units)) => *units,
            Some(Cost::With(cost)) => cost(parts),
            #[cfg(feature = "config")]
            Some(Cost::Rules(rules)) => rules.cost(&parts.method, path),
        }
    }

    pub(crate) fn skips(&self, parts: &Parts, path: &RequestPath<'_>) -> bool {
        self.exempting(parts, path).is_some()
    }

    /// The condition by which it doesn't apply to a request; `None` if it does.
    pub(crate) fn exempting(
        &self,
        parts: &Parts,
        path: &RequestPath<'_>,
    ) -> Option<ConditionMatch> {
        self.skips.exempting(parts, path)
    }

    /// Describes the condition by which it doesn't apply to a request.
    pub(crate) fn describe_exemption(&self, matched: ConditionMatch, parts: &Parts) -> Exemption {
        self.skips.describe(matched, parts)
    }

    pub(crate) fn has_skips(&self) -> bool {
        !self.skips.is_empty()
    }

    /// Whether the cost is a function of the request.
    pub(crate) fn has_cost_of_request(&self) -> bool {
        !matches!(self.cost, None | Some(Cost::Fixed(_)))
    }

    /// Whether the quota is a function of the request.
    pub(crate) fn has_quota_of_request(&self) -> bool {
        !matches!(self.quota_source, QuotaSource::Policy)
    }

    /// Whether its quota, cost or conditions depend on the request.
    pub(crate) fn reads_parts(&self) -> bool {
        self.has_skips() || self.has_cost_of_request() || self.has_quota_of_request()
    }

    pub(crate) fn shadow_config(&self) -> Option<&ShadowConfig> {
        self.shadow.as_ref()
    }

    pub(crate) fn charge_mode(&self) -> &ChargeMode {
        &self.charge
    }

    /// Whether each request's quota is looked up, which may take a while.
    pub(crate) fn looks_up_quota(&self) -> bool {
        matches!(self.quota_source, QuotaSource::Lookup(..))
    }

    pub(crate) fn declared_quotas(&self) -> &[Quota] {
        &self.tier_quotas
    }

    pub(crate) fn quota_source(&self) -> &QuotaSource {
        &self.quota_source
    }

    /// What a store does with a request under this policy, if it is enforced.
    pub(crate) fn counter_mode(&self) -> CounterMode {
        match (self.charge.when, self.charge.rejected) {
            (ChargeTime::Response, _) => CounterMode::Check,
            (_, true) => CounterMode::ChargeRejectedToo,
            (_, false) => CounterMode::Charge,
        }
    }

    /// What finds the caller that is recorded with a charge, in place of the key.
    pub(crate) fn caller_extractor(&self) -> Option<&dyn KeyExtractor> {
        self.caller.as_deref()
    }

    /// The cost of a call by hand without a request.
    pub(crate) fn default_cost(&self) -> u64 {
        match self.cost {
            Some(Cost::Fixed(units)) => units,
            _ => 1,
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name)
            .field("quota", &format_args!("{}", self.quota))
            .field("strategy", &self.strategy_or_default())
            .field("key", &self.extractor())
            .field("missing_key", &self.on_missing_key())
            .field("cost", &self.cost.as_ref().unwrap_or(&Cost::Fixed(1)))
            .field("charge", &self.charge)
            .field("skips", &self.skips)
            .field("shadow", &self.shadow)
            .field("on_store_error", &self.on_store_error)
            .field("lease", &self.lease)
            .finish()
    }
}
