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
#[cfg(feature = "redis")]
use crate::{background, redis::io::events::defer};
use crate::{
    error::StoreError,
    key::Key,
    observe::{Observers, UnitsEvent, UnitsKind},
    outcome::Outcome,
    policy::charging::Charge,
    store::{
        Completion, CounterMode, CounterOp, LimitHandle, Op, OpResult, Store, TOO_FEW_RESULTS,
        Units,
    },
    strategy::{ChargeReceipt, QuotaStatus},
};

/// Units to charge, or to refund by a receipt.
pub(crate) struct Adjustment<'a> {
    pub(crate) entry: &'a PolicyEntry,
    /// The receipt that is refunded; `None` for a charge.
    pub(crate) receipt: Option<ChargeReceipt>,
    pub(crate) units: u64,
    /// As what it is reported to observers.
    pub(crate) kind: UnitsKind,
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

/// One call of a store, which makes adjustments in one shard: all of them, or none.
pub(crate) struct AdjustCall {
    store: Arc<dyn Store>,
    counters: SmallVec<[OwnedAdjustment; 1]>,
    results: AdjustResults,
}

struct OwnedAdjustment {
    key: Key,
    caller: Key,
    units: Units,
    receipt: Option<ChargeReceipt>,
}

/// What makes [`Adjusted`] of a store's result.
struct AdjustResults {
    /// Of each adjustment, with the cost of its request.
    limits: SmallVec<[(LimitHandle, Units); 1]>,
    report: Option<UnitsReport>,
}

impl AdjustCall {
    /// Sends the call, and returns its result. If that is dropped, the adjustments are made nevertheless.
    pub(crate) fn send(self) -> AdjustFuture {
        let response = self.with_ops(|store, ops| store.execute(Op::Adjust, ops));
        Box::pin(async move { self.results.read(response.result().await) })
    }

    /// Sends the call without waiting for it, also outside of a runtime, and later if the store can't be reached now. `completion` gets
    /// the result of the first attempt: after an error the adjustments may still be made.
    pub(crate) fn send_detached(
        mut self,
        completion: impl FnOnce(Result<AllAdjusted, StoreError>) + Send + 'static,
    ) {
        let results = AdjustResults {
            limits: self.results.limits.clone(),
            report: self.results.report.take().map(UnitsReport::detached),
        };
        let completion = Completion::new(|result| completion(results.read(result)));
        self.with_ops(|store, ops| store.execute_detached(Op::Adjust, ops, Some(completion)));
    }

