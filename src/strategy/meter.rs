//! The arithmetic of an even rate, which GCRA and the token bucket share.

use std::time::Duration;

use super::{QuotaStatus, RetryAfter, TierRefills};
use crate::{clock::Timestamp, error::InvalidValue, quota::Quota};

/// Units of time in a microsecond: one is 50 ns.
const PER_MICRO: u64 = 20;

/// The longest that an empty key may take to refill. Three times as long, and the steps of a clock, is less than half a
/// round of the arrival times on Redis.
const MAX_REFILL: Duration = Duration::from_secs(400 * 86_400);

/// An even rate, in units of 50 ns.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    pub(super) burst: u64,
    /// The emission interval T: a period through its requests, rounded up.
    pub(super) interval: u64,
    /// Burst x interval: how far ahead of now the theoretical arrival time may lie.
    pub(super) tolerance: u64,
    /// The refills of all quotas that share the keys.
    refills: TierRefills,
}

impl Meter {
    pub(super) fn of(quota: &Quota, refills: &TierRefills) -> Result<Self, InvalidValue> {
        let period = u128::from(quota.checked()?) * u128::from(PER_MICRO);
        let (requests, burst) = (u128::from(quota.amount()), u128::from(quota.capacity()));
        let interval = period.div_ceil(requests);
        if period < requests * u128::from(PER_MICRO) {
            return Err(InvalidValue::new(
                format!("{quota}, more than an even rate can count exactly"),
                "at most 1,000,000 units per second",
            ));
        }
        let tolerance = interval.saturating_mul(burst);
        if tolerance > u128::from(units(MAX_REFILL)) {
            return Err(InvalidValue::new(
                format!("{quota}, whose burst takes more than 400 days to refill"),
                "a burst that refills within 400 days, or CalendarWindow",
            ));
        }
        let tolerance = tolerance as u64;
        refills.note(duration(tolerance));
        Ok(Self {
            burst: quota.capacity(),
            interval: interval as u64,
            tolerance,
            refills: refills.clone(),
        })
    }

    /// The deepest debt of any quota that shares the keys: two bursts. What is used beyond that was not charged under any of
    /// them before now: the clock stepped back, or the quota was another one.
    fn deepest(&self) -> u64 {
        // In whole microseconds.
        let longest = units(self.refills.longest());
        match longest > self.tolerance.next_multiple_of(PER_MICRO) {
            true => 2 * longest,
            false => 2 * self.tolerance,
        }
    }

    /// What of `used` units of time counts: all, or one burst of what is deeper than any debt.
    pub(super) fn cut(&self, used: u64) -> u64 {
        match used > self.tolerance && used > self.deepest() {
            true => self.tolerance,
            false => used,
        }
    }

    /// What of a charge of `left` units, made at `at`, time has not given back, at most `want` units of it, in units of time;
    /// and how many whole units that is, rounded up.
    pub(super) fn held(&self, at: Timestamp, left: u64, now: Timestamp, want: u64) -> (u64, u64) {
        let drained = units(now.since(at));
        let held = left.saturating_mul(self.interval).saturating_sub(drained);
        let held = held.min(want.saturating_mul(self.interval));
        (held, held.div_ceil(self.interval))
    }

    /// How many units are in use while `used` units of time are.
    pub(super) fn in_use(&self, used: i64) -> u64 {
        (used.max(0) as u64).div_ceil(self.interval)
    }

    /// How many units there is room for while `used` of the tolerance is in use.
    pub(super) fn available(&self, used: u64) -> i64 {
        (self.tolerance as i64 - used as i64).div_euclid(self.interval as i64)
    }

    /// What a caller who asks for `cost` may expect while `used` of the tolerance is in use.
    pub(super) fn status(&self, used: i64, cost: u64) -> QuotaStatus {
        let used = used.max(0) as u64;
        // What would be in use after this request, and how far that is past the tolerance.
        let after = cost.saturating_mul(self.interval).saturating_add(used);
        let retry_after = match after.saturating_sub(self.tolerance) {
            _ if cost > self.burst => RetryAfter::Never,
            0 => RetryAfter::Now,
            over => RetryAfter::In(duration(over)),
        };
        QuotaStatus {
            remaining: self.tolerance.saturating_sub(used) / self.interval,
            retry_after,
            reset_after: duration(used),
        }
    }

    /// What the Lua halves call `p`, but for the deepest debt.
    pub(super) fn params(&self) -> Vec<i64> {
        let params = [self.burst, self.interval, self.tolerance];
        params.map(|param| param as i64).to_vec()
    }

    /// The deepest debt, if another quota that shares the keys allows a deeper one than this.
    pub(super) fn deepest_of_others(&self) -> Vec<i64> {
        let deepest = self.deepest();
        match deepest > 2 * self.tolerance {
            true => vec![deepest as i64],
            false => Vec::new(),
        }
    }
}

/// A time in units of 50 ns.
pub(super) fn units(time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    micros.saturating_mul(PER_MICRO)
}

/// Units of 50 ns, rounded up to a microsecond.
pub(super) fn duration(units: u64) -> Duration {
    Duration::from_micros(units.div_ceil(PER_MICRO))
}

/// An instant in units of 50 ns since 1970.
pub(super) fn instant(now: Timestamp) -> i64 {
    now.as_micros().saturating_mul(PER_MICRO as i64)
}

/// The first whole microsecond at or after so many units of 50 ns since 1970.
pub(super) fn timestamp(instant: i64) -> Timestamp {
    let per_micro = PER_MICRO as i64;
    let micros = instant.div_euclid(per_micro);
    Timestamp::from_micros(micros + i64::from(instant.rem_euclid(per_micro) > 0))
}
