//! What a decision needs of its limiter.

use std::{future::Future, pin::Pin};

use smallvec::SmallVec;

use super::{
    entry::{LazyStatus, PolicyEntry},
    response_cache::ResponseCache,
};
#[cfg(feature = "admin")]
use crate::key::Key;
use crate::{
    clock::Timestamp,
    error::StoreError,
    outcome,
    quota::Quota,
    store::Op,
    strategy::{ChargeReceipt, QuotaStatus, RetryAfter, Snapshot},
};

/// The limiter of a decision, by which it reads its policies, and charges and refunds after it was made.
pub(crate) trait LimiterBackend: Send + Sync {
    /// The name of a policy.
    fn name(&self, policy: u32) -> &str;
    /// The name of the live policy that a shadow would replace.
    fn live_name(&self, policy: u32) -> Option<&str>;
    /// The text of a key under a policy, for operators.
    #[cfg(feature = "admin")]
    fn key_text(&self, policy: u32, key: &Key) -> String;
    /// The names of all policies.
    fn names(&self) -> Vec<&str>;
    /// Where a policy's counters are, if that is known: the store's id, the policy's name and its state format.
    fn counter_location(&self, policy: u32) -> Option<(u64, &str, &'static str)>;
    /// Logs that an outer layer has charged the request to the same counter.
    fn log_double_counting(&self, policy: &str);
    /// Parts of responses that are rendered once.
    fn response_cache(&self) -> &ResponseCache;
    /// The quota that was applied, and its capacity.
    fn quota(&self, entry: &PolicyEntry) -> (Quota, u64);
    /// The remedy for requests without a key under a policy, if they are a mistake of the application; else empty.
    fn missing_key_hint(&self, policy: u32) -> &str;
    /// Whether the policy is a block list, which blocks by hand and has no quota.
    fn is_block_list(&self, policy: u32) -> bool;
    /// Whether used units become available one by one, not all at once.
    fn refills_gradually(&self, entry: &PolicyEntry) -> bool;
    /// The status of the request, from the snapshot that was read when it was decided.
    fn status(&self, entry: &PolicyEntry, snapshot: &Snapshot) -> QuotaStatus;
    /// When it was decided, by the wall clock.
    fn decided_at(&self, entry: &PolicyEntry) -> Timestamp;
    /// Which store, and which of its shards, has the counter. Adjustments in one shard are made together, all or none.
    fn shard(&self, entry: &PolicyEntry) -> (bool, usize);
    /// Charges units, also more than are left, or refunds units of receipts: all adjustments, which are in one shard, or none.
    fn adjust(&self, op: Op, adjustments: &[Adjustment<'_>]) -> AdjustFuture;
    /// The same, made also if the future is dropped, outside of a runtime, and later if the store can't be reached now. An
    /// error means only that the result is not known.
    fn adjust_detached(&self, op: Op, adjustments: &[Adjustment<'_>]) -> AdjustFuture;
    /// Refunds all that was charged, without waiting for it.
    fn refund_detached(&self, entries: &mut [PolicyEntry]);
    /// Whether a charge of any policy depends on the request's outcome.
    fn has_outcome_charges(&self) -> bool;
    /// Whether the charge depends on the request's outcome.
    fn depends_on_outcome(&self, entry: &PolicyEntry) -> bool;
    /// Whether the policy is an in-flight limit.
    fn is_permit(&self, entry: &PolicyEntry) -> bool;
    /// Whether a policy charges a request with this outcome. Calls the application's closure, so never under a lock.
    fn charges(&self, policy: u32, outcome: &outcome::Outcome<'_>) -> bool;
    /// Charges or refunds at the end of a request, which is charged if `charges`, without waiting for it. If the admission
    /// is still shared, returns the charge in flight, for its receipt.
    fn settle(
        &self,
        entry: &mut PolicyEntry,
        charges: bool,
        is_shared: bool,
    ) -> Option<AdjustFuture>;
}

/// A charge to make, or units of a receipt to refund.
pub(crate) struct Adjustment<'a> {
    pub(crate) entry: &'a PolicyEntry,
    /// The receipt, of a refund.
    pub(crate) receipt: ChargeReceipt,
    pub(crate) units: u64,
}

/// Adjustments in flight.
pub(crate) type AdjustFuture =
    Pin<Box<dyn Future<Output = Result<AllAdjusted, StoreError>> + Send>>;

/// The results of adjustments, in their order.
pub(crate) type AllAdjusted = SmallVec<[Adjusted; 1]>;

/// The result of an adjustment.
#[derive(Debug)]
pub(crate) struct Adjusted {
    /// Units that were charged or refunded.
    pub(crate) units: u64,
    /// The receipt, of a charge.
    pub(crate) receipt: ChargeReceipt,
    /// The status afterwards.
    pub(crate) status: QuotaStatus,
}

impl PolicyEntry {
    /// The status of the request under the policy.
    pub(crate) fn status(&self, backend: &dyn LimiterBackend) -> QuotaStatus {
        match &self.lazy_status {
            LazyStatus::Snapshot(snapshot) => backend.status(self, snapshot),
            LazyStatus::Resolved(status) => *status,
        }
    }

    /// Changes the status.
    pub(crate) fn update_status(
        &mut self,
        backend: &dyn LimiterBackend,
        update: impl FnOnce(&mut QuotaStatus),
    ) {
        let mut status = self.status(backend);
        update(&mut status);
        self.lazy_status = LazyStatus::Resolved(status);
    }

    /// Adds a charge that was made after the request's arrival.
    pub(crate) fn push_charge(&mut self, adjusted: &Adjusted) {
        self.set_status(adjusted);
        self.receipts.add(adjusted.receipt);
    }

    /// Sets the status after a charge or a refund.
    pub(crate) fn set_status(&mut self, adjusted: &Adjusted) {
        self.lazy_status = LazyStatus::Resolved(adjusted.status);
    }

    /// Sets the status as it will be once `units` are refunded.
    pub(crate) fn mark_refunded(&mut self, backend: &dyn LimiterBackend, units: u64) {
        let cost = self.cost;
        self.update_status(backend, |status| {
            status.remaining = status.remaining.saturating_add(units);
            if status.remaining >= cost {
                status.retry_after = RetryAfter::Now;
            }
        });
    }
}

/// The longest Retry-After of the enforced policies under which the request costs something.
pub(crate) fn longest_wait(backend: &dyn LimiterBackend, entries: &[PolicyEntry]) -> RetryAfter {
    let enforced = entries.iter().take_while(|entry| !entry.is_shadow());
    let charged = enforced.filter(|entry| entry.cost > 0);
    let waits = charged.map(|entry| entry.status(backend).retry_after);
    waits.max().unwrap_or(RetryAfter::Now)
}
