//! One policy's part of a decision.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::task::coop::consume_budget;

use super::{
    adjust::{Adjusted, Adjustment},
    core::LimiterCore,
    other_quotas::OtherQuota,
};
use crate::{
    error::StoreError,
    key::Key,
    observe::{PolicyKind, UnitsKind},
    store::Units,
    strategy::{ChargeReceipt, LazyStatus, QuotaStatus, RetryAfter, Snapshot},
    sync::lock,
};

/// One policy's part of a decision. Clones share its receipts.
#[derive(Clone, Debug)]
pub(crate) struct PolicyEntry {
    /// The policy's index in its limiter.
    pub(crate) policy: u32,
    pub(crate) role: PolicyRole,
    /// Units that the request costs.
    pub(crate) cost: u64,
    pub(crate) key: Key,
    /// The caller stored with the charge, for strategies that record callers.
    pub(crate) caller: Option<Box<Key>>,
    /// The request's own quota, or this process's share of a quota; `None`: the policy's own quota.
    pub(crate) other_quota: Option<OtherQuota>,
    pub(crate) lazy_status: LazyStatus,
    /// What was charged.
    pub(crate) receipts: Receipts,
}

/// A policy's `Enforcement` as a decision sees it. A decision's entries are in the order of these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PolicyRole {
    /// It is enforced.
    Live,
    /// It counts what the others reject, and is enforced.
    Ban,
    /// It is not enforced.
    Shadow {
        /// Whether it would have rejected.
        rejects: bool,
    },
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

impl PolicyEntry {
    /// An entry that the store has not evaluated.
    #[inline(always)]
    pub(crate) fn new(
        (policy, role): (u32, PolicyRole),
        key: Key,
        cost: u64,
        caller: Option<Box<Key>>,
        other_quota: Option<OtherQuota>,
    ) -> Self {
        Self {
            policy,
            role,
            cost,
            key,
            caller,
            other_quota,
            lazy_status: LazyStatus::Snapshot(Snapshot::default()),
            receipts: ChargeReceipt::EMPTY.into(),
        }
    }

    /// The caller that is stored with a charge: the key, unless the strategy records another one.
    pub(crate) fn caller(&self) -> Key {
        self.caller.as_deref().copied().unwrap_or(self.key)
    }

    /// The cost, as the store counts.
    pub(crate) fn units(&self) -> Units {
        Units::new(self.cost)
    }

    pub(crate) fn is_shadow(&self) -> bool {
        matches!(self.role, PolicyRole::Shadow { .. })
    }

    /// Whether it is a shadow that would have rejected.
    pub(crate) fn is_shadow_rejection(&self) -> bool {
        self.role == PolicyRole::Shadow { rejects: true }
    }

    /// The same with other receipts, such as those of a part of the charge.
    pub(crate) fn with_receipts(&self, receipts: Receipts) -> Self {
        Self {
            policy: self.policy,
            role: self.role,
            cost: self.cost,
            key: self.key,
            caller: self.caller.clone(),
            other_quota: self.other_quota.clone(),
            lazy_status: self.lazy_status,
            receipts,
        }
    }

    /// The status of the request under the policy.
    pub(crate) fn status(&self, limiter: &LimiterCore) -> QuotaStatus {
        let (rule, decided_at) = (limiter.limit(self).rule(), self.receipts.first().charged_at);
        self.lazy_status.get(rule, decided_at, self.units().get())
    }

    /// Whether the policy rejects the request, or would if it were enforced, by its status.
    pub(crate) fn rejects(&self, limiter: &LimiterCore) -> bool {
        self.cost > 0 && self.status(limiter).retry_after != RetryAfter::Now
    }

