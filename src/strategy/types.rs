//! What rules and stores tell each other.

use std::time::Duration;

use crate::clock::Timestamp;

/// What a rule's half reports of a key's state, right after it was read or charged. Each rule says what its three
/// numbers mean; both halves report the same, so that [`Rule::status`](super::Rule::status) is written once.
pub type Snapshot = [i64; 3];

/// What a caller may expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaStatus {
    /// Whole units left.
    pub remaining: u64,
    /// When one more request of the same cost would pass.
    pub retry_after: RetryAfter,
    /// The wait until the full quota is available again, were nobody else to ask.
    pub reset_after: Duration,
}

impl QuotaStatus {
    /// The status `age` later, if nothing else happened: a wait that has passed is over, and there is room for `cost`.
    pub(crate) fn pass(&mut self, age: Duration, cost: u64) {
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

/// When a request would pass. A later time is greater; one that is not known is greater than any that is, and
/// [`Never`](RetryAfter::Never) is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryAfter {
    /// At once.
    Now,
    /// After this wait, unless another request for the same key comes first; not a microsecond earlier.
    In(Duration),
    /// It is not known: the store could not answer.
    Unknown,
    /// Never, however long the wait: the request costs more than the quota's capacity, lacks a key or is on a deny list.
    Never,
}

impl RetryAfter {
    /// The wait, where waiting helps and its length is known: zero for [`Now`](RetryAfter::Now), `None` for
    /// [`Unknown`](RetryAfter::Unknown) and [`Never`](RetryAfter::Never).
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::In(wait) => Some(wait),
            Self::Unknown | Self::Never => None,
        }
    }
}

/// What was charged where and when, so that it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeReceipt {
    /// When it was charged, on the store's clock.
    pub charged_at: Timestamp,
    /// The window or bucket it went into, by [`Rule::window_id`](super::Rule::window_id).
    pub window_id: i64,
    /// How many units of it have not been refunded.
    pub remaining: u64,
}

impl ChargeReceipt {
    /// Nothing was charged.
    pub const NONE: Self = Self {
        charged_at: Timestamp::from_micros(0),
        window_id: 0,
        remaining: 0,
    };
}
