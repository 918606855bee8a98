//! The health of a store.

use std::{sync::Arc, time::Duration};

use crate::error::{ConfigError, Escaped, StoreError};

/// The result of [`Limiter::health_check`](crate::Limiter::health_check): the problems of a store.
///
/// Stores build it from the [default](HealthReport::default), which has no issues, by its `with_` methods.
#[derive(Clone, Debug, Default)]
pub struct HealthReport {
    issues: Vec<HealthIssue>,
    unlisted_issues: u64,
    warnings: Vec<HealthWarning>,
    unchecked: Vec<&'static str>,
    dropped_refunds: u64,
    unconfirmed: u64,
}

/// Upper bound of the problems that a report lists.
const MAX_ISSUES: usize = 100;

/// A problem of a store, or one that will show later. Its text names the server or policy, what was found, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HealthIssue {
    /// The store can't be reached, does not respond, or refuses the connection.
    #[error("{server} can't be used: {error}{}", remedy_of(.error))]
    Unreachable {
        /// The store, or one of its servers.
        server: Arc<str>,
        /// Why.
        error: StoreError,
    },
    /// A policy can't be counted: a trial operation on a key of its own failed.
    #[error("policy {policy:?} can't be counted on {server}: {error}")]
    PolicyFailed {
        /// The policy's name.
        policy: Arc<str>,
        /// The store, or one of its servers.
        server: Arc<str>,
        /// Why.
        error: StoreError,
    },
    /// The Redis user lacks permission for a command that counting under a policy needs, which servers from Redis 7.2 on
    /// name.
    #[error("policy {policy:?} lacks a permission on {server}: {}", Escaped(.message))]
    MissingPermission {
        /// The policy's name.
        policy: Arc<str>,
        /// The store, or one of its servers.
        server: Arc<str>,
        /// The server's words.
        message: Arc<str>,
    },
    /// A server is older than Redis 6.2.
    #[error("{server} is Redis {}; 6.2 or newer is required", Escaped(.version))]
    UnsupportedVersion {
        /// The server.
        server: Arc<str>,
        /// Its version.
        version: Arc<str>,
    },
    /// A server evicts keys when its memory is full, and a client whose key is evicted has its full quota again.
    #[error(
        "{server} evicts counts when its memory is full: maxmemory-policy is {}; set it to noeviction",
        Escaped(.policy)
    )]
    EvictionEnabled {
        /// The server.
        server: Arc<str>,
        /// Its `maxmemory-policy`.
        policy: Arc<str>,
    },
    /// A server is a replica, which is read-only.
    #[error("{server} is a read-only replica; connect to its master")]
    Replica {
        /// The server.
        server: Arc<str>,
    },
    /// A server is a node of a cluster, but the store is configured for a single server: requests whose keys are in several
    /// slots, or on another node, fail.
    #[error("{server} is a node of a cluster: use RedisStore::cluster")]
    ClusterNode {
        /// The server.
        server: Arc<str>,
    },
    /// A server's clock differs from this machine's by more than a second. Limits are counted by the server's clock, and dates
    /// in responses follow it.
    #[error("the clock of {server} is {by:?} {} this machine's; synchronize both clocks", if *.ahead { "ahead of" } else { "behind" })]
    ClockSkew {
        /// The server.
        server: Arc<str>,
        /// The difference.
        by: Duration,
        /// Whether the server's clock is ahead.
        ahead: bool,
    },
}

/// A mistake of the application under which limits hold, though not as meant. Its text says what was found, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HealthWarning {
    /// The last request under a policy had no client address, and shares one bucket with all others without one.
    #[error("requests under policy {policy:?} share one bucket: {remedy}")]
    SharedBucket {
        /// The policy's name.
        policy: Arc<str>,
        /// What they lack, and what to do: the extractor's
        /// [`missing_key_hint`](crate::extract::KeyExtractor::missing_key_hint).
        remedy: Arc<str>,
    },
    /// A request had a quota that the policy's strategy can't count, and was rejected: see
    /// [`Policy::quota_with`](crate::Policy::quota_with).
    #[error("requests whose quota can't be counted are rejected: {error}")]
    UncountableQuota {
        /// The policy, the quota, and what would be valid.
        error: ConfigError,
    },
}

