use std::{fmt, time::Duration};

use super::{Decision, DecisionKind, entry::Counted};
use crate::{
    clock::Timestamp,
    key::Key,
    quota::Quota,
    strategy::{QuotaStatus, RetryAfter},
};

/// The result of a request under one policy: whether it was rejected, the units left, and the waits. From
/// [`Decision::policies`] and [`LimitStatus::policies`](crate::LimitStatus::policies).
#[derive(Clone, Copy)]
pub struct PolicyDecision<'a> {
    pub(crate) decision: &'a Decision,
    pub(crate) counted: &'a Counted,
}

impl<'a> PolicyDecision<'a> {
    /// What the caller may expect, all of it.
    pub(crate) fn status(&self) -> QuotaStatus {
        self.counted.status(&*self.decision.books)
    }

    /// When it was judged, by a wall clock.
    pub(crate) fn judged_at(&self) -> Timestamp {
        self.decision.books.judged_at(self.counted)
    }

    /// Whether what was used comes back unit by unit, not all at once.
    pub(crate) fn refills_gradually(&self) -> bool {
        self.decision.books.refills_gradually(self.counted)
    }

    /// The policy's name.
    pub fn policy(&self) -> &'a str {
        self.decision.books.name(self.counted.policy)
    }

    /// The key that the request was counted by; of a credential, its hash.
    pub fn key(&self) -> Key {
        self.counted.key
    }

    /// The quota that was applied.
    pub fn quota(&self) -> Quota {
        self.decision.books.quota(self.counted).0
    }

    /// The most units that can be charged at once: the burst, or a window's whole quota.
    pub fn limit(&self) -> u64 {
        self.decision.books.quota(self.counted).1
    }

    /// The cost of the request in units, also if it was rejected.
    pub fn cost(&self) -> u64 {
        self.counted.cost
    }

    /// The whole units left, after this request if it was admitted; 0 in debt.
    pub fn remaining(&self) -> u64 {
        self.status().remaining
    }

    /// The wait until another request of the same cost is admitted by this policy.
    pub fn retry_after(&self) -> RetryAfter {
        self.status().retry_after
    }

    /// The wait until the full quota is available, if no other request comes.
    pub fn reset_after(&self) -> Duration {
        self.status().reset_after
    }

    /// Whether this is a shadow policy, which is evaluated and not enforced: see [`Policy::shadow`](crate::Policy::shadow).
    pub fn is_shadow(&self) -> bool {
        self.counted.is_shadow()
    }

    /// Whether this policy rejected the request, or would have if it were enforced.
    pub fn would_reject(&self) -> bool {
        self.rejected() || self.counted.is_shadow_refusal()
    }

    /// Whether this policy rejected the request; false for a shadow policy.
    pub fn rejected(&self) -> bool {
        matches!(self.decision.kind, DecisionKind::Rejected)
            && !self.is_shadow()
            && self.counted.cost > 0
            && self.status().retry_after != RetryAfter::Now
    }
}

impl fmt::Debug for PolicyDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyDecision")
            .field("policy", &self.policy())
            .field("key", &self.key())
            .field("limit", &self.limit())
            .field("cost", &self.cost())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("rejected", &self.rejected())
            .field("would_reject", &self.would_reject())
            .finish()
    }
}
