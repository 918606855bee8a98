//! Operations on a store.

use super::{handle::LimitHandle, units::Units};
use crate::{key::Key, strategy::ChargeReceipt};

/// What a store does with the [counters](CounterOp) of one request.
///
/// | op | charges | when |
/// |---|---|---|
/// | [`Acquire`](Op::Acquire) | as many of some equal requests as fit | a request's check |
/// | [`Peek`](Op::Peek) | nothing | [`Limiter::peek`](crate::Limiter::peek) |
/// | [`ForceAcquire`](Op::ForceAcquire) | into debt, if need be | a charge by a handler or after the response |
/// | [`Refund`](Op::Refund) | | a refund, a rollback of a cancelled request, the end of a permit |
/// | [`Settle`](Op::Settle) | into debt, or refunds | a settlement of several policies |
/// | [`Reset`](Op::Reset) | nothing, and forgets | [`Limiter::reset`](crate::Limiter::reset) |
/// | [`Renew`](Op::Renew) | | the heartbeat of a permit |
///
/// New operations may be added: a store returns [`StoreError::Unsupported`](crate::StoreError::Unsupported) for those that it
/// doesn't know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Charges every counter for as many of so many equal requests as fit under all of them: most often 1, and 1 at least.
    /// Counters that don't [`Charge`](CounterMode::Charge) are subject to their [mode](CounterOp::mode).
    Acquire(u32),
    /// Charges nothing, and reports the state.
    Peek,
    /// Charges every counter its units, also more than are available: down to a debt of at most one
    /// [capacity](crate::strategy::Rule::capacity).
    ForceAcquire,
    /// Refunds up to the counter's units of what its [receipt](CounterOp::receipt) says was charged, as far as time has not
    /// returned them already, parts of a unit included.
    Refund,
    /// Does [`Refund`](Op::Refund) for the counters whose receipt has units [remaining](ChargeReceipt::remaining), and
    /// [`ForceAcquire`](Op::ForceAcquire) for the others: all counters of one [shard](super::Store::shard), or none of them.
    Settle,
    /// Removes each counter's key, and reports the state before.
    Reset,
    /// Extends the permits that each counter's [caller](CounterOp::caller) holds by one
    /// [TTL](crate::strategy::Rule::permit_ttl).
    Renew,
}

impl Op {
    /// What it does to one counter: [`Settle`](Op::Settle) is a [`Refund`](Op::Refund) of some counters, and a
    /// [`ForceAcquire`](Op::ForceAcquire) of others. Every other operation is itself.
    #[must_use]
    pub const fn for_counter(self, counter: &CounterOp<'_>) -> Self {
        match self {
            Self::Settle if counter.receipt.remaining > 0 => Self::Refund,
            Self::Settle => Self::ForceAcquire,
            other => other,
        }
    }

    /// Whether, after it, a rejected key may be admitted before its `Retry-After`: cached rejections of the key are invalid.
    #[cfg(feature = "redis")]
    pub(crate) fn may_admit_sooner(self) -> bool {
        matches!(
            self,
            Self::Refund | Self::Settle | Self::Reset | Self::ForceAcquire
        )
    }
}

/// One policy's part of an [operation](Op).
///
/// ```
/// use tollgate::{
///     Key, Quota, Timestamp,
///     store::{CounterMode, CounterOp, LimitHandle, Units},
///     strategy::{ChargeReceipt, Gcra, Strategy},
/// };
///
/// let limit = LimitHandle::new("daily", Gcra.bind(&Quota::requests(5).per_day())?, ());
/// let counter = CounterOp::new(&limit, Key::new("alice")).with_units(Units::new(3));
/// assert_eq!(counter.limit.policy(), "daily");
/// assert_eq!((counter.caller, counter.mode), (counter.key, CounterMode::Charge));
/// assert_eq!(counter.receipt, ChargeReceipt::NONE);
/// # Ok::<(), tollgate::InvalidValue>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CounterOp<'a> {
    /// The limit that counts, as the store [registered](super::Store::register) it.
    pub limit: &'a LimitHandle,
    /// The key that is counted under.
    pub key: Key,
    /// How many units of each request: from none to [`Units::MAX`], also more than the capacity.
    pub units: Units,
    /// What was charged, for [`Op::Refund`], [`Op::Settle`] and [`Op::Renew`]; else [`ChargeReceipt::NONE`].
    pub receipt: ChargeReceipt,
    /// The caller to store with the charge, where the rule
    /// [records callers](crate::strategy::Rule::records_caller); for a permit, its unique name.
    pub caller: Key,
    /// What [`Op::Acquire`] does under this policy.
    pub mode: CounterMode,
}

