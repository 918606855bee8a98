use std::time::Duration;

use crate::{
    limiter::{Limiter, core::BoundPolicy},
    store::{
        LimitHandle,
        health::{HealthReport, HealthWarning},
    },
};

impl Limiter {
    /// Checks the store's servers, and tries every operation of every policy, with each command it needs, on a key of its own,
    /// which is removed at the end, or after ten seconds if the check is cut off. For the start of an application and its health
    /// checks: it costs about ten round trips per policy.
    ///
    /// It waits one second for the first response of a Redis server, or the store's timeout if that is longer; on a cluster for
    /// each node in turn, and up to five seconds for the slot map. A server that has responded gets up to five seconds for each
    /// further round trip, so that a slow server is checked to the end; its first missing response ends its check.
    ///
    /// The check runs in a task of its own. While one is running in a runtime, further calls there wait for its report. So dropping
    /// the future cancels nothing and leaves no key behind: a health check with less time wraps it in `tokio::time::timeout`.
    ///
    /// It finds problems that would show only later, such as a missing permission, or counts that are silently evicted. Each is
    /// a [`HealthIssue`](crate::HealthIssue) of the report; a store that can't be reached is one too. Requests that share a bucket
    /// because they lack a client address are a [`HealthWarning`](crate::HealthWarning).
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .build()?;
    /// let report = limiter.health_check().await;
    /// for issue in report.issues() {
    ///     eprintln!("{issue}");
    /// }
    /// assert!(report.is_healthy());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn health_check(&self) -> HealthReport {
        self.recent_health(Duration::ZERO).await
    }

    /// The report of a health check that ended less than `max_age` ago, or else of a new one.
    pub(crate) async fn recent_health(&self, max_age: Duration) -> HealthReport {
        let core = self.local_ref();
        let check = || {
            let limits = core.policies.iter().flat_map(BoundPolicy::limits);
            core.store.health_check(&limits.collect::<Vec<_>>())
        };
        let mut report = core.health_checks.report(max_age, check).await;
        let dropped = core
            .local_shares
            .as_ref()
            .map_or(0, |shares| shares.dropped());
        report.add_dropped_write_backs(dropped);
        let sharing = core.policies.iter();
        let sharing = sharing.filter(|bound| bound.missing_keys.shares_by_mistake());
        sharing.fold(report, |report, bound| {
            report.with_warning(HealthWarning::SharedBucket {
                policy: bound.policy.shared_name(),
                remedy: bound.policy.extractor().missing_key_hint().into(),
            })
        })
    }
}

impl BoundPolicy {
    /// The limit of the policy's own quota, and those of quotas by request.
    fn limits(&self) -> Vec<LimitHandle> {
        let overrides = self.quota_overrides.limits();
        std::iter::once(self.limit.clone())
            .chain(overrides)
            .collect()
    }
}
