//! Quotas by request, such as those of a caller's tier.

use std::{borrow::Cow, future::Future, pin::Pin, sync::Arc, time::Duration};

use http::request::Parts;
use serde::{Deserialize, Serialize};

use super::Policy;
use crate::{
    quota::Quota,
    setting::{CodeId, Slot, values::duration},
};

/// Returns the name of a request's tier.
pub(crate) type TierFn = dyn Fn(&Parts) -> Option<Cow<'static, str>> + Send + Sync;
pub(crate) type QuotaFn = dyn Fn(&Parts) -> Option<Quota> + Send + Sync;
pub(crate) type QuotaLookupFn = dyn Fn(&Parts) -> QuotaLookupFuture + Send + Sync;

/// The look-up of a quota.
pub(crate) type QuotaLookupFuture = Pin<Box<dyn Future<Output = Option<Quota>> + Send>>;

/// An async function that looks up a request's quota.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct QuotaLookup {
    /// The function's registered name.
    pub name: Slot<QuotaLookupFn>,
    /// How long the look-up may take, such as `"50ms"`. After that the policy's own quota applies. Default: 50 ms.
    #[serde(default, with = "duration", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<crate::setting::values::DurationSchema>")
    )]
    pub timeout: Option<Duration>,
}

impl QuotaLookup {
    /// The timeout of a look-up that has none.
    pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);

    pub(super) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(Self::DEFAULT_TIMEOUT)
    }
}

impl Policy {
    /// Sets the quota of each request to the one that `find` returns for its head, such as that of its caller's tier. It replaces
    /// [`quota_lookup`](Policy::quota_lookup). If it
    /// returns `None`, the policy's own quota applies. `find` runs on the request path and must not block.
    ///
    /// A caller whose quota changes keeps its usage ([how it is read under the new
    /// quota](crate::strategy#changing-a-live-policy)). If the strategy can't count a quota, an error is logged and the
    /// policy's own quota applies; declare quotas that are known beforehand by [`tier_quotas`](Policy::tier_quotas). Calls by
    /// hand set [`Check::parts`](crate::limiter::Check::parts) or [`Check::quota_for`](crate::limiter::Check::quota_for).
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
    /// let status = limiter.peek_request(&request.into_parts().0).await?;
    /// assert_eq!(status.policy("api").unwrap().limit(), 1_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn quota_with<F>(self, find: F) -> Self
    where
        F: Fn(&Parts) -> Option<Quota> + Send + Sync + 'static,
    {
        let find = Arc::new(find);
        let id = CodeId::of(&find);
        let mut policy = self.without_tiers();
        policy.settings.quota_with = Some(Slot::filled(find, None, id));
        policy.settings.quota_lookup = None;
        policy
    }

    /// Sets the quota of each request to the result of an async look-up, such as in a database. If the look-up returns `None`
    /// or takes longer than `timeout`, the policy's own quota applies. It runs once for each request and policy that has one,
    /// so it should cache its results, as `examples/tiers.rs` does.
    ///
    /// It can't reject: an unknown caller has the policy's own quota. To reject unknown callers, or for several policies, look
    /// the caller up in a middleware in front of the limiter, put it into the request's extensions, and use
    /// [`extract::extension`](crate::extract::extension) and [`quota_with`](Policy::quota_with), as `examples/llm_tokens.rs`
    /// does.
    ///
    /// A look-up that exceeds `timeout` continues in the background, on the current tokio runtime, so that its cache is filled
    /// for the next request. At most 64 do so at a time in a process; others are dropped. A warning is logged, at most every 10
    /// s. A look-up is dropped with its request, if that is cancelled.
    ///
    /// The future can't borrow from the request's head: copy what it needs before the `async` block.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use http::Request;
    /// use tollgate::{Limiter, Policy, Quota, extract};
    ///
    /// /// Cached by the application.
    /// async fn plan_of(user: String) -> Option<Quota> {
    ///     (user == "alice").then(|| Quota::requests(1_000).per_minute())
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let policy = Policy::new("api", Quota::requests(10).per_minute())
    ///     .key(extract::header("x-user"))
    ///     .quota_lookup(Duration::from_millis(50), |parts| {
    ///         let user = parts.headers.get("x-user").and_then(|user| user.to_str().ok());
    ///         let user = user.unwrap_or_default().to_owned();
    ///         async move { plan_of(user).await }
    ///     });
    /// let limiter = Limiter::builder().policy(policy).build()?;
    /// for (user, limit) in [("alice", 1_000), ("bob", 10)] {
    ///     let request = Request::get("/").header("x-user", user).body(())?;
    ///     let status = limiter.peek_request(&request.into_parts().0).await?;
    ///     assert_eq!(status.policy("api").unwrap().limit(), limit);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Outside of a tokio runtime with timers a lookup that is not ready at once counts as late, and an error is logged.
    #[must_use]
    pub fn quota_lookup<F, L>(self, timeout: Duration, look_up: F) -> Self
    where
        F: Fn(&Parts) -> L + Send + Sync + 'static,
        L: Future<Output = Option<Quota>> + Send + 'static,
    {
        let look_up = move |parts: &Parts| -> QuotaLookupFuture { Box::pin(look_up(parts)) };
        let look_up = Arc::new(look_up);
        let id = CodeId::of(&look_up);
        let mut policy = self.without_tiers();
        policy.settings.quota_lookup = Some(QuotaLookup {
            name: Slot::filled(look_up, None, id),
            timeout: Some(timeout),
        });
        policy.settings.quota_with = None;
        policy
    }

