//! What the strategies that count in windows share.

use std::time::Duration;

use super::{QuotaStatus, RetryAfter};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    quota::{MAX_CAPACITY, Quota},
};

/// The most that is counted; twice that (a debt) is still exact in Lua.
pub(super) const MOST: u64 = MAX_CAPACITY;

/// The longest window. Times to live are milliseconds since the epoch.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The period in microseconds of a quota that is counted in windows of at most `most` units.
pub(super) fn checked(quota: &Quota, kind: &str, most: u64) -> Result<i64, InvalidValue> {
    let period = quota.checked()?;
    if quota.capacity() != quota.amount() {
        return Err(InvalidValue::new(
            format!("{quota}, a burst of its own for a {kind}"),
            "no burst, since a window's is its number of requests: leave it out",
        ));
    }
    if quota.amount() > most {
        return Err(InvalidValue::new(
            format!("{quota}, past what a {kind} counts"),
            format!("at most {most} requests"),
        ));
    }
    if period % 1_000 != 0 || quota.period() > LONGEST {
        return Err(InvalidValue::new(
            format!("{quota}, a period that a {kind} can't have"),
            "whole milliseconds, at most 100 years",
        ));
    }
    Ok(period as i64)
}

/// A window of which `count` of `requests` are used, and which ends at `ends` if it has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) requests: u64,
    pub(super) count: i64,
    pub(super) ends: Option<i64>,
}

impl Window {
    pub(super) fn status(self, now: Timestamp, cost: u64) -> QuotaStatus {
        let left = self.requests as i64 - self.count;
        let reset_after = self.ends.map_or(Duration::ZERO, |ends| {
            Timestamp::from_micros(ends).since(now)
        });
        let retry_after = if cost > self.requests {
            RetryAfter::Never
        } else if left >= cost as i64 {
            RetryAfter::Now
        } else {
            RetryAfter::In(reset_after)
        };
        QuotaStatus {
            remaining: left.max(0) as u64,
            retry_after,
            reset_after,
        }
    }
}
