//! The result of an operation.

use std::{future::Future, pin::Pin, time::Duration};

use smallvec::SmallVec;

use crate::{
    clock::Timestamp, error::StoreError, key::Key, observe::DecisionSource, strategy::Snapshot,
};

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
    /// The units that were charged ([`Acquire`](super::Op::Acquire), [`ForceAcquire`](super::Op::ForceAcquire),
    /// [`Lower`](super::Op::Lower)), refunded ([`Refund`](super::Op::Refund)) or renewed ([`Renew`](super::Op::Renew)) for the
    /// admitted requests; 0 otherwise. Charges of rejected requests are not included.
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

/// The keys that bans block now: from [`Store::blocked_keys`](super::Store::blocked_keys).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedKeys {
    /// Each key under each limit that blocks it, in any order.
    pub keys: Vec<BlockedKey>,
    /// Why these are not all, if they are not.
    pub incomplete: Option<Incomplete>,
}

/// Why a list of blocked keys has not all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incomplete {
    /// There are more than were asked for.
    Limit,
    /// The search took too long.
    Timeout,
    /// Keys of a cluster moved to another node during the search, or the nodes changed, so that some may have been missed.
    KeysMoved,
}

/// A key that a ban blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedKey {
    /// The index of the limit, among those that were asked for.
    pub limit: usize,
    /// The key.
    pub key: Key,
    /// When the ban ends, on the store's clock.
    pub ends_at: Timestamp,
    /// How long it lasts from the time of the search on.
    pub ends_in: Duration,
}

impl BlockedKeys {
    /// These keys, and why they are not all, if they are not.
    pub const fn new(keys: Vec<BlockedKey>, incomplete: Option<Incomplete>) -> Self {
        Self { keys, incomplete }
    }
}

impl BlockedKey {
    /// A key under the limit of that index, which is blocked for `ends_in`, as was read at the instant `now` of the store's
    /// clock.
    pub fn new(limit: usize, key: Key, now: Timestamp, ends_in: Duration) -> Self {
        Self {
            limit,
            key,
            ends_at: now + ends_in,
            ends_in,
        }
    }
}

/// A future of the keys that bans block: see [`Store::blocked_keys`](super::Store::blocked_keys).
pub type BlockedKeysFuture = Pin<Box<dyn Future<Output = Result<BlockedKeys, StoreError>> + Send>>;
