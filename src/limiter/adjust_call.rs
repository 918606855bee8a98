//! One call of the store that charges and refunds units, and its report to the listener.

use std::{future::Future, mem, sync::Arc};

use smallvec::SmallVec;

use super::{entry::Entry, listener::AdjustListener, policy_set::PolicySet};
use crate::{
    error::StoreError,
    key::Key,
    observe::{UnitsEvent, UnitsKind},
    store::{
        Completion, CounterOp, LimitHandle, Op, OpResult, Store, StoreResponse, TOO_FEW_RESULTS,
        Units,
    },
    strategy::{ChargeReceipt, Snapshot},
};

/// One counter of an adjustment. Units without a receipt are charged, units with one are refunded, at most its rest.
#[derive(Clone, Debug)]
pub(crate) struct Adjustment {
    pub(crate) limit: LimitHandle,
    pub(crate) key: Key,
    pub(crate) caller: Key,
    pub(crate) units: Units,
    pub(crate) receipt: Option<ChargeReceipt>,
    /// What is reported; `None` for permits, whose holders are reported.
    pub(crate) kind: Option<UnitsKind>,
    pub(crate) policy: PolicyName,
}

/// A policy, as it is reported.
#[derive(Clone, Debug)]
pub(crate) struct PolicyName {
    pub(crate) generation: u64,
    pub(crate) index: u32,
    pub(crate) name: Arc<str>,
}

impl PolicyName {
    /// The policy of an entry.
    pub(crate) fn of(set: &PolicySet, entry: &Entry) -> Self {
        Self {
            generation: set.generation,
            index: entry.policy,
            name: set.bound(entry.policy).policy.shared_name(),
        }
    }
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

/// Adjustments in one call of a store: all of them or none, on a cluster those of one slot.
pub(crate) struct AdjustCall {
    store: Arc<dyn Store>,
    pending: PendingAdjustments,
}

/// Adjustments until their result is known. Those without a result are reported as unconfirmed.
struct PendingAdjustments {
    listener: Arc<dyn AdjustListener>,
    adjustments: SmallVec<[Adjustment; 1]>,
}

impl AdjustCall {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        listener: Arc<dyn AdjustListener>,
        adjustments: impl IntoIterator<Item = Adjustment>,
    ) -> Self {
        Self {
            store,
            pending: PendingAdjustments {
                listener,
                adjustments: adjustments.into_iter().collect(),
            },
        }
    }

    /// Sends the call. If the future is dropped, it is made nevertheless.
    pub(crate) fn send(self) -> impl Future<Output = Result<AllAdjusted, StoreError>> + use<> {
        self.pending.announce_refunds();
        let response = with_ops(&self.pending.adjustments, |ops| {
            self.store.execute(Op::Adjust, ops)
        });
        async move {
            let result = match response {
                StoreResponse::Ready(result) => result,
                StoreResponse::Pending(response) => response.await,
            };
            // An error that says that nothing was done is returned, and the caller may repeat the call.
            self.pending.finish(result, false)
        }
    }

    /// Sends the call without a caller that awaits it: the store keeps what it can't send yet. `completion` is called with the result,
    /// or dropped.
    pub(crate) fn send_detached(
        self,
        completion: impl FnOnce(Result<AllAdjusted, StoreError>) + Send + 'static,
    ) {
        self.pending.announce_refunds();
        let adjustments = self.pending.adjustments.clone();
        let completion =
            Completion::new(move |result| completion(self.pending.finish(result, true)));
        with_ops(&adjustments, |ops| {
            self.store
                .execute_detached(Op::Adjust, ops, Some(completion));
        });
    }
}

/// Calls `call` with the store's operations for the adjustments.
fn with_ops<T>(adjustments: &[Adjustment], call: impl FnOnce(&[CounterOp<'_>]) -> T) -> T {
    let ops = adjustments.iter().map(Adjustment::op);
    call(&ops.collect::<SmallVec<[_; 2]>>())
}

impl Adjustment {
    /// A charge of the entry's cost.
    pub(crate) fn of(set: &PolicySet, entry: &Entry, kind: Option<UnitsKind>) -> Self {
        Self {
            limit: entry.limit(set).clone(),
            key: entry.key,
            caller: entry.caller(),
            // A block list counts nothing.
            units: if set.bound(entry.policy).policy.is_block_list() {
                Units::ZERO
            } else {
                entry.units()
            },
            receipt: None,
            kind,
            policy: PolicyName::of(set, entry),
        }
    }

    fn op(&self) -> CounterOp<'_> {
        CounterOp {
            units: self.units,
            receipt: self.receipt,
            caller: self.caller,
            ..CounterOp::new(&self.limit, self.key)
        }
    }

    /// Refunds the units without a caller that awaits it. Reports them as unconfirmed.
    pub(crate) fn refund_detached(&self, store: &dyn Store, listener: &dyn AdjustListener) {
        store.execute_detached(Op::Adjust, &[self.op()], None);
        listener.released(&self.policy.name, &self.key);
        self.report(listener, self.units.get(), false);
    }

    fn report(&self, listener: &dyn AdjustListener, units: u64, confirmed: bool) {
        let Some(kind) = self.kind.filter(|_| units > 0) else {
            return;
        };
        listener.on_units(&UnitsEvent {
            generation: self.policy.generation,
            index: self.policy.index as usize,
            policy: &self.policy.name,
            key: &self.key,
            kind,
            units,
            confirmed,
        });
    }
}

impl PendingAdjustments {
    /// Wakes the calls that wait for what is refunded.
    fn announce_refunds(&self) {
        for refund in self.adjustments.iter().filter(|one| one.receipt.is_some()) {
            self.listener.released(&refund.policy.name, &refund.key);
        }
    }

    /// Reads the result, and reports it. `keeps` is whether the store makes later what it could not do now.
    fn finish(
        mut self,
        result: Result<OpResult, StoreError>,
        keeps: bool,
    ) -> Result<AllAdjusted, StoreError> {
        let result = match result {
            Ok(result) if result.counters.len() < self.adjustments.len() => Err(TOO_FEW_RESULTS),
            result => result,
        };
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                if !error.may_have_run() && !keeps {
                    self.adjustments.clear();
                }
                return Err(error);
            }
        };
        // The store has them, so that a call that waits finds them.
        self.announce_refunds();
        let adjustments = mem::take(&mut self.adjustments);
        let counters = result.counters.iter().zip(&adjustments);
        let adjusted = counters.map(|(counter, adjustment)| {
            adjustment.report(&*self.listener, counter.units, true);
            let at = result.time_of(counter);
            let window_id = adjustment.limit.rule().window_id(&counter.snapshot, at);
            Adjusted {
                units: counter.units,
                receipt: ChargeReceipt::new(at, counter.units).with_window_id(window_id),
                snapshot: counter.snapshot,
            }
        });
        Ok(adjusted.collect())
    }
}

impl Drop for PendingAdjustments {
    fn drop(&mut self) {
        for adjustment in &self.adjustments {
            adjustment.report(&*self.listener, adjustment.units.get(), false);
        }
    }
}
