//! Policies that are evaluated and not enforced.

use std::sync::Arc;

use super::{Policy, Shadow};

impl Policy {
    /// Evaluates this policy without enforcing it: a request that it would reject passes, and its result is among the
    /// decision's [shadows](crate::Decision::shadows). It charges what it would admit, as if it were one of the policies.
    /// Responses don't mention it, and it is skipped for a request without a key.
    /// [`Limiter::shadow_stats`](crate::Limiter::shadow_stats) counts how often it would have changed the decision.
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

    /// A candidate to replace the policy of that name: a [`shadow`](Policy::shadow) that is evaluated as if it stood in place
    /// of the live one. It charges what it would admit, also where the live one rejects, and may be looser as well as
    /// stricter. In a [`check`](crate::Limiter::check) its key is the live one's unless it is named. Of equal requests that are
    /// decided together, in one call or merged on their way to Redis, it admits as many as the other policies have room for
    /// together, though the live one rejects them.
    #[must_use]
    pub fn shadow_of(mut self, live: impl Into<Arc<str>>) -> Self {
        self.shadow = Some(Shadow {
            of: Some(live.into()),
        });
        self
    }
}
