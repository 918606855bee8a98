//! Strategies that refill at an even rate, and the arithmetic that they share.

use std::time::Duration;

use crate::{
    clock::Timestamp,
    error::InvalidValue,
    quota::{DurationText, Quota},
    strategy::{ChargeReceipt, Lease, QuotaStatus, RetryAfter, RuleInfo, Terms, TierRefills},
};

pub(crate) mod gcra;
#[cfg(test)]
mod tests;
pub(crate) mod token_bucket;

pub(crate) use gcra::Gcra;
pub(crate) use token_bucket::TokenBucket;

/// Ticks in a microsecond: a tick, the unit of time of these strategies, is 50 ns.
const TICKS_PER_MICRO: u64 = 20;

/// By which part of it a quota may exceed the rate that is counted: 0.1 %.
const MAX_ERROR: u128 = 1_000;

/// The longest that an empty key may take to refill. Three times as long, with steps of the clock added, is less than half
/// of a round, after which the arrival times on Redis start again.
const MAX_REFILL: Duration = Duration::from_secs(400 * 86_400);

/// A quota as an even rate, in ticks.
#[derive(Clone, Debug)]
struct RateParams {
    burst: u64,
    /// The emission interval: the period divided by its requests, rounded up.
    interval: u64,
    /// `burst * interval`: how far ahead of now the theoretical arrival time may lie.
    tolerance: u64,
    /// The refill times of all quotas that share the keys.
    refills: TierRefills,
    lease: Option<Lease>,
}

impl RateParams {
    fn new(quota: &Quota, terms: &Terms) -> Result<Self, InvalidValue> {
        let period = u128::from(quota.validated_period_us()?) * u128::from(TICKS_PER_MICRO);
        let (requests, burst) = (u128::from(quota.amount()), u128::from(quota.capacity()));
        let interval = period.div_ceil(requests);
        if period < requests * u128::from(TICKS_PER_MICRO) {
            return Err(InvalidValue::new(
                format!("{quota}, more than an even rate can count exactly"),
                "at most 1,000,000 units per second",
            ));
        }
        // A quota above 20,000 per second may be none that a whole number of ticks meets.
        let is_met = |requests: &u128| {
            (period.div_ceil(*requests) * requests - period) * MAX_ERROR <= period
        };
        if !is_met(&requests) {
            // Under a period of a few milliseconds those beside it may be no better.
            let slower = (1..=period.div_ceil(interval)).rev().find(is_met);
            let faster = (period.div_ceil(interval - 1)..).find(is_met);
            let (slower, faster) = (slower.unwrap_or(1), faster.unwrap_or(1));
            let expected = format!("{slower} or {faster} in the same period, or another strategy");
            return Err(InvalidValue::new(
                format!(
                    "{quota}, of which an even rate in steps of 50 ns would admit less than 99.9 %"
                ),
                expected,
            ));
        }
        let tolerance = interval.saturating_mul(burst);
        if tolerance > u128::from(to_ticks(MAX_REFILL)) {
            return Err(InvalidValue::new(
                format!("{quota}, whose burst takes more than 400 days to refill"),
                "a burst that refills within 400 days, or CalendarWindow",
            ));
        }
        let tolerance = tolerance as u64;
        terms.refills.note(to_duration(tolerance));
        let rate = Self {
            burst: quota.capacity(),
            interval: interval as u64,
            tolerance,
            refills: terms.refills.clone(),
            lease: None,
        };
        match &terms.lease {
            Some(lease) => rate.leased(quota, lease),
            None => Ok(rate),
        }
    }

    /// The rate if its units are spent up to [`Lease::spread`] after their charge: what refills meanwhile is taken off its burst.
    fn leased(self, quota: &Quota, lease: &Lease) -> Result<Self, InvalidValue> {
        let reserve = to_ticks(lease.spread()).div_ceil(self.interval);
        let Some(burst @ 1..) = self.burst.checked_sub(reserve) else {
            let spread = to_duration(self.tolerance.saturating_sub(self.interval));
            let other = match Lease::valid_ttl_of_spread(spread) {
                Some(ttl) => format!("a lease with a TTL of at most {}", DurationText(ttl)),
                None => "no lease".to_owned(),
            };
            return Err(InvalidValue::new(
                format!(
                    "{quota} with a lease of {}, by which the burst is {reserve} smaller",
                    DurationText(lease.lifetime())
                ),
                format!("a burst of at least {}, or {other}", reserve + 1),
            ));
        };
        Ok(Self {
            burst,
            tolerance: burst * self.interval,
            lease: Some(lease.with_refill(to_duration(self.interval))),
            ..self
        })
    }

