//! The health checks of a limiter, whose reports several callers share.

use std::{
    future::ready,
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use super::policy_set::PolicySet;
use crate::{
    error::ConfigError,
    store::{
        HealthFuture,
        health::{HealthReport, HealthWarning},
    },
};

/// The health checks of a limiter's store, one at a time, with the last report.
#[derive(Debug, Default)]
pub(crate) struct HealthChecks(Mutex<Option<LastCheck>>);

#[derive(Debug)]
struct LastCheck {
    began: Instant,
    ended: Instant,
    report: HealthReport,
}

impl HealthChecks {
    /// The report of a check that ended less than `max_age` ago, or has begun since this was called, or else of a new one.
    async fn report(
        &self,
        max_age: Duration,
        check: impl FnOnce() -> HealthFuture,
    ) -> HealthReport {
        let called = Instant::now();
        let mut last = self.0.lock().await;
        if let Some(last) = &*last
            && (last.began >= called || last.ended.elapsed() < max_age)
        {
            return last.report.clone();
        }
        let began = Instant::now();
        let report = check().await;
        *last = Some(LastCheck {
            began,
            ended: Instant::now(),
            report: report.clone(),
        });
        report
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
