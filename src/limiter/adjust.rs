//! Charges and refunds after a request was admitted.

use std::{
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
};

use smallvec::SmallVec;

use super::{
    core::{Enforcement, LimiterCore, LimiterRef, ResponseCache},
    entry::{LazyStatus, PolicyEntry},
    report::UnitsReport,
};
#[cfg(feature = "admin")]
use crate::key::Key;
use crate::{
    charge::ChargeTime,
    clock::Timestamp,
    error::StoreError,
    observe::UnitsKind,
    outcome::{self, Outcome},
    quota::Quota,
    store::{CounterOp, Op, Store, StoreResponse, TOO_FEW_RESULTS, Units},
    strategy::{ChargeReceipt, QuotaStatus, RetryAfter, Snapshot},
};

impl LimiterBackend for LimiterRef {
    fn name(&self, policy: u32) -> &str {
        self.bound(policy).policy.name()
    }

    #[cfg(feature = "admin")]
    fn key_text(&self, policy: u32, key: &crate::key::Key) -> String {
        self.bound(policy).policy.key_text(key)
    }

    fn live_name(&self, policy: u32) -> Option<&str> {
        match self.bound(policy).enforcement {
            Enforcement::Shadow { of: Some(live), .. } => Some(self.name(live)),
            _ => None,
        }
    }

    fn names(&self) -> Vec<&str> {
        let policies = self.policies.iter();
        policies.map(|bound| bound.policy.name()).collect()
    }

    fn counter_location(&self, policy: u32) -> Option<(u64, &str, &'static str)> {
        let bound = self.bound(policy);
        let format = bound.limit.rule().state_format();
        Some((self.store.id()?, bound.policy.name(), format))
    }

    #[cold]
    fn log_double_counting(&self, policy: &str) {
        self.double_counting_log.log_with(|suppressed| {
            tracing::warn!(
                policy,
                suppressed,
                "two layers around a request have a policy of this name over one store: the same key is charged twice"
            );
        });
    }

    fn response_cache(&self) -> &ResponseCache {
        self.response_cache()
    }

    fn quota(&self, entry: &PolicyEntry) -> (Quota, u64) {
        let own = self.bound(entry.policy).policy.quota();
        let quota = entry.quota_override.as_ref().map_or(own, |tier| tier.quota);
        (quota, self.limit(entry).rule().capacity())
    }

    fn missing_key_hint(&self, policy: u32) -> &str {
        self.bound(policy).policy.extractor().missing_key_hint()
    }

    fn is_block_list(&self, policy: u32) -> bool {
        self.bound(policy).policy.is_block_list()
    }

    fn refills_gradually(&self, entry: &PolicyEntry) -> bool {
        self.limit(entry).rule().refills_gradually()
    }

    fn status(&self, entry: &PolicyEntry, snapshot: &Snapshot) -> QuotaStatus {
        let limit = self.limit(entry);
        limit.status(snapshot, entry.receipts.first().charged_at, entry.units())
    }

    fn decided_at(&self, entry: &PolicyEntry) -> Timestamp {
        let at = entry.receipts.first().charged_at;
        if self.limit(entry).follows_wall_clock() {
            return at;
        }
        self.store_for(entry).wall(at)
    }

    fn shard(&self, entry: &PolicyEntry) -> (bool, usize) {
        let store = self.store_for(entry);
        (self.is_local_share(entry), store.shard(&entry.key))
    }

