//! One call of the store that charges and refunds units, and its report to the listener.

use std::{
    future::Future,
    mem,
    pin::Pin,
    slice,
    sync::Arc,
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;

use super::{decide::report_bans_begun, entry::Entry, policy_set::PolicySet};
use crate::{
    error::StoreError,
    observe::{UnitsEvent, UnitsKind},
    store::{Completion, CounterOp, Op, OpResult, StoreResponse, TOO_FEW_RESULTS, Units},
    strategy::{ChargeReceipt, LazyStatus, Snapshot},
};

/// An adjustment of one counter. Units without a receipt are charged, units with one are refunded, at most its rest.
#[derive(Clone, Debug)]
pub(crate) struct Adjustment {
    pub(crate) entry: Entry,
    pub(crate) units: Units,
    pub(crate) receipt: Option<ChargeReceipt>,
    /// What is reported; `None` if nothing is.
    pub(crate) kind: Option<UnitsKind>,
}

/// What an adjustment did.
#[derive(Debug)]
pub(crate) struct Adjusted {
    /// The units that were charged or refunded.
    pub(crate) units: u64,
    /// The receipt of a charge, with the instant of the adjustment.
    pub(crate) receipt: ChargeReceipt,
    /// The key's state afterwards.
    pub(crate) snapshot: Snapshot,
}

pub(crate) type AllAdjusted = SmallVec<[Adjusted; 1]>;

/// Adjustments in one call of the store that counts their entries: all of them or none, on a cluster those of one slot. Those that end
/// without a result are reported as unconfirmed.
pub(crate) struct AdjustCall {
    set: Arc<PolicySet>,
    adjustments: SmallVec<[Adjustment; 1]>,
}

/// A call that was sent. If it is dropped in flight, it is made nevertheless.
pub(crate) struct SentAdjustCall {
    call: Option<AdjustCall>,
    response: StoreResponse,
}

impl Adjustment {
    /// A charge of the entry's cost. A block list counts nothing.
    fn charge(set: &PolicySet, entry: &Entry, kind: Option<UnitsKind>) -> Self {
        let counts_nothing = set.bound(entry.policy).policy.is_block_list();
        Self {
            units: if counts_nothing {
                Units::ZERO
            } else {
                entry.units()
            },
            entry: entry.clone(),
            receipt: None,
            kind,
        }
    }

    /// A refund of units of a receipt.
    pub(crate) fn refund(
        entry: &Entry,
        units: u64,
        receipt: ChargeReceipt,
        kind: Option<UnitsKind>,
    ) -> Self {
        Self {
            entry: entry.clone(),
            units: Units::new(units),
            receipt: Some(receipt),
            kind,
        }
    }

    fn op<'a>(&'a self, set: &'a PolicySet) -> CounterOp<'a> {
        CounterOp {
            units: self.units,
            receipt: self.receipt,
            ..self.entry.counter_op(set)
        }
    }

    /// Refunds the units without a caller that awaits it, and reports them as unconfirmed.
    pub(crate) fn refund_detached(&self, set: &PolicySet) {
        let store = self.entry.store(set);
        store.execute_detached(Op::Adjust, &[self.op(set)], None);
        wake_waiting(set, slice::from_ref(self));
        self.report(set, self.units.get(), false);
    }

    fn report(&self, set: &PolicySet, units: u64, confirmed: bool) {
        let Some(kind) = self.kind.filter(|_| units > 0) else {
            return;
        };
        set.listener.on_units(&UnitsEvent {
            generation: set.generation,
            index: self.entry.policy as usize,
            policy: self.entry.name(set),
            key: &self.entry.key,
            kind,
            units,
            confirmed,
        });
    }
}

impl AdjustCall {
    pub(crate) fn new(
        set: &Arc<PolicySet>,
        adjustments: impl IntoIterator<Item = Adjustment>,
    ) -> Self {
        Self {
            set: set.clone(),
            adjustments: adjustments.into_iter().collect(),
        }
    }

    pub(crate) fn send(self) -> SentAdjustCall {
        let response = match self.adjustments.first() {
            Some(first) => {
                let store = first.entry.store(&self.set);
                store.execute(Op::Adjust, &ops(&self.set, &self.adjustments))
            }
            None => StoreResponse::Ready(Err(TOO_FEW_RESULTS)),
        };
        wake_waiting(&self.set, &self.adjustments);
        SentAdjustCall {
            call: Some(self),
            response,
        }
    }

    /// Sends the call without a caller that awaits it: the store keeps what it can't send yet. `completion` is called with the result,
    /// or dropped.
    pub(crate) fn send_detached(
        self,
        completion: impl FnOnce(Result<AllAdjusted, StoreError>) + Send + 'static,
    ) {
        let (set, adjustments) = (self.set.clone(), self.adjustments.clone());
        let Some(first) = adjustments.first() else {
            return;
        };
        let completion = Completion::new(move |result| completion(self.finish(result, true)));
        let store = first.entry.store(&set);
        store.execute_detached(Op::Adjust, &ops(&set, &adjustments), Some(completion));
        wake_waiting(&set, &adjustments);
    }

    /// Reads the result, and reports it. `is_kept` is whether the store makes later what it could not do now.
    fn finish(
        mut self,
        result: Result<OpResult, StoreError>,
        is_kept: bool,
    ) -> Result<AllAdjusted, StoreError> {
        let result = match result {
            Ok(result) if result.counters.len() < self.adjustments.len() => Err(TOO_FEW_RESULTS),
            result => result,
        };
        let result = result.inspect_err(|error| {
            if !error.may_have_run() && !is_kept {
                self.adjustments.clear();
            }
        })?;
        // The store has the refunds, so that a call that waits finds their units.
        wake_waiting(&self.set, &self.adjustments);
        let adjustments = mem::take(&mut self.adjustments);
        let counters = result.counters.iter().zip(&adjustments);
        let adjusted = counters.map(|(counter, adjustment)| {
            adjustment.report(&self.set, counter.units, true);
            let at = result.time_of(counter);
            let rule = adjustment.entry.limit(&self.set).rule();
            let window_id = rule.window_id(&counter.snapshot, at);
            Adjusted {
                units: counter.units,
                receipt: ChargeReceipt::new(at, counter.units).with_window_id(window_id),
                snapshot: counter.snapshot,
            }
        });
        Ok(adjusted.collect())
    }
}

impl Future for SentAdjustCall {
    type Output = Result<AllAdjusted, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.response {
            StoreResponse::Ready(result) => mem::replace(result, Err(TOO_FEW_RESULTS)),
            StoreResponse::Pending(response) => ready!(Pin::new(response).poll(cx)),
        };
        match self.call.take() {
            // An error that says that nothing was done is returned, and the caller may repeat the call.
            Some(call) => Poll::Ready(call.finish(result, false)),
            // Polled again after completion.
            None => Poll::Pending,
        }
    }
}

