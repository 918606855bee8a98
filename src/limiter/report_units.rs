//! Reports of units to observers that are charged by hand, or charged, settled or refunded later.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    adjust::Adjustment,
    core::{LimiterCore, LimiterRef},
    decide::DecisionBuilder,
    entry::PolicyEntry,
    mode::OnFailure,
};
use crate::{
    error::StoreError,
    key::Key,
    observe::{Observers, UnitsEvent, UnitsKind},
    store::{Op, OpResult},
};

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
