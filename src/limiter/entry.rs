//! One policy's part of a decision.

use super::{quota_overrides::QuotaOverride, receipts::Receipts};
use crate::{
    key::Key,
    store::Units,
    strategy::{ChargeReceipt, QuotaStatus, Snapshot},
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

/// A policy's status for a request: only the snapshot, until the status is read. Most never are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LazyStatus {
    Snapshot(Snapshot),
    Resolved(QuotaStatus),
}

/// A policy's `Enforcement` as a decision sees it, in the order of a decision's entries.
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
}