impl SentAdjustCall {
    /// Has `completion` called with the result, unless that was returned. The completion is dropped if the call is made later, or its
    /// result is lost.
    pub(crate) fn detach(
        self,
        completion: impl FnOnce(Result<AllAdjusted, StoreError>) + Send + 'static,
    ) {
        let Some(call) = self.call else {
            return;
        };
        let completion = move |result| completion(call.finish(result, false));
        match self.response {
            StoreResponse::Ready(result) => completion(result),
            StoreResponse::Pending(response) => response.detach(Completion::new(completion)),
        }
    }
}

/// Charges each entry its cost, in one call, and sets its receipt and status. `kind` is what is reported.
pub(crate) async fn charge_entries(
    set: &Arc<PolicySet>,
    entries: &mut [Entry],
    kind: Option<UnitsKind>,
) -> Result<(), StoreError> {
    let charges = entries
        .iter()
        .map(|entry| Adjustment::charge(set, entry, kind));
    let adjusted = AdjustCall::new(set, charges).send().await?;
    for (entry, adjusted) in entries.iter_mut().zip(adjusted) {
        entry.receipt = adjusted.receipt;
        entry.status = LazyStatus::Snapshot(adjusted.snapshot);
    }
    report_bans_begun(set, entries);
    Ok(())
}

fn ops<'a>(set: &'a PolicySet, adjustments: &'a [Adjustment]) -> SmallVec<[CounterOp<'a>; 2]> {
    adjustments
        .iter()
        .map(|adjustment| adjustment.op(set))
        .collect()
}

/// Wakes the calls that wait for what is refunded. Called once the refunds are sent, so that an attempt of such a call follows them.
fn wake_waiting(set: &PolicySet, adjustments: &[Adjustment]) {
    for refund in adjustments.iter().filter(|one| one.receipt.is_some()) {
        set.listener
            .released(refund.entry.name(set), &refund.entry.key);
    }
}

impl Drop for AdjustCall {
    fn drop(&mut self) {
        for adjustment in &self.adjustments {
            adjustment.report(&self.set, adjustment.units.get(), false);
        }
    }
}
