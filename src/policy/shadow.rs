//! Policies that are evaluated and not enforced.

use super::Policy;

impl Policy {
    /// Evaluates this policy without enforcing it: a request that it would reject is not rejected by it, and its result is
    /// among the decision's [shadows](crate::Decision::shadows). Of the requests that the enforced policies admit, it charges
    /// those that it would admit too. Responses don't mention it, and it is skipped for a request without a key.
    /// [`Limiter::shadow_stats`](crate::Limiter::shadow_stats) counts how many requests it would have rejected.
    ///
    /// Counts belong to the policy's name: those of a policy that becomes a shadow, or is one no longer, stay.
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
    /// assert_eq!((stats.evaluated, stats.would_reject), (3, 2));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Whether it is evaluated and not enforced.
    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow
    }
}