impl<'a> CounterOp<'a> {
    /// One unit under `key`, charged by the key's own caller, without a receipt.
    pub const fn new(limit: &'a LimitHandle, key: Key) -> Self {
        Self {
            limit,
            key,
            units: Units::ONE,
            receipt: ChargeReceipt::NONE,
            caller: key,
            mode: CounterMode::Charge,
        }
    }

    /// The same under another limit: for a store in front of another one, whose limits these are.
    #[must_use]
    pub const fn with_limit<'b>(&self, limit: &'b LimitHandle) -> CounterOp<'b> {
        CounterOp { limit, ..*self }
    }

    /// With so many [units](CounterOp::units).
    #[must_use]
    pub const fn with_units(mut self, units: Units) -> Self {
        self.units = units;
        self
    }

    /// With a [receipt](CounterOp::receipt).
    #[must_use]
    pub const fn with_receipt(mut self, receipt: ChargeReceipt) -> Self {
        self.receipt = receipt;
        self
    }

    /// With a [caller](CounterOp::caller) other than the key.
    #[must_use]
    pub const fn with_caller(mut self, caller: Key) -> Self {
        self.caller = caller;
        self
    }

    /// With a [mode](CounterOp::mode).
    #[must_use]
    pub const fn with_mode(mut self, mode: CounterMode) -> Self {
        self.mode = mode;
        self
    }
}

/// What [`Op::Acquire`] does under one policy.
///
/// *Fits* means: as many units are available as all requests that were admitted so far, and this one, cost. A request is
/// admitted if it fits under all its counters but shadows; what is charged for it is charged under all of them or none.
///
/// New modes may be added: a store returns [`StoreError::Unsupported`](crate::StoreError::Unsupported) for those that it
/// doesn't know, or doesn't support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterMode {
    /// Rejects what does not fit, and charges what is admitted.
    #[default]
    Charge,
    /// Rejects if fewer units are available than one request costs, and charges nothing: for a policy that charges after the
    /// response.
    Check,
    /// As [`Charge`](CounterMode::Charge), and also charges those requests that this very policy rejects: down to a debt of
    /// at most one capacity, or to none where the rule
    /// [stores each unit](crate::strategy::Rule::stores_each_unit).
    ChargeRejectedToo,
    /// Charges its units for each request that *other* counters reject, under a rule that
    /// [counts rejections](crate::strategy::Rule::counts_rejections): a ban.
    ///
    /// If no units are available (the key is banned) it rejects whatever the units are, and nothing is charged for that. Of
    /// several requests at once, rejected ones are charged until its units are used up; a request that comes after that is
    /// charged under no counter. The units are 0 for a request that waits and will be checked again.
    ///
    /// A cache of rejections in front of the store must not answer for a request with such a counter, unless that counter
    /// rejected it: the rejection would not be counted.
    CountRejections,
    /// Rejects nothing: a shadow policy, which is evaluated and not enforced. It fits and charges by its own units, as if it
    /// stood in the place of another counter, or beside all others. The store reports in
    /// [`CounterResult::units`](super::CounterResult::units) what it charged.
    #[non_exhaustive]
    Shadow {
        /// The index of the counter in whose place it is evaluated; `None` to evaluate it beside all others.
        replaces: Option<usize>,
        /// Whether it charges what it would admit, or only checks, as [`Check`](CounterMode::Check) does.
        charges: bool,
    },
}

impl CounterMode {
    /// A [shadow](CounterMode::Shadow).
    pub const fn shadow(replaces: Option<usize>, charges: bool) -> Self {
        Self::Shadow { replaces, charges }
    }

    /// Whether it rejects nothing, and counts by itself.
    pub(crate) fn is_shadow(self) -> bool {
        matches!(self, Self::Shadow { .. })
    }
}
