//! Charges and refunds after a request was decided.

use std::{
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    slice,
    sync::Arc,
};

use smallvec::SmallVec;

use super::{
    core::{LimiterCore, LimiterRef},
    decide::DecisionBuilder,
    entry::PolicyEntry,
    mode::OnFailure,
};
use crate::{
    error::StoreError,
    key::Key,
    observe::{Observers, UnitsEvent, UnitsKind},
    outcome::Outcome,
    policy::charging::Charge,
    store::{CounterOp, Op, OpResult, Store, StoreResponse, TOO_FEW_RESULTS, Units},
    strategy::{ChargeReceipt, QuotaStatus},
};

/// A charge to make, or units of a receipt to refund.
pub(crate) struct Adjustment<'a> {
    pub(crate) entry: &'a PolicyEntry,
    /// The receipt that is refunded; [`ChargeReceipt::NONE`] for a charge.
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
    /// The receipt of a charge; not read for a refund.
    pub(crate) receipt: ChargeReceipt,
    /// The status afterwards.
    pub(crate) status: QuotaStatus,
}

impl LimiterCore {
    /// Where the counter is: whether this process's local share counts it, and in which shard of its store. Adjustments in one
    /// shard are made together, all or none.
    pub(super) fn shard(&self, entry: &PolicyEntry) -> (bool, usize) {
        let store = self.store_for(entry);
        (self.is_local_share(entry), store.shard(&entry.key))
    }

