//! An entry: a policy that applies to a request, with key, cost and quota, and what the store answered.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    policy_set::{Policies, PolicyRole},
    quota_limits::QuotaLimit,
};
use crate::{
    key::Key,
    store::{CounterOp, LimitHandle, Store, Units},
    strategy::{ChargeReceipt, LazyStatus, QuotaStatus, RetryAfter, Snapshot},
};

/// The entries of a request: live policies first, then bans, then shadows.
pub(crate) type Entries = SmallVec<[Entry; 1]>;

/// A policy that applies to a request.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The policy's index in its set.
    pub(crate) policy: u32,
    pub(crate) role: PolicyRole,
    pub(crate) cost: u64,
    pub(crate) key: Key,
    /// The caller that the store records with the charge, if it is not the key.
    pub(crate) caller: Option<Box<Key>>,
    /// The quota, if it is not the policy's own.
    pub(crate) quota: Option<QuotaLimit>,
    pub(crate) status: LazyStatus,
    /// What the store charged on arrival, and when it decided.
    pub(crate) receipt: ChargeReceipt,
}

impl Entry {
    /// An entry that the store has not answered.
    #[inline(always)]
    pub(crate) fn new(
        (policy, role): (u32, PolicyRole),
        key: Key,
        cost: u64,
        caller: Option<Box<Key>>,
        quota: Option<QuotaLimit>,
    ) -> Self {
        Self {
            policy,
            role,
            cost,
            key,
            caller,
            quota,
            status: LazyStatus::Snapshot(Snapshot::default()),
            receipt: ChargeReceipt::EMPTY,
        }
    }

    /// The caller that the store records with the charge.
    pub(crate) fn caller(&self) -> Key {
        self.caller.as_deref().copied().unwrap_or(self.key)
    }

    pub(crate) fn units(&self) -> Units {
        Units::new(self.cost)
    }

    pub(crate) fn is_shadow(&self) -> bool {
        matches!(self.role, PolicyRole::Shadow { .. })
    }

    /// Whether a shadow would reject the request.
    pub(crate) fn is_shadow_rejection(&self) -> bool {
        self.role == PolicyRole::Shadow { rejects: true }
    }

    /// The policy's name.
    pub(crate) fn name<'a>(&self, policies: &'a Policies) -> &'a str {
        policies.bound(self.policy).policy.name()
    }

    /// The limit of its quota.
    #[inline]
    pub(crate) fn limit<'a>(&'a self, policies: &'a Policies) -> &'a LimitHandle {
        match &self.quota {
            Some(quota) => &quota.limit,
            None => &policies.bound(self.policy).limit,
        }
    }

    /// Whether this process's share counts it.
    pub(crate) fn is_share(&self) -> bool {
        self.quota.as_ref().is_some_and(QuotaLimit::is_share)
    }

    /// The store that counts it.
    pub(crate) fn store<'a>(&self, policies: &'a Policies) -> &'a dyn Store {
        match &policies.shares {
            Some(shares) if self.is_share() => &**shares,
            _ => &*policies.store,
        }
    }

    /// An operation on what it was charged on arrival.
    pub(crate) fn counter_op<'a>(&'a self, policies: &'a Policies) -> CounterOp<'a> {
        let op = CounterOp::new(self.limit(policies), self.key);
        op.with_units(Units::new(self.receipt.remaining))
            .with_caller(self.caller())
    }

    pub(crate) fn status(&self, policies: &Policies) -> QuotaStatus {
        let rule = self.limit(policies).rule();
        self.status
            .get(rule, self.receipt.charged_at, self.units().get())
    }

    /// Whether the policy has too few units for the request.
    pub(crate) fn rejects(&self, policies: &Policies) -> bool {
        self.cost > 0 && self.status(policies).retry_after != RetryAfter::Now
    }

    pub(crate) fn update_status(
        &mut self,
        policies: &Policies,
        update: impl FnOnce(&mut QuotaStatus),
    ) {
        let mut status = self.status(policies);
        update(&mut status);
        self.status = LazyStatus::Resolved(status);
    }

    /// Shortens the waits of a result that is `by` old.
    pub(crate) fn age(&mut self, policies: &Policies, by: Duration) {
        let cost = self.cost;
        self.update_status(policies, |status| status.advance(by, cost));
        self.receipt.charged_at = self.receipt.charged_at + by;
    }

    /// The units that the key has in use; `None` if the strategy doesn't say, or of a rejected request, whose snapshot is not kept.
    pub(crate) fn units_in_use(&self, policies: &Policies) -> Option<u64> {
        let LazyStatus::Snapshot(snapshot) = &self.status else {
            return None;
        };
        let rule = self.limit(policies).rule();
        rule.units_in_use(snapshot, self.receipt.charged_at)
    }
}

/// The longest `Retry-After` of the enforced policies under which the request costs something.
pub(crate) fn longest_wait(policies: &Policies, entries: &[Entry]) -> RetryAfter {
    let enforced = entries.iter().take_while(|entry| !entry.is_shadow());
    let charged = enforced.filter(|entry| entry.cost > 0);
    let waits = charged.map(|entry| entry.status(policies).retry_after);
    waits.max().unwrap_or(RetryAfter::Now)
}