/// The end of a problem's text: what to do about an error, if that is known.
fn remedy_of(error: &StoreError) -> String {
    let remedy = error.remedy().map(|remedy| format!("; {remedy}"));
    remedy.unwrap_or_default()
}

impl HealthReport {
    /// Whether there are no issues. Warnings, and refunds that were dropped or not confirmed are none.
    pub fn is_healthy(&self) -> bool {
        self.issues.is_empty()
    }

    /// The problems that were found, up to 100. Equal ones, such as those of all [tiers](crate::Policy::tier_quotas) of a policy,
    /// are listed once.
    pub fn issues(&self) -> &[HealthIssue] {
        &self.issues
    }

    /// The number of problems beyond those that are listed, equal ones included.
    pub fn unlisted_issues(&self) -> u64 {
        self.unlisted_issues
    }

    /// The mistakes of the application that were found. They don't make a report unhealthy: every process of the application has
    /// them, and another one is no better.
    pub fn warnings(&self) -> &[HealthWarning] {
        &self.warnings
    }

    /// The checks that were skipped, because the server refuses commands that counting doesn't need: `version`, `eviction` and
    /// `role` (`INFO`), `clock` (`TIME`); and `blocks`, if the limiter has a ban and the user may not list [blocked keys](crate::Limiter::blocks) (`+scan` on Redis).
    pub fn unchecked(&self) -> &[&'static str] {
        &self.unchecked
    }

    /// The number of refunds, charges and settlements without a waiter that the store has dropped since it was built: they came
    /// while it failed and 10,000 were kept already, while [too many requests](StoreError::Overloaded) waited, or can't be done under their
    /// key. Their units come back with time. Releases of permits are kept beyond 10,000.
    pub fn dropped_refunds(&self) -> u64 {
        self.dropped_refunds
    }

    /// The number of refunds, charges and settlements without a waiter that were sent since the store was built and got no
    /// response: whether they were done is unknown, and they are not sent again.
    pub fn unconfirmed(&self) -> u64 {
        self.unconfirmed
    }

    /// This report with another issue.
    #[must_use]
    pub fn with_issue(mut self, issue: HealthIssue) -> Self {
        self.add_issue(issue);
        self
    }

    /// This report with another warning.
    #[must_use]
    pub fn with_warning(mut self, warning: HealthWarning) -> Self {
        self.warnings.push(warning);
        self
    }

    /// This report with another skipped check.
    #[must_use]
    pub fn with_unchecked(mut self, what: &'static str) -> Self {
        self.add_unchecked(what);
        self
    }

    /// This report with `refunds` more dropped refunds.
    #[must_use]
    pub fn with_dropped_refunds(mut self, refunds: u64) -> Self {
        self.dropped_refunds = self.dropped_refunds.saturating_add(refunds);
        self
    }

    /// This report with `operations` more [unconfirmed](Self::unconfirmed) operations.
    #[must_use]
    pub fn with_unconfirmed(mut self, operations: u64) -> Self {
        self.unconfirmed = self.unconfirmed.saturating_add(operations);
        self
    }

    pub(crate) fn add_issue(&mut self, issue: HealthIssue) {
        let text = issue.to_string();
        if self.issues.iter().any(|listed| listed.to_string() == text) {
            return;
        }
        if self.issues.len() < MAX_ISSUES {
            self.issues.push(issue);
        } else {
            self.unlisted_issues = self.unlisted_issues.saturating_add(1);
        }
    }

    pub(crate) fn add_unchecked(&mut self, what: &'static str) {
        if !self.unchecked.contains(&what) {
            self.unchecked.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_issues_are_listed_once_and_the_others_up_to_a_bound() {
        let failed = |policy: usize| HealthIssue::PolicyFailed {
            policy: format!("p{policy}").into(),
            server: "redis-1".into(),
            error: StoreError::timeout(),
        };
        let report = (0..3 * MAX_ISSUES).fold(HealthReport::default(), |report, number| {
            report.with_issue(failed(number / 2))
        });
        let listed: Vec<_> = report.issues().iter().map(ToString::to_string).collect();
        let expected = (0..MAX_ISSUES).map(|policy| failed(policy).to_string());
        assert_eq!(listed, expected.collect::<Vec<_>>());
        assert_eq!(report.unlisted_issues(), 100);
    }
}
