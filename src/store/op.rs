//! Operations on a store.

use super::handle::LimitHandle;
use crate::{key::Key, strategy::ChargeReceipt};

/// An operation of a store on the [counters](CounterOp) of one request.
///
/// | op | does | for |
/// |---|---|---|
/// | [`Acquire`](Op::Acquire) | charges as many of some equal requests as fit | a request's check |
/// | [`Peek`](Op::Peek) | reads | [`Limiter::peek`](crate::Limiter::peek), explanations |
/// | [`Adjust`](Op::Adjust) | charges into debt, or refunds | charges, refunds, settlements and credits, rollbacks, released permits |
/// | [`Reset`](Op::Reset) | removes keys | [`Limiter::reset`](crate::Limiter::reset) |
/// | [`Renew`](Op::Renew) | extends permits | [`Store::keep_alive`](super::Store::keep_alive) on a server |
///
/// All of them report the state of each counter. New operations may be added: a store returns
/// [`StoreError::Unsupported`](crate::StoreError::Unsupported) for those that it doesn't know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Charges every counter for as many of this number of equal requests as fit under all of them. The number is at least 1,
    /// and most often 1. The [mode](CounterOp::mode) of a counter may change what is charged.
    Acquire(u32),
    /// Reports the state, and changes nothing: no count, no time to live.
    Peek,
    /// Charges or refunds units after a decision.
    ///
    /// - A counter without a [receipt](CounterOp::receipt) is charged its units, also if fewer are available: down to a debt of at
    ///   most one [capacity](crate::strategy::RuleInfo::capacity).
    /// - A counter with a receipt is refunded up to its units: at most what [remains](ChargeReceipt::remaining) on the receipt, and
    ///   only units that have not refilled already. The rest of a partly refilled unit counts as one. An empty receipt, or one of a
    ///   window that has ended, refunds nothing.
    ///
    /// Within one [shard](super::Store::shard) all counters are adjusted or none, and all charges are made before the first refund.
    Adjust,
    /// Removes each counter's key, and reports the state before.
    Reset,
    /// Extends the permits that each counter's [caller](CounterOp::caller) holds by one
    /// [TTL](crate::strategy::RuleInfo::permit_ttl).
    Renew,
}

impl Op {
    /// Whether it has no use unless its response is read: it is not sent once its waiter is gone, and what it has charged is
    /// refunded.
    #[cfg(feature = "redis")]
    pub(crate) fn needs_reader(self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Peek)
    }

    /// Whether, after it, a rejected key may be admitted before its `Retry-After`: cached rejections of the key are invalid.
    #[cfg(feature = "redis")]
    pub(crate) fn may_admit_sooner(self) -> bool {
        matches!(self, Self::Adjust | Self::Reset)
    }
}

/// One policy's part of an [operation](Op).
///
/// ```
/// use tollgate::{
///     Gcra, Key, Quota, clock::Timestamp, store::{CounterMode, CounterOp, LimitHandle, Units},
///     strategy::{ChargeReceipt, Strategy, Terms},
/// };
///
/// let rule = Gcra.bind(&Quota::requests(5).per_day(), &Terms::default())?;
/// let limit = LimitHandle::new("daily", rule, ());
/// let counter = CounterOp::new(&limit, Key::new("alice")).with_units(Units::new(3));
/// assert_eq!(counter.limit.policy(), "daily");
/// assert_eq!((counter.caller, counter.mode), (counter.key, CounterMode::Charge));
/// assert_eq!(counter.receipt, None);
/// let refund = counter.with_receipt(ChargeReceipt::new(Timestamp::from_micros(7), 3));
/// assert!(refund.receipt.is_some());
/// # Ok::<(), tollgate::error::InvalidValue>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CounterOp<'a> {
    /// The limit, as the store [registered](super::Store::register) it.
    pub limit: &'a LimitHandle,
    /// The key to count by.
    pub key: Key,
    /// The units of each request: from 0 to [`Units::MAX`], also more than the capacity.
    pub units: Units,
    /// The receipt by which an [`Op::Adjust`] refunds the units. `None` if it charges them, and for other operations.
    pub receipt: Option<ChargeReceipt>,
    /// The caller to store with the charge, if the rule [records callers](crate::strategy::RuleInfo::records_caller); for a permit,
    /// its unique name.
    pub caller: Key,
    /// The behavior of [`Op::Acquire`] under this policy.
    pub mode: CounterMode,
}

impl<'a> CounterOp<'a> {
    /// An operation on one unit under `key`, with the key as the caller, the mode [`CounterMode::Charge`] and no receipt.
    pub const fn new(limit: &'a LimitHandle, key: Key) -> Self {
        Self {
            limit,
            key,
            units: Units::ONE,
            receipt: None,
            caller: key,
            mode: CounterMode::Charge,
        }
    }