    fn adjust(&self, op: Op, adjustments: &[Adjustment<'_>]) -> AdjustFuture {
        self.adjust_by(
            adjustments,
            UnitsReport::begin(self, op, adjustments),
            |store, ops| store.execute(op, ops),
        )
    }

    fn adjust_detached(&self, op: Op, adjustments: &[Adjustment<'_>]) -> AdjustFuture {
        let report = UnitsReport::begin(self, op, adjustments).map(UnitsReport::detached);
        self.adjust_by(adjustments, report, |store, ops| {
            store.execute_detached_with_response(op, ops)
        })
    }

    fn refund_detached(&self, entries: &mut [PolicyEntry]) {
        for entry in entries {
            let units = self.refund_entry(entry);
            self.report_detached(entry, UnitsKind::Refunded, units);
            entry.mark_refunded(self, units);
        }
    }

    fn has_outcome_charges(&self) -> bool {
        self.has_outcome_charges
    }

    fn depends_on_outcome(&self, entry: &PolicyEntry) -> bool {
        self.charge_of(entry).when != ChargeTime::Arrival
    }

    fn is_permit(&self, entry: &PolicyEntry) -> bool {
        self.bound(entry.policy).is_permit()
    }

    fn charges(&self, policy: u32, outcome: &Outcome<'_>) -> bool {
        let charge = self.bound(policy).policy.charge_mode();
        // It may be called while a panic unwinds, where another one would abort the process.
        let charges = AssertUnwindSafe(|| charge.charges(outcome));
        // The panic hook has reported it.
        panic::catch_unwind(charges).unwrap_or(true)
    }

    fn settle(
        &self,
        entry: &mut PolicyEntry,
        charges: bool,
        is_shared: bool,
    ) -> Option<AdjustFuture> {
        if entry.is_shadow_rejection() {
            return None;
        }
        match self.charge_of(entry).when {
            ChargeTime::Reserve if !charges => {
                self.refund_detached(std::slice::from_mut(entry));
            }
            // What the handler has charged is not charged again.
            ChargeTime::Response if charges && !entry.receipts.is_settled() => {
                entry.receipts.add_pending(entry.units());
                if is_shared {
                    let charge = Adjustment {
                        entry,
                        receipt: ChargeReceipt::NONE,
                        units: entry.cost,
                    };
                    return Some(self.adjust_detached(Op::ForceAcquire, &[charge]));
                }
                let charge = CounterOp {
                    units: entry.units(),
                    ..self.counter_op(entry)
                };
                self.store_for(entry)
                    .execute_detached(Op::ForceAcquire, &[charge]);
                self.report_detached(entry, UnitsKind::Charged, entry.cost);
            }
            _ => {}
        }
        None
    }
}

impl LimiterCore {
    /// Credits units of receipts that no request has.
    pub(super) fn credit(&self, op: Op, credits: &[Adjustment<'_>]) -> AdjustFuture {
        let report = UnitsReport::begin(self, op, credits);
        let report = report.map(|report| report.of_kind(UnitsKind::Credited));
        self.adjust_by(credits, report, |store, ops| store.execute(op, ops))
    }

    /// Makes adjustments by one call of the store.
    fn adjust_by(
        &self,
        adjustments: &[Adjustment<'_>],
        report: Option<UnitsReport>,
        call: impl FnOnce(&dyn Store, &[CounterOp<'_>]) -> StoreResponse,
    ) -> AdjustFuture {
        let entries = adjustments.iter().map(|adjustment| adjustment.entry);
        let limits = entries.map(|entry| (self.limit(entry).clone(), entry.units()));
        let limits: SmallVec<[_; 1]> = limits.collect();
        let response = self.with_ops(adjustments, call);
        Box::pin(async move {
            let result = match response {
                None => return Ok(AllAdjusted::new()),
                Some(StoreResponse::Ready(result)) => result,
                Some(StoreResponse::Pending(response)) => response.await,
            };
            let result = match result {
                Ok(result) if result.counters.len() < limits.len() => Err(TOO_FEW_RESULTS),
                result => result,
            };
            if let Some(report) = report {
                report.finish(result.as_ref());
            }
            let result = result?;
            let counters = result.counters.iter().zip(limits);
            let adjusted = counters.map(|(counter, (limit, cost))| {
                let at = result.time_of(counter);
                Adjusted {
                    units: counter.units,
                    receipt: ChargeReceipt {
                        charged_at: at,
                        remaining: counter.units,
                        window_id: limit.rule().window_id(&counter.snapshot, at),
                    },
                    status: limit.status(&counter.snapshot, at, cost),
                }
            });
            Ok(adjusted.collect())
        })
    }

    /// Calls the store of the adjustments with their operations.
    fn with_ops<T>(
        &self,
        adjustments: &[Adjustment<'_>],
        call: impl FnOnce(&dyn Store, &[CounterOp<'_>]) -> T,
    ) -> Option<T> {
        let store = self.store_for(adjustments.first()?.entry);
        let ops = adjustments.iter().map(|adjustment| CounterOp {
            units: Units::new(adjustment.units),
            receipt: adjustment.receipt,
            ..self.counter_op(adjustment.entry)
        });
        let ops: SmallVec<[_; 2]> = ops.collect();
        Some(call(store, &ops))
    }

    /// Refunds what was charged, without waiting for it.
    pub(super) fn refund_entries(&self, entries: &mut [PolicyEntry]) {
        for entry in entries {
            self.refund_entry(entry);
        }
    }

    /// Refunds what was charged under one policy, without waiting for it; returns the units of its receipts.
    fn refund_entry(&self, entry: &mut PolicyEntry) -> u64 {
        let receipts = entry.receipts.take();
        for receipt in &receipts {
            let refund = CounterOp {
                receipt: *receipt,
                units: Units::new(receipt.remaining),
                ..self.counter_op(entry)
            };
            self.store_for(entry)
                .execute_detached(Op::Refund, &[refund]);
        }
        let left = receipts.iter().map(|receipt| receipt.remaining);
        left.fold(0, u64::saturating_add)
    }

    fn charge_of(&self, entry: &PolicyEntry) -> &crate::charge::ChargeMode {
        self.bound(entry.policy).policy.charge_mode()
    }
}

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
