//! Settling the charges of a request to their true costs, under several policies together.

use std::{future::poll_fn, mem, sync::Arc, task::Poll};

use smallvec::SmallVec;
use tokio::{runtime::Handle, sync::OwnedMutexGuard};

use super::{
    adjust::{AdjustCall, Adjustment, AllAdjusted},
    admission::{Admission, EntryPosition},
    core::LimiterCore,
    entry::{PolicyEntry, PolicyRole, RefundStep},
};
use crate::{
    error::{StoreError, UnknownPolicy},
    observe::UnitsKind,
    store::Units,
};

/// The error of [`Admission::settle_each`](crate::Admission::settle_each).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// No policy has the name. Nothing was settled.
    #[error(transparent)]
    UnknownPolicy(#[from] UnknownPolicy),
    /// The store failed.
    #[error("{error}; policies settled nevertheless: {settled:?}")]
    #[non_exhaustive]
    Store {
        /// The policies that were settled nevertheless: those of another layer, or in another slot of a cluster.
        settled: Vec<Arc<str>>,
        /// The store's error.
        #[source]
        error: StoreError,
    },
}

/// Selects charges of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Charges {
    All,
    /// All but permits: each has an identity in the store, so their number is not corrected.
    Units,
}

/// Upper bound of the adjustments that are sent together. A policy that was charged often has as many receipts.
const MAX_ADJUSTMENTS: usize = 64;

/// What remains to be charged or refunded to settle one entry.
struct Correction {
    at: EntryPosition,
    /// The index of the policy among those that are settled.
    policy: usize,
    charge: Units,
    refund: u64,
    /// The index of the receipt that was refunded last. Older ones follow.
    before: usize,
}

/// A part of a correction: a charge, or a step of a refund.
pub(super) struct PlannedAdjustment {
    at: EntryPosition,
    policy: usize,
    charge: Units,
    step: Option<RefundStep>,
    /// Adjustments of one decision in one shard are one call of the store.
    pub(super) call: (usize, (bool, usize)),
}

/// A settlement without a waiter. Dropping it sends it, unless it was sent before.
struct Settlement {
    admission: Admission,
    true_costs: Vec<(Arc<str>, u64)>,
}

