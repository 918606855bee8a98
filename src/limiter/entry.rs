//! One policy's part of a decision.

use tokio::task::coop::consume_budget;

use super::{
    adjust::{Adjusted, Adjustment},
    core::LimiterCore,
    quota_overrides::QuotaOverride,
    receipts::Receipts,
};
use crate::{
    error::StoreError,
    key::Key,
    observe::PolicyKind,
    store::{Op, Units},
    strategy::{ChargeReceipt, LazyStatus, QuotaStatus, RetryAfter, Snapshot},
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
    pub(crate) quota_override: Option<QuotaOverride>,
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
        quota_override: Option<QuotaOverride>,
    ) -> Self {
        Self {
            policy,
            role,
            cost,
            key,
            caller,
            quota_override,
            lazy_status: LazyStatus::Snapshot(Snapshot::default()),
            receipts: ChargeReceipt::NONE.into(),
        }
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
            quota_override: self.quota_override.clone(),
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
        let (mut refunded, mut before, mut deferred) = (0, usize::MAX, None);
        while let Some(step) = self.receipts.take_refund_step(before, units) {
            (units, before) = (units - step.units, step.index);
            let adjustment = Adjustment {
                entry: self,
                receipt: step.receipt,
                units: step.units,
            };
            let adjusted = limiter.adjust(Op::Refund, &[adjustment]).await;
            let adjusted = adjusted.inspect_err(|error| self.receipts.note_failure(error));
            let adjusted = StoreError::set_aside(adjusted, &mut deferred)?;
            for adjusted in adjusted.into_iter().flatten() {
                self.receipts.finish_refund_step(&step, adjusted.units);
                self.set_status(&adjusted);
                refunded += adjusted.units;
            }
        }
        deferred.map_or(Ok(refunded), Err)
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
