//! A named limit: its quota, strategy, key and cost.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use http::request::Parts;

use self::{on_store_error::OnStoreError, skip::Skips};
use crate::{
    charge::{Charge, When},
    extract::{self, KeyExtractor, MissingKey},
    key::Key,
    quota::Quota,
    store::CounterMode,
    strategy::{Concurrency, Gcra, Strategy},
};

mod by_hand;
mod charging;
mod checks;
mod conditions;
pub(crate) mod on_store_error;
mod quotas;
mod shadow;
pub(crate) mod skip;

/// A named limit: a quota, how it is counted, by which key, and what a request costs.
///
/// Unless set otherwise it counts by [client address](extract::peer), with [`Gcra`] ([`Concurrency`] for requests in
/// flight), one unit a request.
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
    strategy: Option<Arc<dyn Strategy>>,
    extractor: Option<Arc<dyn KeyExtractor>>,
    missing: Option<MissingKey>,
    cost: Option<Cost>,
    caller: Option<Arc<dyn KeyExtractor>>,
    pub(crate) charge: Charge,
    tiers: Tiers,
    tier_quotas: Vec<Quota>,
    skips: Skips,
    shadow: Option<Shadow>,
    pub(crate) on_store_error: Option<OnStoreError>,
    by_hand: bool,
    block_list: bool,
}

/// How a policy is evaluated that isn't enforced.
#[derive(Clone, Debug)]
pub(crate) struct Shadow {
    /// The policy that it would take the place of.
    pub(crate) of: Option<Arc<str>>,
}

/// Where a request's own quota is from.
#[derive(Clone)]
pub(crate) enum Tiers {
    /// All have the policy's.
    None,
    Found(FindQuota),
    LookedUp(LookUpQuota, Duration),
}

type FindQuota = Arc<dyn Fn(&Parts) -> Option<Quota> + Send + Sync>;
type LookUpQuota = Arc<dyn Fn(&Parts) -> LookUp + Send + Sync>;

/// A quota that is being looked up.
pub(crate) type LookUp = Pin<Box<dyn Future<Output = Option<Quota>> + Send>>;

/// What a request costs, in units.
#[derive(Clone)]
#[non_exhaustive]
pub enum Cost {
    /// So many units. A request that costs nothing always passes.
    Fixed(u64),
    /// As many as the function says.
    With(Arc<dyn Fn(&Parts) -> u64 + Send + Sync>),
}

impl Policy {
    /// A policy that allows each client address `quota`.
    ///
    /// The name stands in headers, logs and keys: printable ASCII, spaces within included, at most 64 characters, without `"` and `\`. Policies
    /// of the same name in the same store share their counts.
    pub fn new(name: impl Into<Arc<str>>, quota: Quota) -> Self {
        Self {
            name: name.into(),
            quota,
            strategy: None,
            extractor: None,
            missing: None,
            cost: None,
            caller: None,
            charge: Charge::default(),
            tiers: Tiers::None,
            tier_quotas: Vec::new(),
            skips: Skips::default(),
            shadow: None,
            on_store_error: None,
            by_hand: false,
            block_list: false,
        }
    }

    /// Counts by `strategy`, in place of [`Gcra`].
    #[must_use]
    pub fn strategy(mut self, strategy: impl Strategy) -> Self {
        self.strategy = Some(Arc::new(strategy));
        self
    }

    /// Counts by what `extractor` finds in a request, in place of the client's address.
    #[must_use]
    pub fn key(mut self, extractor: impl KeyExtractor) -> Self {
        self.extractor = Some(Arc::new(extractor));
        self.by_hand = false;
        self
    }

    /// What to do with a request that has no key. By default those without a client address share one bucket, and all others
    /// are rejected with 400 Bad Request: [by extractor](extract#requests-without-a-key).
    #[must_use]
    pub fn missing_key(mut self, missing: MissingKey) -> Self {
        self.missing = Some(missing);
        self
    }

