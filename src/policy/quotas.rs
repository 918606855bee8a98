//! Quotas by request, such as those of a caller's tier.

use std::{future::Future, sync::Arc, time::Duration};

use http::request::Parts;

use super::{Policy, QuotaFn, QuotaLookupFn, QuotaLookupFuture, QuotaSource};
use crate::{
    quota::Quota,
    setting::{Code, CodeId},
};

impl Policy {
    /// Sets the quota of each request to the one that `find` returns for its head, such as that of its caller's tier. If it
    /// returns `None`, the policy's own quota applies. `find` runs on the request path and must not block.
    ///
    /// A caller whose quota changes keeps its usage ([how it is read under the new
    /// quota](crate::strategy#changing-a-live-policy)). If the strategy can't count a quota, an error is logged and the
    /// policy's own quota applies; declare quotas that are known beforehand by [`tier_quotas`](Policy::tier_quotas). Calls by
    /// hand set [`Check::parts`](crate::Check::parts) or [`Check::quota_for`](crate::Check::quota_for).
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
        self.quota_from(Code::new(find, id))
    }

    /// Sets the quota of each request to the one that `find` returns for its head.
    pub(crate) fn quota_from(mut self, find: Code<QuotaFn>) -> Self {
        self.quota_source = QuotaSource::FromRequest(find);
        self
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
        self.quota_looked_up(timeout, Code::new(look_up, id))
    }

    /// Sets the quota of each request to the result of an async look-up.
    pub(crate) fn quota_looked_up(
        mut self,
        timeout: Duration,
        look_up: Code<QuotaLookupFn>,
    ) -> Self {
        self.quota_source = QuotaSource::Lookup(look_up, timeout);
        self
    }

    /// Declares the quotas that requests may have, by [`quota_with`](Policy::quota_with),
    /// [`quota_lookup`](Policy::quota_lookup) or [`Check::quota_for`](crate::Check::quota_for). A declared quota that the
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
        self.tier_quotas.extend(quotas);
        self
    }
}