impl Admission {
    /// Settles the charges under these policies, each to its true cost: see [`settle_each`](Self::settle_each).
    pub(super) async fn settle_all(
        &self,
        true_costs: &[(Arc<str>, u64)],
    ) -> Result<(), SettleError> {
        let _lock = self.settle_lock().lock_owned().await;
        let mut corrections = self.corrections(true_costs);
        loop {
            let adjustments = self.next_adjustments(&mut corrections);
            if adjustments.is_empty() {
                return Ok(());
            }
            // All calls are sent before the first result is awaited.
            let calls = adjustments.chunk_by(|adjustment, next| adjustment.call == next.call);
            let mut calls: Vec<_> = calls
                .filter_map(|planned| Some((planned, self.call_of(planned)?.send())))
                .collect();
            let (mut failed, mut error) = (Vec::new(), None);
            // Each result is applied when it comes: this future may be dropped while it waits for the others.
            poll_fn(|cx| {
                calls.retain_mut(|(adjustments, call)| {
                    let Poll::Ready(result) = call.as_mut().poll(cx) else {
                        return true;
                    };
                    self.apply_result(adjustments, &result);
                    if let Err(reason) = result {
                        failed.extend(adjustments.iter().map(|adjustment| adjustment.policy));
                        error = Some(reason);
                    }
                    false
                });
                if calls.is_empty() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            if let Some(error) = error {
                let unfinished = corrections.iter().filter(|rest| rest.refund > 0);
                failed.extend(unfinished.map(|rest| rest.policy));
                let names = true_costs.iter().enumerate();
                let names = names.filter(|(policy, _)| !failed.contains(policy));
                let settled = names.map(|(_, (name, _))| name.clone()).collect();
                return Err(SettleError::Store { settled, error });
            }
        }
    }

    /// Fails if the request was checked, but by no limiter with a policy of that name.
    pub(super) fn check_policy(&self, policy: &str) -> Result<(), UnknownPolicy> {
        let mut known = Vec::new();
        self.for_each_decision(|_, decision| {
            known.extend(
                decision
                    .limiter
                    .policies()
                    .map(|policy| policy.name().to_owned()),
            );
        });
        if known.is_empty() || known.iter().any(|known| known == policy) {
            return Ok(());
        }
        Err(UnknownPolicy::new(policy, known))
    }

    /// The differences between what is charged and each true cost. From now on the response does not change these charges.
    fn corrections(&self, true_costs: &[(Arc<str>, u64)]) -> Vec<Correction> {
        let mut corrections = Vec::new();
        for (policy, (name, true_cost)) in true_costs.iter().enumerate() {
            for at in self.charged_entries(Some(name), Charges::Units) {
                let net = self.with_entry(at, |_, entry| {
                    entry.receipts.mark_settled();
                    entry.receipts.net_charged()
                });
                let net = net.unwrap_or(*true_cost);
                corrections.push(Correction {
                    at,
                    policy,
                    charge: Units::new(true_cost.saturating_sub(net)),
                    refund: net.saturating_sub(*true_cost),
                    before: usize::MAX,
                });
            }
        }
        corrections
    }

    /// Takes the next adjustments of the corrections, ordered by call.
    fn next_adjustments(&self, corrections: &mut [Correction]) -> Vec<PlannedAdjustment> {
        let mut adjustments = Vec::new();
        for correction in corrections {
            let (at, policy) = (correction.at, correction.policy);
            self.with_entry(at, |limiter, entry| {
                let call = (at.decision, limiter.shard(entry));
                let adjustment = |charge, step| PlannedAdjustment {
                    at,
                    policy,
                    charge,
                    step,
                    call,
                };
                let charge = mem::replace(&mut correction.charge, Units::ZERO);
                if !charge.is_zero() {
                    // Pending from now on: if the future is dropped, it is charged nevertheless, and counts for later calls.
                    entry.receipts.add_pending(charge);
                    adjustments.push(adjustment(charge, None));
                }
                while correction.refund > 0 && adjustments.len() < MAX_ADJUSTMENTS {
                    let (before, units) = (correction.before, correction.refund);
                    let Some(step) = entry.receipts.take_refund_step(before, units) else {
                        correction.refund = 0;
                        break;
                    };
                    correction.refund -= step.units;
                    correction.before = step.index;
                    adjustments.push(adjustment(Units::ZERO, Some(step)));
                }
            });
        }
        adjustments.sort_by_key(|adjustment| adjustment.call);
        adjustments
    }

    fn apply_result(
        &self,
        adjustments: &[PlannedAdjustment],
        result: &Result<AllAdjusted, StoreError>,
    ) {
        for (index, adjustment) in adjustments.iter().enumerate() {
            self.with_entry(adjustment.at, |_, entry| match (result, &adjustment.step) {
                (Ok(adjusted), None) => {
                    entry.receipts.clear_pending(adjustment.charge);
                    entry.push_charge(&adjusted[index]);
                }
                (Ok(adjusted), Some(step)) => {
                    entry
                        .receipts
                        .finish_refund_step(step, adjusted[index].units);
                    entry.set_status(&adjusted[index]);
                }
                (Err(error), None) => entry.receipts.fail_pending(adjustment.charge, error),
                (Err(error), Some(step)) => entry.receipts.fail_refund_step(step, error),
            });
        }
    }

    /// The call that makes these adjustments.
    fn call_of(&self, adjustments: &[PlannedAdjustment]) -> Option<AdjustCall> {
        let index = adjustments.first()?.at.decision;
        let call = self.with_decision(index, |decision| {
            let adjustments = adjustments.iter().filter_map(|adjustment| {
                let entry = decision.entries.get(adjustment.at.entry)?;
                Some(match &adjustment.step {
                    None => Adjustment {
                        entry,
                        receipt: None,
                        units: adjustment.charge.get(),
                        kind: UnitsKind::SettledMore,
                    },
                    Some(step) => Adjustment {
                        entry,
                        receipt: Some(step.receipt),
                        units: step.units,
                        kind: UnitsKind::SettledLess,
                    },
                })
            });
            let adjustments: SmallVec<[_; 4]> = adjustments.collect();
            decision.limiter.adjust_call(&adjustments)
        });
        call.flatten()
    }

    pub(super) fn with_entry<T>(
        &self,
        at: EntryPosition,
        with: impl FnOnce(&LimiterCore, &mut PolicyEntry) -> T,
    ) -> Option<T> {
        self.with_decision(at.decision, |decision| {
            let entry = decision.entries.get_mut(at.entry)?;
            Some(with(&decision.limiter, entry))
        })?
    }

    /// The entries of a policy, or of all, that were charged.
    pub(super) fn charged_entries(
        &self,
        policy: Option<&str>,
        which: Charges,
    ) -> Vec<EntryPosition> {
        let mut found = Vec::new();
        self.for_each_decision(|decision_index, decision| {
            for (index, entry) in decision.entries.iter().enumerate() {
                let bound = decision.limiter.bound(entry.policy);
                let included = policy.is_none_or(|policy| bound.policy.name() == policy)
                    && (which == Charges::All || !bound.is_permit());
                // A ban counts rejections, and under a shadow that rejects, the work never began.
                if included && entry.role != PolicyRole::Ban && !entry.is_shadow_rejection() {
                    found.push(EntryPosition {
                        decision: decision_index,
                        entry: index,
                    });
                }
            }
        });
        found
    }

    /// Settles on any thread, also outside a runtime. What the store can't be sent now, it keeps.
    pub(super) fn settle_in_background(self, true_costs: Vec<(Arc<str>, u64)>) {
        let lock = self.settle_lock();
        let mut settlement = Settlement {
            admission: self,
            true_costs,
        };
        match (lock.clone().try_lock_owned(), Handle::try_current()) {
            (Ok(lock), _) => settlement.send(Some(lock)),
            // Another settlement of this request is in progress: send it afterwards, or when the runtime ends.
            (Err(_), Ok(runtime)) => drop(runtime.spawn(async move {
                let lock = lock.lock_owned().await;
                settlement.send(Some(lock));
            })),
            // Charges of that settlement already count as made.
            (Err(_), Err(_)) => drop(settlement),
        }
    }
}

impl Settlement {
    fn send(&mut self, lock: Option<OwnedMutexGuard<()>>) {
        let true_costs = mem::take(&mut self.true_costs);
        if true_costs.is_empty() {
            return;
        }
        let admission = &self.admission;
        let lock = lock.map(Arc::new);
        let mut corrections = admission.corrections(&true_costs);
        loop {
            let mut adjustments = admission.next_adjustments(&mut corrections);
            if adjustments.is_empty() {
                return;
            }
            while let Some(first) = adjustments.first().map(|adjustment| adjustment.call) {
                let rest = adjustments
                    .split_off(adjustments.partition_point(|adjustment| adjustment.call == first));
                let planned = mem::replace(&mut adjustments, rest);
                let (lock, shared) = (lock.clone(), admission.downgrade());
                if let Some(call) = admission.call_of(&planned) {
                    call.send_detached(move |result| {
                        // Without a result it counts as settled: it may be, or will be.
                        if let (Some(admission), Ok(_)) = (shared.upgrade(), &result) {
                            admission.apply_result(&planned, &result);
                        }
                        drop(lock);
                    });
                }
            }
        }
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.send(None);
    }
}