    /// Changes the status.
    pub(crate) fn update_status(
        &mut self,
        limiter: &LimiterCore,
        update: impl FnOnce(&mut QuotaStatus),
    ) {
        let mut status = self.status(limiter);
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
    pub(crate) fn mark_refunded(&mut self, limiter: &LimiterCore, units: u64) {
        let cost = self.cost;
        self.update_status(limiter, |status| {
            status.remaining = status.remaining.saturating_add(units);
            if status.remaining >= cost {
                status.retry_after = RetryAfter::Now;
            }
        });
    }

    /// Refunds up to `units`, the newest charge first; returns how many that were.
    pub(crate) async fn refund(
        &mut self,
        limiter: &LimiterCore,
        mut units: u64,
    ) -> Result<u64, StoreError> {
        // An in-process store responds at once: without this, a loop of refunds would starve other tasks.
        consume_budget().await;
        let (mut refunded, mut before) = (0, usize::MAX);
        while let Some(step) = self.receipts.take_refund_step(before, units) {
            (units, before) = (units - step.units, step.index);
            let refund = Adjustment {
                entry: self,
                receipt: Some(step.receipt),
                units: step.units,
                kind: UnitsKind::Refunded,
            };
            let adjusted = limiter.adjust(refund).await;
            let adjusted =
                adjusted.inspect_err(|error| self.receipts.fail_refund_step(&step, error))?;
            self.receipts.finish_refund_step(&step, adjusted.units);
            self.set_status(&adjusted);
            refunded += adjusted.units;
        }
        Ok(refunded)
    }

    /// Sets a shadow's status for the `i`th of several requests that were admitted together: it charged the first ones, as
    /// many as it would have admitted.
    pub(crate) fn split_shadow_share(&mut self, limiter: &LimiterCore, i: u64) {
        let charged = self.receipts.first().remaining;
        let charged = charged.checked_div(self.cost).unwrap_or(0);
        if charged == 0 {
            return;
        }
        let rejects = i >= charged;
        self.role = PolicyRole::Shadow { rejects };
        let units = if rejects { 0 } else { self.cost };
        self.receipts = self.receipts.split(units);
        let after = charged.saturating_sub(i).saturating_sub(1);
        if after > 0 {
            let later = after.saturating_mul(self.cost);
            self.update_status(limiter, |status| {
                status.retry_after = RetryAfter::Now;
                status.remaining = status.remaining.saturating_add(later);
            });
        }
    }

    /// Sets whether a shadow would reject the next request, from its status.
    pub(crate) fn refresh_shadow(&mut self, limiter: &LimiterCore) {
        if self.is_shadow() {
            let rejects = self.rejects(limiter);
            self.role = PolicyRole::Shadow { rejects };
        }
    }
}

/// The longest Retry-After of the enforced policies under which the request costs something.
pub(crate) fn longest_wait(limiter: &LimiterCore, entries: &[PolicyEntry]) -> RetryAfter {
    let enforced = entries.iter().take_while(|entry| !entry.is_shadow());
    let charged = enforced.filter(|entry| entry.cost > 0);
    let waits = charged.map(|entry| entry.status(limiter).retry_after);
    waits.max().unwrap_or(RetryAfter::Now)
}

/// The receipts of one request under one policy. Clones share them, so that each unit is refunded once, by whichever
/// clone.
#[derive(Debug)]
pub(crate) struct Receipts {
    /// The charge on arrival. The ledger, if there is one, has what is left of it.
    first: ChargeReceipt,
    /// Created by the first clone, refund or later charge; most requests have none.
    ledger: OnceLock<Arc<Mutex<Ledger>>>,
}

/// The charges of a request under one policy, and what is left of them.
#[derive(Debug)]
struct Ledger {
    /// The oldest first. A receipt keeps its index when nothing is left of it.
    receipts: SmallVec<[ChargeReceipt; 2]>,
    /// Whether the handler has settled the charge.
    settled: bool,
    /// Units that are charged without a receipt: by the response, or by a charge in flight.
    pending_units: u64,
}

/// One step of a refund: units of one receipt.
#[derive(Debug)]
pub(crate) struct RefundStep {
    /// The receipt's index.
    pub(crate) index: usize,
    /// The receipt as it was before this step.
    pub(crate) receipt: ChargeReceipt,
    /// The units to refund.
    pub(crate) units: u64,
}

impl From<ChargeReceipt> for Receipts {
    fn from(first: ChargeReceipt) -> Self {
        let ledger = OnceLock::new();
        Self { first, ledger }
    }
}

impl Clone for Receipts {
    fn clone(&self) -> Self {
        // A receipt of nothing needs no ledger.
        if self.first.remaining > 0 {
            self.shared();
        }
        Self {
            first: self.first,
            ledger: self.ledger.clone(),
        }
    }
}

impl Receipts {
    /// Sets the charge on arrival, before any clone.
    #[inline]
    pub(crate) fn set_first(&mut self, receipt: ChargeReceipt) {
        self.first = receipt;
    }

    /// The charge on arrival, with the units that it had then.
    pub(crate) fn first(&self) -> ChargeReceipt {
        self.first
    }

    /// Moves the time of a rejection, which charged nothing, later: it is repeated from the rejection cache.
    pub(crate) fn age_by(&mut self, by: Duration) {
        self.first.charged_at = self.first.charged_at + by;
    }

    /// Receipts of `units` of the charge on arrival, refunded independently of these.
    pub(crate) fn split(&self, units: u64) -> Self {
        Self::from(ChargeReceipt {
            remaining: units,
            ..self.first
        })
    }

