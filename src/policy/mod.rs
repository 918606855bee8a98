//! A named rule: how much, counted how, for whom, at what cost.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use http::{Method, request::Parts};

use self::{on_store_error::OnStoreError, skip::Skips};
use crate::{
    charge::{Charge, When},
    extract::{self, KeyExtractor, MissingKey},
    key::Key,
    quota::Quota,
    store::CounterMode,
    strategy::{Concurrency, Gcra, Strategy},
};

mod checks;
pub(crate) mod on_store_error;
pub(crate) mod skip;

/// A named rule: a quota, how it is counted, who is asking, and what a request costs.
///
/// Unless told otherwise it counts by [client address](extract::peer), with [`Gcra`] ([`Concurrency`] for requests in
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
    extractor: Arc<dyn KeyExtractor>,
    missing: Option<MissingKey>,
    cost: Cost,
    caller: Option<Arc<dyn KeyExtractor>>,
    pub(crate) charge: Charge,
    tiers: Tiers,
    tier_quotas: Vec<Quota>,
    skips: Skips,
    shadow: Option<Shadow>,
    pub(crate) on_store_error: Option<OnStoreError>,
}

/// How a policy is judged that isn't enforced.
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
    /// The name stands in headers, logs and keys: visible ASCII, at most 64 characters, without `"` and `\`. Policies
    /// of the same name in the same store share their counts.
    pub fn new(name: impl Into<Arc<str>>, quota: Quota) -> Self {
        Self {
            name: name.into(),
            quota,
            strategy: None,
            extractor: Arc::new(extract::peer()),
            missing: None,
            cost: Cost::Fixed(1),
            caller: None,
            charge: Charge::default(),
            tiers: Tiers::None,
            tier_quotas: Vec::new(),
            skips: Skips::default(),
            shadow: None,
            on_store_error: None,
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
        self.extractor = Arc::new(extractor);
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
        self.cost = Cost::Fixed(units);
        self
    }

    /// Charges each request what `cost` says. It may say any number, also one that is up to the client, such as a body's
    /// length: what costs more than the quota's capacity is refused, and is told no time to come back. Calls by hand take
    /// [`Check::parts`](crate::Check::parts), or a cost of their own.
    #[must_use]
    pub fn cost_with<F>(mut self, cost: F) -> Self
    where
        F: Fn(&Parts) -> u64 + Send + Sync + 'static,
    {
        self.cost = Cost::With(Arc::new(cost));
        self
    }

    /// Signs each charge with what `extractor` finds in its request, in place of the policy's own key: for strategies
    /// that remember who called, such as [`ListWindow`](crate::ListWindow).
    #[must_use]
    pub fn caller(mut self, extractor: impl KeyExtractor) -> Self {
        self.caller = Some(Arc::new(extractor));
        self
    }

    /// Doesn't apply to requests to this path, as the client sent it and without its query. `/static/*` is all beneath
    /// `/static/`.
    ///
    /// # Conditions
    ///
    /// | | the policy applies |
    /// |---|---|
    /// | `skip_path`, [`skip_method`](Policy::skip_method), [`skip_with`](Policy::skip_with) | unless one of them matches |
    /// | [`only_path`](Policy::only_path) | if one of these paths matches |
    /// | [`only_method`](Policy::only_method) | if it is one of these methods |
    /// | [`only_with`](Policy::only_with) | if all of these functions are true |
    ///
    /// All of the conditions that are set have to hold. Paths are the original ones, also within a nested axum router,
    /// where `parts.uri` is the rest of the path: functions read [`extract::original_path`].
    ///
    /// Where servers may differ in how they read a path, the policy applies. So a path is never skipped that has segments
    /// `.` or `..`, a `;`, a backslash, one of them or a `/`, `%` or NUL in percent-encoding, or percent-encoding that is no
    /// UTF-8; and `only_path("/login")` applies to `/%6Cogin`, `/login;a=b` and whatever has `..` in it. A condition's own
    /// path with any of these is a [`ConfigError`](crate::ConfigError).
    ///
    /// A [`check`](crate::Limiter::check) by hand knows of the request what [`Check::parts`](crate::Check::parts) says. Without it,
    /// a policy with conditions has to be named with its key, or the check is rejected.
    ///
    /// ```
    /// use tollgate::{Policy, Quota};
    ///
    /// let login = Policy::new("login", Quota::requests(5).per_minute())
    ///     .only_path("/login")
    ///     .only_method(http::Method::POST);
    /// let burst = Policy::new("burst", Quota::requests(10).per_second())
    ///     .skip_path("/health")
    ///     .skip_path("/static/*")
    ///     .skip_method(http::Method::HEAD)
    ///     .skip_with(|parts| parts.headers.contains_key("x-internal"));
    /// ```
    #[must_use]
    pub fn skip_path(mut self, path: impl AsRef<str>) -> Self {
        self.skips.add_path(path.as_ref());
        self
    }

    /// Doesn't apply to requests by this method. See [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn skip_method(mut self, method: Method) -> Self {
        self.skips.add_method(method);
        self
    }

    /// Doesn't apply to requests of which `condition` is true. See [`skip_path`](Policy::skip_path); within a
    /// nested axum router the path is [`extract::original_path`], not that of `parts.uri`.
    #[must_use]
    pub fn skip_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skips.add(condition);
        self
    }

    /// Applies only to requests to this path, or to another one that is given so; `/admin/*` is all beneath `/admin/`. See
    /// [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn only_path(mut self, path: impl AsRef<str>) -> Self {
        self.skips.only_path(path.as_ref());
        self
    }

    /// Applies only to requests by this method, or by another one that is given so. See
    /// [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn only_method(mut self, method: Method) -> Self {
        self.skips.only_method(method);
        self
    }

    /// Applies only to requests of which `condition` is true, and all others that are given so. See
    /// [`skip_path`](Policy::skip_path); within a nested axum router the path is [`extract::original_path`], not
    /// that of `parts.uri`.
    #[must_use]
    pub fn only_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skips.only_with(condition);
        self
    }

    /// Judges by this policy and enforces nothing: a request that it would refuse passes, and its verdict is among the
    /// decision's [shadows](crate::Decision::shadows). It charges what it would let in, as if it stood beside the
    /// others; clients are told nothing of it, and one that finds no key is skipped. How often it would have changed the
    /// answer is [counted](crate::Limiter::shadow_stats).
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("live", Quota::requests(100).per_minute()))
    ///     .policy(Policy::new("stricter", Quota::requests(1).per_minute()).shadow())
    ///     .build()?;
    /// for _ in 0..3 {
    ///     assert!(limiter.check(Key::new("alice")).await.is_admitted());
    /// }
    /// let stats = limiter.shadow_stats("stricter").unwrap();
    /// assert_eq!((stats.evaluated, stats.stricter, stats.looser), (3, 2, 0));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = Some(Shadow { of: None });
        self
    }

    /// A candidate for the place of the policy of that name: judged as [`shadow`](Policy::shadow) has it, but as if it
    /// stood where the live one does. So it charges what it would let in, also where the live one refuses, and may be
    /// looser as well as stricter. In a [`check`](crate::Limiter::check) its key is the live one's unless it is named.
    /// Of equal requests that are judged together, in one call or merged on their way to Redis, it lets in as many as the other
    /// policies have room for together, though the live one rejects them.
    #[must_use]
    pub fn shadow_of(mut self, live: impl Into<Arc<str>>) -> Self {
        self.shadow = Some(Shadow {
            of: Some(live.into()),
        });
        self
    }

    /// Gives each request the quota that `find` says, such as its caller's tier's; the policy's own if it says none.
    ///
    /// A caller whose quota changes keeps what was used (`docs/changing-policies.md` says how it is read under the new
    /// one). A quota that the strategy can't count is logged as an error, and the policy's own is used; name those that are
    /// known beforehand in [`tier_quotas`](Policy::tier_quotas). Calls by hand take [`Check::parts`](crate::Check::parts), or
    /// [`Check::quota_for`](crate::Check::quota_for).
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract};
    ///
    /// #[derive(Clone)]
    /// struct Paid;
    ///
    /// let policy = Policy::new("api", Quota::requests(10).per_minute())
    ///     .key(extract::header("x-api-key"))
    ///     .quota_with(|parts| {
    ///         let paid = parts.extensions.get::<Paid>().is_some();
    ///         paid.then(|| Quota::requests(1_000).per_minute())
    ///     });
    /// ```
    #[must_use]
    pub fn quota_with<F>(mut self, find: F) -> Self
    where
        F: Fn(&Parts) -> Option<Quota> + Send + Sync + 'static,
    {
        self.tiers = Tiers::Found(Arc::new(find));
        self
    }

    /// Gives each request the quota that a look-up finds, such as in a database; the policy's own if it finds none, or
    /// takes longer than `timeout`. The look-up is made for every request, so let it keep what it found for a while.
    ///
    /// One that takes longer runs on in the background, on tokio's current runtime, so that what it keeps is there for the next
    /// request. At most 64 do so at a time in a process; others are dropped.
    #[must_use]
    pub fn quota_lookup<F, L>(mut self, timeout: Duration, look_up: F) -> Self
    where
        F: Fn(&Parts) -> L + Send + Sync + 'static,
        L: Future<Output = Option<Quota>> + Send + 'static,
    {
        let look_up = move |parts: &Parts| -> LookUp { Box::pin(look_up(parts)) };
        self.tiers = Tiers::LookedUp(Arc::new(look_up), timeout);
        self
    }

    /// Declares the quotas that requests may come with, by [`quota_with`](Policy::quota_with),
    /// [`quota_lookup`](Policy::quota_lookup) or [`Check::quota_for`](crate::Check::quota_for). One that the strategy can't count
    /// is an error when the limiter is built, not a log line.
    ///
    /// All tiers of a policy share a caller's count. [`Gcra`] and [`TokenBucket`](crate::TokenBucket) keep it as time, and cut
    /// what is deeper than any debt (it was left by a clock that stepped back, or by another quota). The deepest debt is twice
    /// the longest refill of the tiers that are declared here or that this process has met: one that is neither may lose a
    /// caller's debt when the caller is rejected or peeked at under a much shorter tier. Under every other strategy a tier has
    /// the policy's own period, or a rejection under a shorter one would end or shrink what is counted under a longer one: a
    /// declared tier of another period is a [`ConfigError`](crate::ConfigError), and a request that comes with one is counted
    /// by the policy's own quota, with an error in the log every 10 s at most.
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let paid = Quota::requests(10_000).per_day();
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("api", Quota::requests(10).per_minute()).tier_quotas([paid]))
    ///     .build()?;
    /// let decision = limiter.check(Key::new("alice")).quota_for("api", paid).cost(10_000).await;
    /// assert!(decision.is_admitted());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tier_quotas(mut self, quotas: impl IntoIterator<Item = Quota>) -> Self {
        self.tier_quotas.extend(quotas);
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
        &*self.extractor
    }

    pub(crate) fn on_missing_key(&self) -> MissingKey {
        self.missing
            .unwrap_or_else(|| self.extractor.on_missing_key())
    }

    pub(crate) fn cost_of(&self, parts: &Parts) -> u64 {
        match &self.cost {
            Cost::Fixed(units) => *units,
            Cost::With(cost) => cost(parts),
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
        matches!(self.cost, Cost::With(_))
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
            Cost::Fixed(units) => units,
            Cost::With(_) => 1,
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name)
            .field("quota", &format_args!("{}", self.quota))
            .field("strategy", &self.counted_by())
            .field("key", &self.extractor)
            .field("missing_key", &self.on_missing_key())
            .field("cost", &self.cost)
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
