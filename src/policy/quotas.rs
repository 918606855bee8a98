//! Quotas by request, such as those of a caller's tier.

use std::{borrow::Cow, sync::Arc};

use http::request::Parts;

use super::Policy;
use crate::{quota::Quota, shared_fn::SharedFn};

/// Returns the name of a request's tier.
pub type TierFn = dyn Fn(&Parts) -> Option<Cow<'static, str>> + Send + Sync;

/// Returns a request's quota.
pub type QuotaFn = dyn Fn(&Parts) -> Option<Quota> + Send + Sync;

/// The quota of a request, in place of the policy's own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum QuotaByRequest {
    /// What a function returns for the request's head; the policy's own for `None`.
    Function(SharedFn<QuotaFn>),
    /// The quota of the tier whose name a function returns for the request's head; the policy's own for `None` and for another name.
    Tier {
        /// The function.
        find: SharedFn<TierFn>,
        /// The tiers' names and quotas.
        quotas: Vec<(String, Quota)>,
    },
}

impl Policy {
    /// Sets the quota of each request to the one that `find` returns for its head, such as that of its caller's tier. If it
    /// returns `None`, the policy's own quota applies. `find` runs on the request path and must not block: look tiers up in a
    /// middleware in front of the limiter that puts them into the request's extensions, as `examples/tiers.rs` does.
    ///
    /// A caller whose quota changes keeps its usage ([how it is read under the new
    /// quota](crate::strategy#changing-a-live-policy)). A quota of 0 admits nothing, for as long as the caller is
    /// suspended: the response is 429 without `Retry-After`. Nothing is admitted either under a quota that the strategy can't count, which
    /// is logged as an error and reported by [`health_check`](crate::Limiter::health_check); declare quotas that are known beforehand by
    /// [`tier_quotas`](Policy::tier_quotas). Calls by hand set [`Check::parts`](crate::limiter::Check::parts) or [`Check::quota_for`](crate::limiter::Check::quota_for).
    ///
    /// ```
    /// use http::Request;
    /// use tollgate::{Limiter, Policy, Quota, extract};
    ///
    /// /// Inserted by the middleware that authenticates callers.
    /// #[derive(Clone)]
    /// struct Paid;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::new("api", Quota::requests(10).per_minute())
    ///     .key(extract::header("x-api-key"))
    ///     .quota_with(|parts| {
    ///         let paid = parts.extensions.get::<Paid>().is_some();
    ///         paid.then(|| Quota::requests(1_000).per_minute())
    ///     });
    /// let limiter = Limiter::builder().policy(policy).build()?;
    /// let request = Request::get("/").header("x-api-key", "sk_1").extension(Paid).body(())?;
    /// let explanation = limiter.explain(&request.into_parts().0).await?;
    /// let api = explanation.policy("api").and_then(|api| api.status()).ok_or("it applies")?;
    /// assert_eq!(api.limit(), 1_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn quota_with<F>(self, find: F) -> Self
    where
        F: Fn(&Parts) -> Option<Quota> + Send + Sync + 'static,
    {
        let find: Arc<QuotaFn> = Arc::new(find);
        self.quota_by(QuotaByRequest::Function(find.into()))
    }

    /// Sets the quota of each request by a shared function, or by its tier. The quotas of tiers are declared, as those of
    /// [`tier_quotas`](Policy::tier_quotas) are.
    #[must_use]
    pub fn quota_by(mut self, quota: QuotaByRequest) -> Self {
        self.quota_by_request = Some(quota);
        self
    }

    /// Declares the quotas that requests may have, by [`quota_with`](Policy::quota_with) or
    /// [`Check::quota_for`](crate::limiter::Check::quota_for). A declared quota that the
    /// strategy can't count is a [`ConfigError`](crate::ConfigError) when the limiter is built, rather than a logged error and rejected requests.
    ///
    /// All tiers of a policy share a caller's count.
    ///
    /// [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) store it as time, and cut a debt that is deeper than any
    /// tier allows (it was left by a clock that stepped back, or by another quota). The deepest debt is twice the longest
    /// refill time of the tiers that are declared here or that this process has seen. So declare the tiers with long refills:
    /// otherwise a rejection under a much shorter tier may cut a caller's debt.
    ///
    /// Under every other strategy a tier must have the policy's own period, since a rejection under a shorter period would end
    /// or shrink the window of a longer one: a declared tier of another period is a [`ConfigError`](crate::ConfigError), and a
    /// request with an undeclared one is rejected, with an error in the log at most every 10 s.
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

    /// The quota of a request, if a function returns it: its own, or that of its tier.
    pub(crate) fn quota_in_request(&self, parts: &Parts) -> Option<Quota> {
        match self.quota_by_request.as_ref()? {
            QuotaByRequest::Function(find) => find(parts),
            QuotaByRequest::Tier { find, quotas } => {
                let tier = find(parts)?;
                let mut quotas = quotas.iter();
                quotas.find_map(|(name, quota)| (*name == tier).then_some(*quota))
            }
        }
    }

    /// Whether the quota is a function of the request.
    pub(crate) fn has_quota_of_request(&self) -> bool {
        self.quota_by_request.is_some()
    }

    /// The quotas that requests may have: those that are declared, then those of tiers.
    pub(crate) fn declared_quotas(&self) -> impl Iterator<Item = &Quota> {
        let tiers = match &self.quota_by_request {
            Some(QuotaByRequest::Tier { quotas, .. }) => &**quotas,
            Some(QuotaByRequest::Function(_)) | None => &[],
        };
        let tiers = tiers.iter().map(|(_, quota)| quota);
        self.tier_quotas.iter().chain(tiers)
    }
}