    fn with_ops<T>(&self, call: impl FnOnce(&dyn Store, &[CounterOp<'_>]) -> T) -> T {
        let limits = self.results.limits.iter();
        let ops = self.counters.iter().zip(limits);
        let ops = ops.map(|(counter, (limit, _))| CounterOp {
            limit,
            key: counter.key,
            units: counter.units,
            receipt: counter.receipt,
            caller: counter.caller,
            mode: CounterMode::Charge,
        });
        call(&*self.store, &ops.collect::<SmallVec<[_; 2]>>())
    }
}

impl AdjustResults {
    fn read(self, result: Result<OpResult, StoreError>) -> Result<AllAdjusted, StoreError> {
        let result = match result {
            Ok(result) if result.counters.len() < self.limits.len() => Err(TOO_FEW_RESULTS),
            result => result,
        };
        if let Some(report) = self.report {
            report.finish(result.as_ref());
        }
        let result = result?;
        let counters = result.counters.iter().zip(self.limits);
        let adjusted = counters.map(|(counter, (limit, cost))| {
            let at = result.time_of(counter);
            let window_id = limit.rule().window_id(&counter.snapshot, at);
            Adjusted {
                units: counter.units,
                receipt: ChargeReceipt::new(at, counter.units).with_window_id(window_id),
                status: limit.status(&counter.snapshot, at, cost),
            }
        });
        Ok(adjusted.collect())
    }
}

impl LimiterCore {
    /// Where the counter is: whether this process's local share counts it, and in which shard of its store. Adjustments in one
    /// shard are made together, all or none.
    pub(super) fn shard(&self, entry: &PolicyEntry) -> (bool, usize) {
        let store = self.store_for(entry);
        (self.is_local_share(entry), store.shard(&entry.key))
    }

    /// The call that makes adjustments, which are in one shard; `None` if there are none.
    pub(super) fn adjust_call(&self, adjustments: &[Adjustment<'_>]) -> Option<AdjustCall> {
        let first = adjustments.first()?;
        let counters = adjustments.iter().map(|adjustment| OwnedAdjustment {
            key: adjustment.entry.key,
            caller: adjustment.entry.caller(),
            units: Units::new(adjustment.units),
            receipt: adjustment.receipt,
        });
        let entries = adjustments.iter().map(|adjustment| adjustment.entry);
        let limits = entries.map(|entry| (self.limit(entry).clone(), entry.units()));
        Some(AdjustCall {
            store: self.shared_store_for(first.entry),
            counters: counters.collect(),
            results: AdjustResults {
                limits: limits.collect(),
                report: UnitsReport::begin(self, adjustments),
            },
        })
    }

    /// Makes one adjustment.
    pub(super) async fn adjust(&self, adjustment: Adjustment<'_>) -> Result<Adjusted, StoreError> {
        let call = self.adjust_call(&[adjustment]);
        let adjusted = call.ok_or(TOO_FEW_RESULTS)?.send().await?;
        adjusted.into_iter().next().ok_or(TOO_FEW_RESULTS)
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
                receipt: Some(*receipt),
                units: Units::new(receipt.remaining),
                ..self.counter_op(entry)
            };
            self.store_for(entry)
                .execute_detached(Op::Adjust, &[refund], None);
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

    /// Refunds at the end of a request, which is charged if `is_charged`, without waiting for it, or returns the call that charges it.
    pub(super) fn settle(&self, entry: &mut PolicyEntry, is_charged: bool) -> Option<AdjustCall> {
        if entry.is_shadow_rejection() {
            return None;
        }
        match self.bound(entry.policy).policy.charge() {
            Charge::RefundUnless(_) if !is_charged => {
                self.refund_and_report(slice::from_mut(entry));
                None
            }
            // What the handler has charged is not charged again.
            Charge::After(_) if is_charged && !entry.receipts.is_settled() => {
                entry.receipts.add_pending(entry.units());
                self.adjust_call(&[Adjustment {
                    entry,
                    receipt: None,
                    units: entry.cost,
                    kind: UnitsKind::Charged,
                }])
            }
            _ => None,
        }
    }
}

impl LimiterRef {
    /// Reports a charge by hand that failed, if it may be made nevertheless.
    pub(crate) fn report_failed_charge(&self, builder: &DecisionBuilder, error: &StoreError) {
        let is_by_hand = builder.op == Op::Adjust && builder.mode.on_failure == OnFailure::Return;
        if is_by_hand && error.may_have_run() {
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
struct UnitsReport {
    observers: Arc<Observers>,
    generation: u64,
    units: SmallVec<[PendingUnits; 1]>,
    /// Whether the store tries again what has failed.
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
    fn begin(limiter: &LimiterCore, adjustments: &[Adjustment<'_>]) -> Option<Self> {
        let observers = limiter.observers.as_ref()?;
        let units = adjustments.iter().map(|adjustment| {
            let entry = adjustment.entry;
            PendingUnits {
                index: entry.policy,
                policy: limiter.bound(entry.policy).policy.shared_name(),
                key: entry.key,
                kind: adjustment.kind,
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

    /// The same, of operations that the store tries again if they fail.
    fn detached(mut self) -> Self {
        self.is_detached = true;
        self
    }

    /// Reports the result. After an error nothing was done, or that is not known.
    fn finish(mut self, result: Result<&OpResult, &StoreError>) {
        match result {
            Ok(result) => {
                let units = std::mem::take(&mut self.units);
                for (units, counter) in units.iter().zip(&result.counters) {
                    self.report(units, counter.units, true);
                }
            }
            Err(error) if !error.may_have_run() && !self.is_detached => self.units.clear(),
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
fn notify(observers: &Arc<Observers>, event: &UnitsEvent<'_>) {
    if event.units == 0 {
        return;
    }
    // The result of a call that no task awaits arrives on the IO thread, on which an observer that blocks would delay every reply.
    #[cfg(feature = "redis")]
    if background::is_background() {
        let observers = observers.clone();
        let (policy, key): (Arc<str>, _) = (event.policy.into(), *event.key);
        let UnitsEvent {
            generation,
            index,
            kind,
            units,
            confirmed,
            ..
        } = *event;
        return defer(move || {
            let event = UnitsEvent {
                generation,
                index,
                policy: &policy,
                key: &key,
                kind,
                units,
                confirmed,
            };
            observers.notify(|observer| observer.on_units(&event));
        });
    }
    observers.notify(|observer| observer.on_units(event));
}
