//! Operations on a store.

use super::{LimitHandle, Units};
use crate::{key::Key, strategy::ChargeReceipt};

/// What is asked about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Charge every line for as many of so many equal requests as there is room for under every one: one, as a rule.
    Acquire(u32),
    /// Charge nothing, and tell how it stands.
    Peek,
    /// Charge every line, past what is left if need be: down to a debt of at most one capacity.
    ForceAcquire,
    /// Give units of each line's receipt back, as far as time has not, parts of a unit included.
    Refund,
    /// Charge the lines without a receipt as [`ForceAcquire`](Op::ForceAcquire) does, and refund the others as
    /// [`Refund`](Op::Refund) does: all lines of one [shard](Store::shard), or none.
    Settle,
    /// Forget each line's key, and tell how it stood.
    Reset,
    /// Let the permit that each line's caller holds live on.
    Renew,
}

impl Op {
    /// What it does to one line.
    pub(crate) fn of_line(self, line: &CounterOp<'_>) -> Self {
        match self {
            Self::Settle if line.receipt.remaining > 0 => Self::Refund,
            Self::Settle => Self::ForceAcquire,
            other => other,
        }
    }

    /// Whether the wait of a request that was rejected before may be another one after it.
    #[cfg(feature = "redis")]
    pub(crate) fn lifts(self) -> bool {
        matches!(
            self,
            Self::Refund | Self::Settle | Self::Reset | Self::ForceAcquire
        )
    }
}

/// One policy's part of a request.
#[derive(Clone, Copy, Debug)]
pub struct CounterOp<'a> {
    /// What it is counted by.
    pub limit: &'a LimitHandle,
    /// Who is asking.
    pub key: Key,
    /// How many units of each request: any number up to [`Units::MAX`], also more than there can be room for.
    pub units: Units,
    /// Only to give back: what was charged.
    pub receipt: ChargeReceipt,
    /// The caller to store with the charge, where the rule [records it](Rule::records_caller).
    pub caller: Key,
    /// What a [`Acquire`](Op::Acquire) does under this policy.
    pub mode: CounterMode,
}

impl<'a> CounterOp<'a> {
    /// The line of a request for one unit, signed with its own key.
    pub(crate) fn plain(limit: &'a LimitHandle, key: Key) -> Self {
        Self {
            limit,
            key,
            units: Units::ONE,
            receipt: ChargeReceipt::NONE,
            caller: key,
            mode: CounterMode::Charge,
        }
    }
}

/// What a [`Acquire`](Op::Acquire) does under one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterMode {
    /// Charges what it admits.
    #[default]
    Charge,
    /// Sees that there is room, and charges nothing.
    Check,
    /// Charges what it admits, and what it refuses for want of room under this policy too: down to a debt of at most one
    /// capacity, or, where the rule [stores each unit](Rule::stores_each_unit), no debt.
    ChargeRejectedToo,
    /// Sees that there is room, and charges its units for each request that other lines refuse: under a rule that
    /// [counts rejections](Rule::counts_rejections). Without room it refuses, whatever its units are, and nothing is charged
    /// for what it refuses: of several requests at once, the refused ones count under all lines until its room is used up.
    /// It has no units where a request will be asked about again, so that it isn't refused yet.
    ///
    /// Whatever answers in place of the store must not keep refusals from such a line, unless it was this line that
    /// refused.
    CountRejections,
    /// Refuses nothing, and charges what it would admit if it stood in the place of another line, or beside them all.
    Shadow {
        /// The place of the line that it would stand for.
        replaces: Option<usize>,
        /// Whether it charges, or only sees that there is room.
        charges: bool,
    },
}

impl CounterMode {
    /// Whether it refuses nothing, and counts by itself.
    pub(crate) fn is_shadow(self) -> bool {
        matches!(self, Self::Shadow { .. })
    }
}
