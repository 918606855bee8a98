//! Quotas by request, such as those of a caller's tier.

use std::{future::Future, sync::Arc, time::Duration};

use http::request::Parts;

use super::{LookUp, Policy, Tiers};
use crate::quota::Quota;

impl Policy {
    /// Gives each request the quota that `find` says, such as its caller's tier's; the policy's own if it says none.
    ///
    /// A caller whose quota changes keeps what was used ([how it is read under the new
    /// one](crate::strategy#changing-a-live-policy)). A quota that the strategy can't count is logged as an error, and the policy's own is used; name those that are
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
    /// takes longer than `timeout`. The look-up is made once for each request and policy that
    /// has one, so let it cache what it found.
    ///
    /// It can't reject: a stranger has the policy's own quota. To reject strangers, or for several policies, look up in a
    /// middleware in front of the limiter, leave the caller in the request's extensions, and use
    /// [`extract::extension`](crate::extract::extension) and [`quota_with`](Policy::quota_with), as
    /// `examples/llm_tokens.rs` does.
    ///
    /// One that takes longer runs on in the background, on tokio's current runtime, so that what it keeps is there for the next
    /// request. At most 64 do so at a time in a process; others are dropped.
    ///
    /// The future may not borrow from the request's head: take what it needs before the `async` block.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::{Policy, Quota, extract};
    ///
    /// /// Cached by the application.
    /// async fn plan_of(user: String) -> Option<Quota> {
    ///     (user == "alice").then(|| Quota::requests(1_000).per_minute())
    /// }
    ///
    /// let policy = Policy::new("api", Quota::requests(10).per_minute())
    ///     .key(extract::header("x-user"))
    ///     .quota_lookup(Duration::from_millis(50), |parts| {
    ///         let user = parts.headers.get("x-user").and_then(|user| user.to_str().ok());
    ///         let user = user.unwrap_or_default().to_owned();
    ///         async move { plan_of(user).await }
    ///     });
    /// ```
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
    /// All tiers of a policy share a caller's count. [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) keep it as time, and cut
    /// what is deeper than any debt (it was left by a clock that stepped back, or by another quota). The deepest debt is twice
    /// the longest refill of the tiers that are declared here or that this process has met. So declare the tiers with long
    /// refills: without that, a rejection or peek under a much shorter tier may cut a caller's debt. Under every other strategy a tier has
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
}
