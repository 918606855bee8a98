//! Policies that are judged and not enforced.

use std::sync::Arc;

use super::{Policy, Shadow};

impl Policy {
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
}