    /// The policy without the tiers of a document, whose quotas stay declared.
    fn without_tiers(mut self) -> Self {
        let tiers = std::mem::take(&mut self.settings.tiers);
        let quotas = tiers.iter().map(|(_, quota)| *quota);
        self.settings.tier_quotas.extend(quotas);
        self.settings.tier = None;
        self
    }

    /// Declares the quotas that requests may have, by [`quota_with`](Policy::quota_with),
    /// [`quota_lookup`](Policy::quota_lookup) or [`Check::quota_for`](crate::limiter::Check::quota_for). A declared quota that the
    /// strategy can't count is a [`ConfigError`](crate::ConfigError) when the limiter is built, rather than a logged error.
    ///
    /// All tiers of a policy share a caller's count.
    ///
    /// [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) store it as time, and cut a debt that is deeper than any
    /// tier allows (it was left by a clock that stepped back, or by another quota). The deepest debt is twice the longest
    /// refill time of the tiers that are declared here or that this process has seen. So declare the tiers with long refills:
    /// otherwise a rejection or peek under a much shorter tier may cut a caller's debt.
    ///
    /// Under every other strategy a tier must have the policy's own period, since a rejection under a shorter period would end
    /// or shrink the window of a longer one: a declared tier of another period is a [`ConfigError`](crate::ConfigError), and a
    /// request with an undeclared one is counted by the policy's own quota, with an error in the log at most every 10 s.
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
        self.settings.tier_quotas.extend(quotas);
        self
    }

    /// The quota of a request, if a function returns it: its own, or that of its tier.
    pub(crate) fn quota_in_request(&self, parts: &Parts) -> Option<Quota> {
        if let Some(find) = self.settings.quota_with.as_ref().and_then(Slot::code) {
            return find(parts);
        }
        let tier = self.settings.tier.as_ref().and_then(Slot::code)?;
        self.settings.tiers.get(&tier(parts)?).copied()
    }

    /// The look-up of a request's quota, with its timeout, if there is one.
    pub(crate) fn look_up_quota(&self, parts: &Parts) -> Option<(QuotaLookupFuture, Duration)> {
        let lookup = self.settings.quota_lookup.as_ref()?;
        let look_up = lookup.name.code()?;
        Some((look_up(parts), lookup.timeout()))
    }

    /// Whether each request's quota is looked up, which may take a while.
    pub(crate) fn looks_up_quota(&self) -> bool {
        self.settings.quota_lookup.is_some()
    }

    /// Whether the quota is a function of the request.
    pub(crate) fn has_quota_of_request(&self) -> bool {
        self.looks_up_quota() || self.settings.quota_with.is_some() || self.settings.tier.is_some()
    }

    /// The quotas that requests may have: those that are declared, then those of tiers.
    pub(crate) fn declared_quotas(&self) -> impl Iterator<Item = &Quota> {
        let tiers = self.settings.tiers.iter().map(|(_, quota)| quota);
        self.settings.tier_quotas.iter().chain(tiers)
    }
}
