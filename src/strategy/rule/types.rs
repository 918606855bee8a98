//! Types that rules and stores exchange.

use std::time::Duration;

use super::Rule;
use crate::clock::Timestamp;

/// How many numbers a [`Snapshot`] holds.
const MAX_VALUES: usize = 3;

/// The state of a key as up to three numbers, as it was read or right after it was changed.
///
/// Each rule defines what its numbers mean. Both halves of a rule report the same ones, so that
/// [`Rule::status`](super::Rule::status) is written once for all stores. Numbers that a half does not report are 0.
///
/// ```
/// use tollgate::strategy::Snapshot;
///
/// let snapshot = Snapshot::new([7, 60_000_000]);
/// let [used, ends] = snapshot.values();
/// assert_eq!((used, ends), (7, 60_000_000));
/// assert_eq!(snapshot.values(), [7]);
/// assert_eq!(snapshot.values(), [7, 60_000_000, 0]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Snapshot(pub(crate) [i64; MAX_VALUES]);

impl Snapshot {
    /// A snapshot of up to three numbers; more do not compile.
    pub const fn new<const N: usize>(values: [i64; N]) -> Self {
        const { assert!(N <= MAX_VALUES, "a snapshot holds three numbers at most") };
        let mut all = [0; MAX_VALUES];
        let mut i = 0;
        while i < N {
            all[i] = values[i];
            i += 1;
        }
        Self(all)
    }

    /// The first `N` numbers, up to three; more do not compile.
    pub const fn values<const N: usize>(&self) -> [i64; N] {
        const { assert!(N <= MAX_VALUES, "a snapshot holds three numbers at most") };
        let mut first = [0; N];
        let mut i = 0;
        while i < N {
            first[i] = self.0[i];
            i += 1;
        }
        first
    }
}

/// The status of a caller under a policy: the units left, and the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaStatus {
    /// Whole units left; 0 in debt.
    pub remaining: u64,
    /// The wait until one more request of the same cost is admitted.
    pub retry_after: RetryAfter,
    /// The wait until the full quota is available again, if no other request comes.
    pub reset_after: Duration,
}

impl QuotaStatus {
    /// A status with the whole units left, the wait for one more request of the same cost, and that for the full quota.
    pub const fn new(remaining: u64, retry_after: RetryAfter, reset_after: Duration) -> Self {
        Self {
            remaining,
            retry_after,
            reset_after,
        }
    }

    /// The status of a request of `cost` units by its rule, from the snapshot that was taken at `now`. A request that costs 0 never
    /// waits, also in debt.
    pub(crate) fn of_request(
        rule: &dyn Rule,
        snapshot: &Snapshot,
        now: Timestamp,
        cost: u64,
    ) -> Self {
        let status = rule.status(snapshot, now, cost);
        match cost {
            0 => Self {
                retry_after: RetryAfter::Now,
                ..status
            },
            _ => status,
        }
    }

    /// The status `age` later, if nothing else happened: a wait that has passed is over, and `cost` units are available.
    pub(crate) fn advance(&mut self, age: Duration, cost: u64) {
        self.reset_after = self.reset_after.saturating_sub(age);
        if let RetryAfter::In(wait) = self.retry_after {
            self.retry_after = match wait.saturating_sub(age) {
                Duration::ZERO => RetryAfter::Now,
                left => RetryAfter::In(left),
            };
            if self.retry_after == RetryAfter::Now {
                self.remaining = self.remaining.max(cost);
            }
        }
    }
}

/// A status: only the snapshot, until the status is read. Most never are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LazyStatus {
    Snapshot(Snapshot),
    Resolved(QuotaStatus),
}

impl LazyStatus {
    /// The status of a request of `cost` units that was decided at this time.
    pub(crate) fn get(&self, rule: &dyn Rule, decided_at: Timestamp, cost: u64) -> QuotaStatus {
        match self {
            Self::Snapshot(snapshot) => QuotaStatus::of_request(rule, snapshot, decided_at, cost),
            Self::Resolved(status) => *status,
        }
    }

    /// Whether so many units remain.
    #[inline]
    pub(crate) fn has_remaining(&self, rule: &dyn Rule, decided_at: Timestamp, units: u64) -> bool {
        match self {
            Self::Snapshot(snapshot) => rule.has_remaining(snapshot, decided_at, units),
            Self::Resolved(status) => status.remaining >= units,
        }
    }
}

/// The wait until a request would be admitted. A longer wait is greater; an unknown one is greater than any known one, and
/// [`Never`](RetryAfter::Never) is the greatest.
///
/// ```
/// use std::time::Duration;
/// use tollgate::RetryAfter;
///
/// assert_eq!(RetryAfter::Now.duration(), Some(Duration::ZERO));
/// assert!(RetryAfter::In(Duration::from_secs(60)) < RetryAfter::Unknown);
/// assert_eq!(RetryAfter::Never.duration(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryAfter {
    /// The request would be admitted at once.
    Now,
    /// After this wait, unless another request for the same key comes first; not a microsecond earlier.
    In(Duration),
    /// The wait is unknown, since the store failed. Retry after about a second, as the `Retry-After` of a response says.
    Unknown,
    /// The request is never admitted, however long the wait: it costs more than the quota's capacity, lacks a key or is on a
    /// deny list.
    Never,
}

impl RetryAfter {
    /// Returns the wait if it is known: zero for [`Now`](RetryAfter::Now), `None` for [`Unknown`](RetryAfter::Unknown) and
    /// [`Never`](RetryAfter::Never).
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::In(wait) => Some(wait),
            Self::Unknown | Self::Never => None,
        }
    }

    /// Returns the [wait](RetryAfter::duration) in whole seconds, rounded up: for texts, and for a `Retry-After` of one's own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::RetryAfter;
    ///
    /// assert_eq!(RetryAfter::In(Duration::from_secs(20)).whole_seconds(), Some(20));
    /// assert_eq!(RetryAfter::In(Duration::from_millis(1_001)).whole_seconds(), Some(2));
    /// assert_eq!(RetryAfter::Never.whole_seconds(), None);
    /// ```
    pub const fn whole_seconds(self) -> Option<u64> {
        match self.duration() {
            Some(wait) => Some(whole_seconds(wait)),
            None => None,
        }
    }
}

/// A duration in whole seconds, rounded up.
pub(crate) const fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add((duration.subsec_nanos() > 0) as u64)
}

/// Records what was charged, where and when, so that it can be refunded. The limiter makes it from a store's result, and passes
/// it back to the store with a refund or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChargeReceipt {
    /// The instant of the charge, on the clock that the rule counts by.
    pub charged_at: Timestamp,
    /// The window or bucket of the charge, from [`Rule::window_id`](super::Rule::window_id).
    pub window_id: i64,
    /// The units that have not been refunded.
    pub remaining: u64,
}

impl ChargeReceipt {
    /// The receipt of no charge.
    pub const NONE: Self = Self {
        charged_at: Timestamp::from_micros(0),
        window_id: 0,
        remaining: 0,
    };

    /// The receipt of a charge of `units`, none of which has been refunded, with a window ID of 0.
    pub const fn new(charged_at: Timestamp, units: u64) -> Self {
        Self {
            charged_at,
            window_id: 0,
            remaining: units,
        }
    }

    /// This receipt with another [window ID](ChargeReceipt::window_id).
    #[must_use]
    pub const fn with_window_id(mut self, window_id: i64) -> Self {
        self.window_id = window_id;
        self
    }
}
