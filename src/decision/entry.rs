//! What is known of a request under one policy.

use super::{Adjusted, Books, Receipts, quota_override::Tier};
use crate::{
    key::Key,
    store::Units,
    strategy::{ChargeReceipt, QuotaStatus, RetryAfter, Snapshot},
};

/// How it stands with one policy. Clones share its receipts.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) policy: u32,
    pub(crate) part: Part,
    /// As it was asked for.
    pub(crate) cost: u64,
    pub(crate) key: Key,
    /// The caller stored with the charge, for strategies that record callers.
    pub(crate) by: Option<Box<Key>>,
    /// The request's own quota, if it has one, or this process's share of it, if that is what it was judged by.
    pub(crate) tier: Option<Tier>,
    pub(crate) standing: Standing,
    /// What was charged.
    pub(crate) receipts: Receipts,
}

/// A policy's status for a request: only the snapshot, until the status is asked for.
/// Most never do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing {
    Snapshot(Snapshot),
    Told(QuotaStatus),
}

/// What a policy has to say in a decision. In this order they stand in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// It is enforced.
    Live,
    /// It counts what the others refuse, and is enforced.
    Ban,
    /// It isn't enforced.
    Shadow {
        /// Whether it would have refused.
        refuses: bool,
    },
}

impl Counted {
    /// What is known before the store is asked.
    pub(crate) fn unasked(
        (policy, part): (u32, Part),
        key: Key,
        cost: u64,
        by: Option<Box<Key>>,
        tier: Option<Tier>,
    ) -> Self {
        Self {
            policy,
            part,
            cost,
            key,
            by,
            tier,
            standing: Standing::Snapshot(Snapshot::default()),
            receipts: ChargeReceipt::NONE.into(),
        }
    }

    /// What a store is asked for.
    pub(crate) fn units(&self) -> Units {
        Units::new(self.cost)
    }

    /// What may be expected, as far as is known.
    pub(crate) fn status(&self, books: &dyn Books) -> QuotaStatus {
        match &self.standing {
            Standing::Snapshot(snapshot) => books.status(self, snapshot),
            Standing::Told(status) => *status,
        }
    }

    /// Notes what more is known of what may be expected.
    pub(crate) fn amend(&mut self, books: &dyn Books, by: impl FnOnce(&mut QuotaStatus)) {
        let mut status = self.status(books);
        by(&mut status);
        self.standing = Standing::Told(status);
    }

    pub(crate) fn is_shadow(&self) -> bool {
        matches!(self.part, Part::Shadow { .. })
    }

    /// Whether it would have refused, had it been enforced.
    pub(crate) fn is_shadow_refusal(&self) -> bool {
        self.part == Part::Shadow { refuses: true }
    }

    /// The same with other receipts, such as those of a part of the charge.
    pub(crate) fn with_receipts(&self, receipts: Receipts) -> Self {
        Self {
            policy: self.policy,
            part: self.part,
            cost: self.cost,
            key: self.key,
            by: self.by.clone(),
            tier: self.tier.clone(),
            standing: self.standing,
            receipts,
        }
    }

    /// Notes a charge that was made afterwards.
    pub(crate) fn charged(&mut self, adjusted: &Adjusted) {
        self.adjusted(adjusted);
        self.receipts.add(adjusted.receipt);
    }

    /// Notes how it stands since a charge or a refund.
    pub(crate) fn adjusted(&mut self, adjusted: &Adjusted) {
        self.standing = Standing::Told(adjusted.status);
    }

    /// Notes that `units` of it are being refunded.
    pub(crate) fn given_back(&mut self, books: &dyn Books, units: u64) {
        let cost = self.cost;
        self.amend(books, |status| {
            status.remaining = status.remaining.saturating_add(units);
            if status.remaining >= cost {
                status.retry_after = RetryAfter::Now;
            }
        });
    }
}