    fn shared(&self) -> &Mutex<Ledger> {
        self.ledger.get_or_init(|| {
            Arc::new(Mutex::new(Ledger {
                receipts: SmallVec::from_iter([self.first]),
                settled: false,
                pending_units: 0,
            }))
        })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(self.shared())
    }

    /// Units that are charged and not refunded.
    pub(crate) fn net_charged(&self) -> u64 {
        let ledger = self.ledger();
        let left = ledger.receipts.iter().map(|receipt| receipt.remaining);
        left.fold(ledger.pending_units, u64::saturating_add)
    }

    /// Takes all units that are left, to refund them; returns their receipts.
    pub(crate) fn take(&mut self) -> SmallVec<[ChargeReceipt; 1]> {
        let mut taken = SmallVec::new();
        let mut take = |receipt: &mut ChargeReceipt| {
            if receipt.remaining > 0 {
                taken.push(*receipt);
                receipt.remaining = 0;
            }
        };
        if self.ledger.get().is_none() {
            take(&mut self.first);
        } else {
            self.ledger().receipts.iter_mut().for_each(take);
        }
        taken
    }

    /// Takes up to `units` of the newest receipt before index `before`, to refund them. A refund takes one receipt after the
    /// other, so that one that is dropped half-way leaves the others alone, and refunds nothing twice.
    pub(crate) fn take_refund_step(&self, before: usize, units: u64) -> Option<RefundStep> {
        let mut ledger = self.ledger();
        let older = ledger.receipts.iter_mut().enumerate().take(before);
        let (index, receipt) = older.filter(|(_, receipt)| receipt.remaining > 0).last()?;
        let (whole, units) = (*receipt, units.min(receipt.remaining));
        receipt.remaining -= units;
        (units > 0).then_some(RefundStep {
            index,
            receipt: whole,
            units,
        })
    }

    /// Puts back the units of a step that the store did not refund.
    pub(crate) fn finish_refund_step(&self, step: &RefundStep, refunded: u64) {
        if let Some(receipt) = self.ledger().receipts.get_mut(step.index) {
            receipt.remaining += step.units.saturating_sub(refunded);
        }
    }

    /// Puts back the units of a step that failed, unless they may have been refunded: then they count as refunded.
    pub(crate) fn fail_refund_step(&self, step: &RefundStep, error: &StoreError) {
        if !error.may_have_run() {
            self.finish_refund_step(step, 0);
        }
    }

    /// Adds a later charge.
    pub(crate) fn add(&self, receipt: ChargeReceipt) {
        self.ledger().receipts.push(receipt);
    }

    /// Adds units that are charged without a receipt, or whose receipt is not here yet.
    pub(crate) fn add_pending(&self, units: Units) {
        let mut ledger = self.ledger();
        ledger.pending_units = ledger.pending_units.saturating_add(units.get());
    }

    /// Removes the pending units of a charge that failed, unless it may have been made: then it counts as made.
    pub(crate) fn fail_pending(&self, units: Units, error: &StoreError) {
        if !error.may_have_run() {
            self.clear_pending(units);
        }
    }

    /// Removes pending units, since the store has responded to their charge.
    pub(crate) fn clear_pending(&self, units: Units) {
        let mut ledger = self.ledger();
        ledger.pending_units = ledger.pending_units.saturating_sub(units.get());
    }

    /// Whether the handler has settled the charge.
    pub(crate) fn is_settled(&self) -> bool {
        self.ledger.get().is_some() && self.ledger().settled
    }

    /// Records that the handler has settled the charge.
    pub(crate) fn mark_settled(&self) {
        self.ledger().settled = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn of(units: u64) -> Receipts {
        Receipts::from(ChargeReceipt {
            charged_at: Timestamp::from_micros(1),
            remaining: units,
            window_id: 0,
        })
    }

    #[test]
    fn parts_are_refunded_separately() {
        let charged = of(6);
        let part = charged.split(2);
        assert_eq!(
            part.take_refund_step(usize::MAX, 9).expect("a piece").units,
            2
        );
        assert_eq!((charged.net_charged(), part.net_charged()), (6, 0));
    }

    #[test]
    fn units_are_put_back_into_the_receipt_they_came_from() {
        let mut charged = of(1);
        charged.add(ChargeReceipt {
            remaining: 2,
            ..charged.first()
        });
        let step = charged.take_refund_step(usize::MAX, 5).expect("a piece");
        assert_eq!((step.index, step.units), (1, 2));
        assert_eq!(charged.take().len(), 1);
        charged.add(charged.first());
        charged.finish_refund_step(&step, 0);
        let left: Vec<_> = charged
            .take()
            .iter()
            .map(|receipt| receipt.remaining)
            .collect();
        assert_eq!(left, [2, 1]);
    }
}