    fn info(&self, state_format: &'static str) -> RuleInfo {
        RuleInfo {
            refills_gradually: true,
            snapshot_ignores_cost: true,
            lease: self.lease,
            ..RuleInfo::new(state_format, self.burst)
        }
    }

    /// The deepest debt of any quota that shares the keys: twice its tolerance. A state further ahead was charged before the
    /// clock stepped back, or under a quota that the policy no longer has.
    fn max_debt(&self) -> u64 {
        // `TierRefills` holds whole microseconds, so this rule's own tolerance may be rounded up in it.
        let longest = to_ticks(self.refills.longest());
        match longest > self.tolerance.next_multiple_of(TICKS_PER_MICRO) {
            true => 2 * longest,
            false => 2 * self.tolerance,
        }
    }

    /// How many of the `used` ticks count: all of them, or the tolerance if they are deeper than any debt.
    fn capped(&self, used: u64) -> u64 {
        match used > self.tolerance && used > self.max_debt() {
            true => self.tolerance,
            false => used,
        }
    }

    /// How much of a charge time has not returned by `now`, or how much of the `used` ticks by a receipt of now: at most `want` units.
    /// In ticks, and in whole units, rounded up.
    fn refundable(
        &self,
        receipt: &ChargeReceipt,
        used: u64,
        now: Timestamp,
        want: u64,
    ) -> (u64, u64) {
        let charged = receipt.remaining.saturating_mul(self.interval);
        let left = if receipt.is_now() {
            charged.min(used)
        } else {
            charged.saturating_sub(to_ticks(now.since(receipt.charged_at)))
        };
        let ticks = left.min(want.saturating_mul(self.interval));
        (ticks, ticks.div_ceil(self.interval))
    }

    /// How many units are in use while `used` ticks are.
    fn units_in_use(&self, used: i64) -> u64 {
        (used.max(0) as u64).div_ceil(self.interval)
    }

    /// How many units can be charged while `used` ticks are in use; negative in debt.
    fn available(&self, used: u64) -> i64 {
        (self.tolerance as i64 - used as i64).div_euclid(self.interval as i64)
    }

    /// Whether at least so many units remain while `used` ticks are in use: `status` without its divisions.
    pub(super) fn has_remaining(&self, used: i64, units: u64) -> bool {
        let left = self.tolerance.saturating_sub(used.max(0) as u64);
        units.saturating_mul(self.interval) <= left
    }

    /// What a request of `cost` units may expect while `used` ticks are in use.
    fn status(&self, used: i64, cost: u64) -> QuotaStatus {
        let used = used.max(0) as u64;
        // How far this request would exceed the tolerance.
        let after = cost.saturating_mul(self.interval).saturating_add(used);
        let retry_after = match after.saturating_sub(self.tolerance) {
            _ if cost > self.burst => RetryAfter::Never,
            0 => RetryAfter::Now,
            over => RetryAfter::In(to_duration(over)),
        };
        QuotaStatus {
            remaining: self.tolerance.saturating_sub(used) / self.interval,
            retry_after,
            reset_after: to_duration(used),
        }
    }

    /// The first three parameters `p` of the Lua halves.
    fn params(&self) -> Vec<i64> {
        let params = [self.burst, self.interval, self.tolerance];
        params.map(|param| param as i64).to_vec()
    }

    /// The fourth parameter: the deepest debt, if another quota that shares the keys allows a deeper one than this.
    fn max_debt_of_tiers(&self) -> Vec<i64> {
        let max_debt = self.max_debt();
        match max_debt > 2 * self.tolerance {
            true => vec![max_debt as i64],
            false => Vec::new(),
        }
    }
}

/// A duration in ticks.
fn to_ticks(time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    micros.saturating_mul(TICKS_PER_MICRO)
}

/// Ticks as a duration, rounded up to a microsecond.
fn to_duration(ticks: u64) -> Duration {
    Duration::from_micros(ticks.div_ceil(TICKS_PER_MICRO))
}

/// An instant in ticks since 1970.
fn ticks_since_epoch(now: Timestamp) -> i64 {
    now.as_micros().saturating_mul(TICKS_PER_MICRO as i64)
}

/// The first whole microsecond at or after so many ticks since 1970.
fn to_timestamp(ticks_since_epoch: i64) -> Timestamp {
    let per_micro = TICKS_PER_MICRO as i64;
    let micros = ticks_since_epoch.div_euclid(per_micro);
    let is_later = i64::from(ticks_since_epoch.rem_euclid(per_micro) > 0);
    Timestamp::from_micros(micros.saturating_add(is_later))
}
