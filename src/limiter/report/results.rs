//! The results of a decision under each policy, computed when they are read.

use crate::{
    decision::{LazyStatus, PolicyEntry, PolicyRole},
    limiter::core::LimiterRef,
    observe::{PolicyEvent, PolicyKind, PolicyResults, fewest_left},
    strategy::{QuotaStatus, RetryAfter},
};

/// The results of a decision, by its entries.
pub(super) struct EntryResults<'a> {
    pub(super) limiter: &'a LimiterRef,
    pub(super) entries: &'a [PolicyEntry],
    pub(super) requests: u64,
    /// How many of the requests were rejected, by any policy.
    pub(super) rejected: u64,
}

impl LimiterRef {
    /// Whether more than this share of the limit is used.
    #[inline]
    pub(super) fn is_near(&self, entry: &PolicyEntry, percent: u8) -> bool {
        let limit = self.limit(entry);
        let units = fewest_left(limit.capacity(), percent);
        !match &entry.lazy_status {
            LazyStatus::Snapshot(snapshot) => {
                let at = entry.receipts.first().charged_at;
                limit.rule().has_remaining(snapshot, at, units)
            }
            LazyStatus::Resolved(status) => status.remaining >= units,
        }
    }
}

impl EntryResults<'_> {
    /// How many of the requests this policy rejected, or would have rejected.
    #[inline]
    fn over(&self, entry: &PolicyEntry, charged: u64) -> u64 {
        match entry.role {
            PolicyRole::Live | PolicyRole::Ban => {
                let rejects = self.rejected > 0 && rejects(self.limiter, entry);
                if rejects { self.rejected } else { 0 }
            }
            PolicyRole::Shadow { rejects: true } => self.requests,
            PolicyRole::Shadow { rejects: false } => match charged.checked_div(entry.cost) {
                // It charges those that it would have admitted, if it charges on arrival.
                Some(admitted) if admitted > 0 => self.requests.saturating_sub(admitted),
                _ => 0,
            },
        }
    }
}

impl PolicyResults for EntryResults<'_> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn policy(&self, position: usize) -> PolicyEvent<'_> {
        let entry = &self.entries[position];
        let charged = entry.receipts.first().remaining;
        PolicyEvent {
            index: entry.policy as usize,
            policy: self.limiter.bound(entry.policy).policy.name(),
            kind: entry.role.into(),
            key: &entry.key,
            cost: entry.cost,
            charged,
            requests: self.requests,
            over: self.over(entry, charged),
            results: self,
            position,
        }
    }

    fn status(&self, position: usize) -> QuotaStatus {
        self.entries[position].status(self.limiter)
    }

    fn limit(&self, position: usize) -> u64 {
        self.limiter.limit(&self.entries[position]).capacity()
    }

    fn is_near(&self, position: usize, percent: u8) -> bool {
        self.limiter.is_near(&self.entries[position], percent)
    }
}

/// Whether the policy rejects the request.
pub(super) fn rejects(limiter: &LimiterRef, entry: &PolicyEntry) -> bool {
    entry.cost > 0 && entry.status(limiter).retry_after != RetryAfter::Now
}

impl From<PolicyRole> for PolicyKind {
    fn from(role: PolicyRole) -> Self {
        match role {
            PolicyRole::Live => Self::Live,
            PolicyRole::Ban => Self::Ban,
            PolicyRole::Shadow { .. } => Self::Shadow,
        }
    }
}
