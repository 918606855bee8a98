//! The result of an operation.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{clock::Timestamp, error::StoreError, observe::DecisionSource, strategy::Snapshot};

/// The result of an [operation](super::Op).
///
/// ```
/// use tollgate::{clock::Timestamp, store::{CounterResult, OpResult}, strategy::Snapshot};
///
/// let used = Snapshot::new([3]);
/// let result = OpResult::new(Timestamp::from_micros(7), 1, [CounterResult::new(3, used)]);
/// assert_eq!(result.counters()[0].snapshot, used);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpResult {
    /// The number of requests of an [`Op::Acquire`](super::Op::Acquire) that were admitted; not read for other operations.
    pub admitted: u64,
    /// The instant at which the operation was done, on the store's clock.
    pub at: Timestamp,
    /// The least time for which the result has been cached, by which waits are shortened. Zero unless it is from a [cache of
    /// rejections](DecisionSource::RejectionCache) or a [lease](DecisionSource::Lease).
    pub age: Duration,
    /// For a store that merges equal requests, the number of further ones that were admitted at the same instant, whose units
    /// the [snapshots](CounterResult::snapshot) include. 0 for a rejected request.
    pub admitted_after: u64,
    /// The source of the result.
    pub source: DecisionSource,
    pub(crate) counters: SmallVec<[CounterResult; 1]>,
}

impl OpResult {
    /// The result of an operation at the instant `at` of the store's clock: the number of admitted requests (of an
    /// [`Op::Acquire`](super::Op::Acquire)), and the result of each counter, in the order of the operation's.
    pub fn new(
        at: Timestamp,
        admitted: u64,
        counters: impl IntoIterator<Item = CounterResult>,
    ) -> Self {
        Self::of(at, admitted, counters.into_iter().collect())
    }

    /// As [`new`](Self::new), without a copy of the counters.
    #[inline]
    pub(crate) const fn of(
        at: Timestamp,
        admitted: u64,
        counters: SmallVec<[CounterResult; 1]>,
    ) -> Self {
        Self {
            admitted,
            at,
            age: Duration::ZERO,
            admitted_after: 0,
            source: DecisionSource::Store,
            counters,
        }
    }

    /// The result of each counter, in the order of the operation's.
    pub fn counters(&self) -> &[CounterResult] {
        &self.counters
    }

    /// The instant at which a counter was counted, on its own clock.
    pub(crate) fn time_of(&self, counter: &CounterResult) -> Timestamp {
        self.at.shifted(counter.clock_skew_us)
    }
}

/// The error of a store whose result has fewer counters than the operation.
pub(crate) const TOO_FEW_RESULTS: StoreError =
    StoreError::Unsupported("it returned no result for a policy of the request");

/// The result of an operation for one counter.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CounterResult {
    /// The units that were charged for admitted requests ([`Acquire`](super::Op::Acquire)), charged or refunded
    /// ([`Adjust`](super::Op::Adjust)), or renewed ([`Renew`](super::Op::Renew)); 0 for other operations.
    pub units: u64,
    /// The key's state after the operation, or before a [`Reset`](super::Op::Reset).
    pub snapshot: Snapshot,
    /// The microseconds by which the clock of this counter was ahead of [`OpResult::at`]; negative if it was behind. Not 0 for
    /// a counter of another server, and for a rule that [follows the wall clock](crate::strategy::RuleInfo::follows_wall_clock).
    pub clock_skew_us: i64,
    /// The units that this process holds by leases, which the snapshot counts as used. 0 unless a
    /// [lease](DecisionSource::Lease) admitted the request.
    pub(crate) held: u64,
    /// By how much earlier than [`OpResult::at`] the units were charged. Zero unless a [lease](DecisionSource::Lease) admitted the
    /// request: its counters are those of the store's last response.
    pub(crate) charged_before: Duration,
}

impl CounterResult {
    /// A result of `units` that were charged, refunded or renewed, and the state afterwards, without a clock skew.
    pub const fn new(units: u64, snapshot: Snapshot) -> Self {
        Self {
            units,
            snapshot,
            clock_skew_us: 0,
            held: 0,
            charged_before: Duration::ZERO,
        }
    }
}
