//! The health of a store.

use std::{sync::Arc, time::Duration};

use crate::error::StoreError;

/// The result of [`Limiter::health_check`](crate::Limiter::health_check): what is wrong with the store.
///
/// Stores build it from the [default](HealthReport::default), which has no issues, by its `with_` methods.
#[derive(Clone, Debug, Default)]
pub struct HealthReport {
    issues: Vec<HealthIssue>,
    unchecked: Vec<&'static str>,
    dropped_refunds: u64,
    unconfirmed: u64,
    dropped_write_backs: u64,
}

/// Something that is wrong with a store, or will be.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HealthIssue {
    /// It can't be reached, or does not answer.
    #[error("{server} can't be reached: {error}")]
    Unreachable {
        /// The store, or one of its servers.
        server: Arc<str>,
        /// Why.
        error: StoreError,
    },
    /// A policy can't be counted: a trial on a key of its own failed.
    #[error("policy {policy:?} can't be counted on {server}: {error}")]
    PolicyFailed {
        /// The policy's name.
        policy: Arc<str>,
        /// The store, or one of its servers.
        server: Arc<str>,
        /// Why.
        error: StoreError,
    },
    /// The Redis user may not run commands that a policy needs; the message names them. They may be needed only at times,
    /// such as to refund, or to repair a missing TTL.
    #[error("policy {policy:?} lacks a right on {server}: {message}")]
    MissingPermission {
        /// The policy's name.
        policy: Arc<str>,
        /// The store, or one of its servers.
        server: Arc<str>,
        /// The server's words.
        message: Arc<str>,
    },
    /// The Redis user may not use the key whose change invalidates cached rejections: they hold for as long as
    /// `RedisStoreBuilder::rejection_cache_staleness` allows. If the key is forbidden, and not a command, refunds and resets
    /// fail.
    #[error(
        "rejections are not cached for long, and refunds may fail, without {key:?} on {server}: {message}"
    )]
    NoInvalidationKey {
        /// The store, or one of its servers.
        server: Arc<str>,
        /// The key.
        key: Arc<str>,
        /// The server's words.
        message: Arc<str>,
    },
    /// A server is older than 6.2.
    #[error("{server} is Redis {version}, and 6.2 is the oldest that is supported")]
    UnsupportedVersion {
        /// The server.
        server: Arc<str>,
        /// Its version.
        version: Arc<str>,
    },
    /// A server that is full evicts keys: a client that has used up its quota has all of it again.
    #[error(
        "{server} forgets counts when its memory is full: maxmemory-policy {policy}, and not noeviction"
    )]
    EvictionEnabled {
        /// The server.
        server: Arc<str>,
        /// Its `maxmemory-policy`.
        policy: Arc<str>,
    },
    /// A server is a replica, which can't be written to.
    #[error("{server} is a replica: it can't be written to")]
    Replica {
        /// The server.
        server: Arc<str>,
    },
    /// A server is a node of a cluster, and the store is configured for a single server: requests whose keys are in several
    /// slots, or on another node, fail.
    #[error("{server} is a node of a cluster: use RedisStore::cluster")]
    ClusterNode {
        /// The server.
        server: Arc<str>,
    },
    /// A server's clock is far from this machine's. Limits are counted by the server's, and dates in responses follow it.
    #[error("the clock of {server} is {} than this machine's by {by:?}", if *.ahead { "later" } else { "earlier" })]
    ClockSkew {
        /// The server.
        server: Arc<str>,
        /// By how much.
        by: Duration,
        /// Whether it shows a later time.
        ahead: bool,
    },
}

impl HealthReport {
    /// Whether nothing is wrong now. Refunds and write-backs that were dropped in the past don't count.
    pub fn is_healthy(&self) -> bool {
        self.issues.is_empty()
    }

    /// What is wrong.
    pub fn issues(&self) -> &[HealthIssue] {
        &self.issues
    }

    /// What could not be checked, because a permission is missing that counting doesn't need: `version`, `eviction`, `role`.
    pub fn unchecked(&self) -> &[&'static str] {
        &self.unchecked
    }

    /// Refunds, charges and settlements that nothing waited for, and that the store has dropped since it was built: they came
    /// while it was at fault, when 10,000 waited already, or can't be done under their key.
    /// Their units come back with time. Refunds of permits that this process held are never dropped.
    pub fn dropped_refunds(&self) -> u64 {
        self.dropped_refunds
    }

    /// Refunds, charges and settlements that nothing waited for, and that the store has not answered since it was built:
    /// whether they were done is not known, and they are not sent again.
    pub fn unconfirmed(&self) -> u64 {
        self.unconfirmed
    }

    /// Charges in process that the limiter has dropped from its [write-back](crate::LocalFallback::write_back) since it was
    /// built: they came when 10,000 other keys were queued. They count in process alone.
    pub fn dropped_write_backs(&self) -> u64 {
        self.dropped_write_backs
    }

    /// This report with one more issue.
    #[must_use]
    pub fn with_issue(mut self, issue: HealthIssue) -> Self {
        self.add_issue(issue);
        self
    }

    /// This report with something that could not be checked.
    #[must_use]
    pub fn with_unchecked(mut self, what: &'static str) -> Self {
        self.add_unchecked(what);
        self
    }

    /// This report with so many more dropped refunds.
    #[must_use]
    pub fn with_dropped_refunds(mut self, refunds: u64) -> Self {
        self.dropped_refunds = self.dropped_refunds.saturating_add(refunds);
        self
    }

    /// This report with so many more operations that nothing waited for and the store has not answered.
    #[must_use]
    pub fn with_unconfirmed(mut self, operations: u64) -> Self {
        self.unconfirmed = self.unconfirmed.saturating_add(operations);
        self
    }

    pub(crate) fn add_dropped_write_backs(&mut self, charges: u64) {
        self.dropped_write_backs = self.dropped_write_backs.saturating_add(charges);
    }

    pub(crate) fn add_issue(&mut self, issue: HealthIssue) {
        self.issues.push(issue);
    }

    pub(crate) fn add_unchecked(&mut self, what: &'static str) {
        if !self.unchecked.contains(&what) {
            self.unchecked.push(what);
        }
    }
}
