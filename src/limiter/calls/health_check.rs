use crate::{
    limiter::{Bound, Limiter, write_back::Shares},
    store::{LimitHandle, health::HealthReport},
};

impl Limiter {
    /// Checks the store's server, and tries every policy on a key of its own, which is removed at once: every operation on a
    /// key, and each command that they need. For the start of an application, and for its health checks: it costs some
    /// ten round trips for each policy.
    ///
    /// A Redis server that doesn't respond is waited for for one second, or for the store's
    /// timeout if that is longer; on a cluster each node in turn, and its slots for up to
    /// five seconds. A server that has responded gets up to five seconds for each further round trip, so that a slow one is
    /// checked to the end; the first that it doesn't answer ends its check. A probe with less time wraps the call in
    /// `tokio::time::timeout`: dropping it is harmless.
    ///
    /// It finds what would show only later, such as a right that a policy lacks, or counts that are silently forgotten:
    /// each is a [`HealthIssue`](crate::HealthIssue).
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .build()?;
    /// for problem in limiter.health_check().await.issues() {
    ///     eprintln!("{problem}");
    /// }
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn health_check(&self) -> HealthReport {
        let inner = self.desks.inner();
        let limits = inner.policies.iter().flat_map(Bound::limits);
        let asked = inner.store.health_check(&limits.collect::<Vec<_>>());
        let mut health = asked.await;
        let dropped = inner.shares.as_ref().map_or(0, Shares::dropped);
        health.add_dropped_write_backs(dropped);
        health
    }
}

impl Bound {
    /// Its own limit, and those of quotas that requests brought along.
    fn limits(&self) -> Vec<LimitHandle> {
        let tiers = self.tiers.limits();
        std::iter::once(self.limit.clone()).chain(tiers).collect()
    }
}