    /// Charges units, also more than are left, or refunds units of receipts: all adjustments, which are in one shard, or none.
    pub(super) fn adjust(&self, op: Op, adjustments: &[Adjustment<'_>]) -> AdjustFuture {
        self.adjust_by(
            adjustments,
            UnitsReport::begin(self, op, adjustments),
            |store, ops| store.execute(op, ops),
        )
    }

    /// As [`adjust`](Self::adjust), for adjustments that must be made: also if the future is dropped, also outside of a runtime,
    /// and later if the store can't be reached now. An error means only that the result is not known.
    pub(super) fn adjust_detached(&self, op: Op, adjustments: &[Adjustment<'_>]) -> AdjustFuture {
        let report = UnitsReport::begin(self, op, adjustments).map(UnitsReport::detached);
        self.adjust_by(adjustments, report, |store, ops| {
            store.execute_detached_with_response(op, ops)
        })
    }

    /// Credits units: refunds receipts that belong to no request, and reports them as credits.
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
        let response = adjustments.first().map(|first| {
            let ops = adjustments.iter().map(|adjustment| CounterOp {
                units: Units::new(adjustment.units),
                receipt: adjustment.receipt,
                ..self.counter_op(adjustment.entry)
            });
            let ops: SmallVec<[_; 2]> = ops.collect();
            call(self.store_for(first.entry), &ops)
        });
        Box::pin(async move {
            let Some(response) = response else {
                return Ok(AllAdjusted::new());
            };
            let result = match response.result().await {
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

    /// Refunds all that was charged, without waiting for it; reports it, and updates the statuses.
    pub(super) fn refund_and_report(&self, entries: &mut [PolicyEntry]) {
        for entry in entries {
            let units = self.refund_entry(entry);
            self.report_detached(entry, UnitsKind::Refunded, units);
            entry.mark_refunded(self, units);
        }
    }

    /// Refunds all that was charged, without waiting for it; neither reports it nor updates the statuses.
    pub(super) fn refund_unreported(&self, entries: &mut [PolicyEntry]) {
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

    /// Whether the charge depends on the request's outcome.
    pub(super) fn depends_on_outcome(&self, entry: &PolicyEntry) -> bool {
        !self.bound(entry.policy).policy.charges_on_arrival()
    }

    /// Whether a policy charges a request with this outcome. Calls the application's closure, so never under a lock.
    pub(super) fn is_charged(&self, policy: u32, outcome: &Outcome<'_>) -> bool {
        let policy = &self.bound(policy).policy;
        // It may be called while a panic unwinds, where another one would abort the process.
        let is_charged = AssertUnwindSafe(|| policy.charges(outcome));
        // The panic hook has reported it.
        panic::catch_unwind(is_charged).unwrap_or(true)
    }

    /// Charges or refunds at the end of a request, which is charged if `is_charged`, without waiting for it. If the admission
    /// is still shared, returns the charge in flight, for its receipt.
    pub(super) fn settle(
        &self,
        entry: &mut PolicyEntry,
        is_charged: bool,
        is_shared: bool,
    ) -> Option<AdjustFuture> {
        if entry.is_shadow_rejection() {
            return None;
        }
        match self.bound(entry.policy).policy.charge() {
            Charge::RefundUnless(_) if !is_charged => {
                self.refund_and_report(slice::from_mut(entry));
            }
            // What the handler has charged is not charged again.
            Charge::After(_) if is_charged && !entry.receipts.is_settled() => {
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

impl LimiterRef {
    /// Reports a charge by hand that failed, if it may be made nevertheless.
    pub(crate) fn report_failed_charge(&self, builder: &DecisionBuilder, error: &StoreError) {
        let is_by_hand =
            builder.op == Op::ForceAcquire && builder.mode.on_failure == OnFailure::Return;
        if is_by_hand && !error.had_no_effect() {
            self.report_charge_by_hand(builder, false);
        }
    }

    /// Reports a charge by hand, as the store made it. One whose result is not known may be made.
    pub(super) fn report_charge_by_hand(&self, builder: &DecisionBuilder, confirmed: bool) {
        // Without entries the call has failed.
        for entry in &builder.entries {
            let units = if confirmed {
                entry.receipts.first().remaining
            } else {
                entry.cost
            };
            self.report_units(entry, UnitsKind::Charged, units, confirmed);
        }
    }
}

impl LimiterCore {
    /// Reports an operation that was sent, or queued, without waiting for its result. Permits that are released are reported as
    /// such.
    pub(crate) fn report_detached(&self, entry: &PolicyEntry, kind: UnitsKind, units: u64) {
        if !self.bound(entry.policy).is_permit() {
            self.report_units(entry, kind, units, false);
        }
    }

    pub(crate) fn report_units(
        &self,
        entry: &PolicyEntry,
        kind: UnitsKind,
        units: u64,
        confirmed: bool,
    ) {
        let Some(observers) = &self.observers else {
            return;
        };
        let event = UnitsEvent {
            generation: self.generation,
            index: entry.policy as usize,
            policy: self.bound(entry.policy).policy.name(),
            key: &entry.key,
            kind,
            units,
            confirmed,
        };
        notify(observers, &event);
    }
}

/// The report of adjustments in flight. It is made when their result is known, or when this is dropped without one.
pub(crate) struct UnitsReport {
    observers: Arc<Observers>,
    generation: u64,
    units: SmallVec<[PendingUnits; 1]>,
    /// Whether the store repeats what has failed.
    is_detached: bool,
}

/// One adjustment.
struct PendingUnits {
    index: u32,
    policy: Arc<str>,
    key: Key,
    kind: UnitsKind,
    /// The units of the adjustment, before its result is known.
    units: u64,
}

impl UnitsReport {
    /// `None` without observers, or without adjustments.
    pub(crate) fn begin(
        limiter: &LimiterCore,
        op: Op,
        adjustments: &[Adjustment<'_>],
    ) -> Option<Self> {
        let observers = limiter.observers.as_ref()?;
        let units = adjustments.iter().map(|adjustment| {
            let entry = adjustment.entry;
            PendingUnits {
                index: entry.policy,
                policy: limiter.bound(entry.policy).policy.shared_name(),
                key: entry.key,
                kind: match op {
                    Op::Refund => UnitsKind::Refunded,
                    Op::Settle if adjustment.receipt.remaining > 0 => UnitsKind::SettledLess,
                    Op::Settle => UnitsKind::SettledMore,
                    _ => UnitsKind::Charged,
                },
                units: adjustment.units,
            }
        });
        Some(Self {
            observers: observers.clone(),
            generation: limiter.generation,
            units: units.collect(),
            is_detached: false,
        })
    }

    /// The same, of another kind.
    pub(crate) fn of_kind(mut self, kind: UnitsKind) -> Self {
        self.units.iter_mut().for_each(|units| units.kind = kind);
        self
    }

    /// The same, of operations that the store repeats if they fail.
    pub(crate) fn detached(mut self) -> Self {
        self.is_detached = true;
        self
    }

    /// Reports the result. After an error nothing was done, or that is not known.
    pub(crate) fn finish(mut self, result: Result<&OpResult, &StoreError>) {
        match result {
            Ok(result) => {
                let units = std::mem::take(&mut self.units);
                for (units, counter) in units.iter().zip(&result.counters) {
                    self.report(units, counter.units, true);
                }
            }
            Err(error) if error.had_no_effect() && !self.is_detached => self.units.clear(),
            Err(_) => {}
        }
    }

    fn report(&self, of: &PendingUnits, units: u64, confirmed: bool) {
        let event = UnitsEvent {
            generation: self.generation,
            index: of.index as usize,
            policy: &of.policy,
            key: &of.key,
            kind: of.kind,
            units,
            confirmed,
        };
        notify(&self.observers, &event);
    }
}

/// What has no result by now may be done.
impl Drop for UnitsReport {
    fn drop(&mut self) {
        for units in &self.units {
            self.report(units, units.units, false);
        }
    }
}

/// Reports units, unless they are zero.
fn notify(observers: &Observers, event: &UnitsEvent<'_>) {
    if event.units > 0 {
        observers.notify(|observer| observer.on_units(event));
    }
}