    /// This operation with other [units](CounterOp::units).
    #[must_use]
    pub const fn with_units(mut self, units: Units) -> Self {
        self.units = units;
        self
    }

    /// This operation as a refund by this [receipt](CounterOp::receipt).
    #[must_use]
    pub const fn with_receipt(mut self, receipt: ChargeReceipt) -> Self {
        self.receipt = Some(receipt);
        self
    }

    /// This operation with a [caller](CounterOp::caller) other than the key.
    #[must_use]
    pub const fn with_caller(mut self, caller: Key) -> Self {
        self.caller = caller;
        self
    }

    /// This operation with another [mode](CounterOp::mode).
    #[must_use]
    pub const fn with_mode(mut self, mode: CounterMode) -> Self {
        self.mode = mode;
        self
    }
}

/// The behavior of [`Op::Acquire`] under one policy.
///
/// A request *fits* if the available units suffice for it and for the requests of this operation that are admitted before it. It is
/// admitted if it fits under all its counters, those of shadow policies aside, and is charged under all of them or none.
///
/// New modes may be added: a store returns [`StoreError::Unsupported`](crate::StoreError::Unsupported) for those that it
/// doesn't know, or doesn't support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterMode {
    /// Rejects requests that don't fit, and charges those that are admitted.
    #[default]
    Charge,
    /// Rejects if fewer units are available than one request costs, and charges nothing: for a policy that charges after the
    /// response.
    Check,
    /// Like [`Charge`](CounterMode::Charge), and also charges requests that this policy rejects, down to a debt of at most one
    /// capacity, or without debt if the rule [stores each unit](crate::strategy::RuleInfo::stores_each_unit).
    ChargeRejectedToo,
    /// Charges its units for each request that *other* counters reject, under a rule that
    /// [counts rejections](crate::strategy::RuleInfo::counts_rejections): a ban.
    ///
    /// If no units are available, the key is banned: the request is rejected, whatever its units, and nothing is charged for that.
    /// Of several requests at once, rejected ones are charged until the units are exhausted; later requests are charged under
    /// no counter. The units are 0 for a request that waits and will be checked again.
    ///
    /// A cache of rejections must not reject a request with such a counter, since the rejection would not be counted, unless it is
    /// this counter that rejects.
    CountRejections,
    /// Rejects nothing: a shadow policy, which is evaluated and not enforced. Of the requests that the other counters admit,
    /// those that fit under this one are charged. The store reports the charge in
    /// [`CounterResult::units`](super::CounterResult::units).
    #[non_exhaustive]
    Shadow {
        /// Whether it charges the requests that it would admit, or only checks them, as [`Check`](CounterMode::Check) does.
        charges: bool,
    },
}

impl CounterMode {
    /// The mode of a [shadow policy](CounterMode::Shadow).
    pub const fn shadow(charges: bool) -> Self {
        Self::Shadow { charges }
    }

    /// Whether it rejects nothing, and counts by itself.
    pub(crate) fn is_shadow(self) -> bool {
        matches!(self, Self::Shadow { .. })
    }
}

/// The number of units of an operation on a store: at most [`Units::MAX`], which is more than any quota holds.
///
/// The cost of a request may be any `u64`, and clients often choose it: the length of a body, an estimate in a query. It is
/// converted into `Units` before a store is called, so that no store gets a number that it would read as negative, or that Lua
/// can't represent exactly. A request whose cost is cut to the maximum is never admitted.
///
/// ```
/// use tollgate::store::Units;
///
/// assert_eq!(Units::new(7).get(), 7);
/// assert_eq!(Units::new(u64::MAX), Units::MAX);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Units(u64);

impl Units {
    /// No units.
    pub const ZERO: Self = Self(0);

    /// One unit.
    pub const ONE: Self = Self(1);

    /// The maximum, more than twice the largest capacity of a quota, so that a charge that is cut to it still makes the deepest
    /// debt. Four times as many are an exact number in Lua.
    pub const MAX: Self = Self(2_000_000_000_000_000);

    /// A number of units, at most [`MAX`](Units::MAX): larger numbers are cut to it.
    pub const fn new(units: u64) -> Self {
        if units < Self::MAX.0 {
            Self(units)
        } else {
            Self::MAX
        }
    }

    /// The number of units.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The units of so many requests, as far as they can be counted.
    pub(crate) const fn of(self, requests: u64) -> u64 {
        self.0.saturating_mul(requests)
    }

    pub(crate) const fn is_zero(self) -> bool {
        self.0 == 0
    }
}