    /// Charges `units` a request, in place of one. Zero is free.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = Some(Cost::Fixed(units));
        self
    }

    /// Charges each request as many units as `cost` returns for its head. That may be any number, also one that is up to the
    /// client, such as a body's length: a request that costs more than the quota's capacity is rejected, without a
    /// `Retry-After`. Calls by hand take [`Check::parts`](crate::Check::parts), or a cost of their own.
    ///
    /// Where the cost is in the body, which this layer doesn't read, let a middleware in front of it read the body and leave
    /// the cost in the request's extensions, where `cost` finds it. Or let the handler that has read the body call
    /// [`Limiter::admit`](crate::Limiter::admit) with [`Check::cost`](crate::Check::cost).
    /// [`RateLimitHeaders::add_to`](crate::RateLimitHeaders::add_to) adds the fields to its response.
    #[must_use]
    pub fn cost_with<F>(mut self, cost: F) -> Self
    where
        F: Fn(&Parts) -> u64 + Send + Sync + 'static,
    {
        self.cost = Some(Cost::With(Arc::new(cost)));
        self
    }

    /// Records the key that `extractor` finds in a request as the caller of its charge, in place of the policy's own key: for
    /// strategies that store callers, such as [`ListWindow`](crate::ListWindow). Calls by hand take
    /// [`Check::parts`](crate::Check::parts), or [`Keys::caller`](crate::Keys::caller).
    #[must_use]
    pub fn caller(mut self, extractor: impl KeyExtractor) -> Self {
        self.caller = Some(Arc::new(extractor));
        self
    }

    /// What to do under this policy when the store fails, in place of the limiter's setting: a login may stay closed while a
    /// read stays open. The setting of a [shadow policy](Policy::shadow) has no effect.
    #[must_use]
    pub fn on_store_error(mut self, answer: impl Into<OnStoreError>) -> Self {
        self.on_store_error = Some(answer.into());
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

    /// Whether it applies to calls by hand alone.
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

    pub(crate) fn counted_by(&self) -> &dyn Strategy {
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

    pub(crate) fn on_missing_key(&self) -> MissingKey {
        self.missing
            .unwrap_or_else(|| self.extractor().on_missing_key())
    }

    pub(crate) fn cost_of(&self, parts: &Parts) -> u64 {
        match &self.cost {
            None => 1,
            Some(Cost::Fixed(units)) => *units,
            Some(Cost::With(cost)) => cost(parts),
        }
    }

    pub(crate) fn skips(&self, parts: &Parts) -> bool {
        self.skips.skip(parts)
    }

    pub(crate) fn has_skips(&self) -> bool {
        !self.skips.is_empty()
    }

    /// Whether the cost is a function of the request.
    pub(crate) fn has_cost_of_request(&self) -> bool {
        matches!(self.cost, Some(Cost::With(_)))
    }

    /// Whether the quota is a function of the request.
    pub(crate) fn has_quota_of_request(&self) -> bool {
        !matches!(self.tiers, Tiers::None)
    }

    /// Whether it takes its quota, cost or conditions from requests.
    pub(crate) fn reads_parts(&self) -> bool {
        self.has_skips() || self.has_cost_of_request() || self.has_quota_of_request()
    }

    pub(crate) fn shadowed(&self) -> Option<&Shadow> {
        self.shadow.as_ref()
    }

    pub(crate) fn charges(&self) -> &Charge {
        &self.charge
    }

    pub(crate) fn declared_quotas(&self) -> &[Quota] {
        &self.tier_quotas
    }

    pub(crate) fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// What a request's arrival does under this policy, where it is enforced.
    pub(crate) fn mode(&self) -> CounterMode {
        match (self.charge.when, self.charge.rejected) {
            (When::Response, _) => CounterMode::Check,
            (_, true) => CounterMode::ChargeRejectedToo,
            (_, false) => CounterMode::Charge,
        }
    }

    pub(crate) fn caller_of(&self, parts: &Parts) -> Option<Key> {
        self.caller.as_ref()?.key(parts)
    }

    /// What it costs where there is no request to look at.
    pub(crate) fn plain_cost(&self) -> u64 {
        match self.cost {
            Some(Cost::Fixed(units)) => units,
            Some(Cost::With(_)) | None => 1,
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name)
            .field("quota", &format_args!("{}", self.quota))
            .field("strategy", &self.counted_by())
            .field("key", &self.extractor())
            .field("missing_key", &self.on_missing_key())
            .field("cost", &self.cost.as_ref().unwrap_or(&Cost::Fixed(1)))
            .field("charge", &self.charge)
            .field("skips", &self.skips)
            .field("shadow", &self.shadow)
            .field("on_store_error", &self.on_store_error)
            .finish()
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(units) => write!(f, "Fixed({units})"),
            Self::With(_) => f.write_str("With(..)"),
        }
    }
}
