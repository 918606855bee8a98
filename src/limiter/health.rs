//! The health checks of a limiter: tasks of their own, whose reports several callers share.

use std::{
    future::ready,
    sync::Mutex,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{self, Handle},
    sync::watch,
};

use super::policy_set::PolicySet;
use crate::{
    error::ConfigError,
    store::{
        HealthFuture,
        health::{HealthReport, HealthWarning},
    },
    sync::lock,
};

/// The health checks of a limiter's store: at most one at a time in each runtime.
#[derive(Debug, Default)]
pub(crate) struct HealthChecks(Mutex<Vec<HealthCheck>>);

/// A check that is running or done.
#[derive(Debug)]
struct HealthCheck {
    /// Another runtime may not be driven while a caller waits.
    runtime: runtime::Id,
    /// The report, and when it was made. The sender is dropped without one if the task ends with its runtime.
    report: watch::Receiver<Option<(Instant, HealthReport)>>,
}

impl HealthChecks {
    /// The report of the check that is running, or of one that ended less than `max_age` ago, or else of a new one. A check ends
    /// by itself, whatever becomes of its callers.
    pub(crate) async fn report(
        &self,
        max_age: Duration,
        check: impl Fn() -> HealthFuture,
    ) -> HealthReport {
        let Ok(runtime) = Handle::try_current() else {
            return check().await;
        };
        let mut shared = self.running_or_recent(&runtime, max_age, &check);
        let report = shared.wait_for(Option::is_some).await;
        let report = report.ok().and_then(|done| done.clone());
        match report {
            Some((_, report)) => report,
            None => check().await,
        }
    }

    fn running_or_recent(
        &self,
        runtime: &Handle,
        max_age: Duration,
        check: impl FnOnce() -> HealthFuture,
    ) -> watch::Receiver<Option<(Instant, HealthReport)>> {
        let mut checks = lock(&self.0);
        checks.retain(|check| check.is_running() || check.is_recent(max_age));
        let is_shared =
            |check: &&HealthCheck| check.is_recent(max_age) || check.runtime == runtime.id();
        if let Some(shared) = checks.iter().find(is_shared) {
            return shared.report.clone();
        }
        let (sender, report) = watch::channel(None);
        checks.push(HealthCheck {
            runtime: runtime.id(),
            report: report.clone(),
        });
        drop(checks);
        // A runtime that is shutting down drops spawned tasks at once: not under the lock.
        let check = check();
        drop(runtime.spawn(async move {
            let report = check.await;
            sender.send_replace(Some((Instant::now(), report)));
        }));
        report
    }
}

impl HealthCheck {
    fn is_running(&self) -> bool {
        self.report.has_changed().is_ok() && self.report.borrow().is_none()
    }

    fn is_recent(&self, max_age: Duration) -> bool {
        let report = self.report.borrow();
        let done = report.as_ref();
        done.is_some_and(|(at, _)| at.elapsed() < max_age)
    }
}

/// The report of a health check that ended less than `max_age` ago, or else of a new one, of a limiter with these policies.
pub(super) async fn recent_health(
    checks: &HealthChecks,
    set: &PolicySet,
    max_age: Duration,
) -> HealthReport {
    let check = || {
        let limits = set.policies.iter().map(|bound| bound.limit.clone());
        match set.store.admin() {
            Some(admin) => admin.health_check(&limits.collect::<Vec<_>>()),
            None => Box::pin(ready(HealthReport::default())),
        }
    };
    let mut report = checks.report(max_age, check).await;
    for bound in &set.policies {
        if let Some(invalid) = bound.other_quotas.uncountable() {
            let error = ConfigError::of(bound.policy.name(), invalid);
            report = report.with_warning(HealthWarning::UncountableQuota { error });
        }
    }
    for bound in &set.policies {
        if bound.state.missing_keys.shares_by_mistake() {
            report = report.with_warning(HealthWarning::SharedBucket {
                policy: bound.policy.shared_name(),
                remedy: bound.policy.extractor().missing_key_hint().into(),
            });
        }
    }
    report
}
