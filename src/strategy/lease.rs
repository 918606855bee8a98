//! The settings of leases.

use std::time::Duration;

use crate::{error::InvalidValue, quota::DurationText};

/// Units of a hot key that a process charges in the store ahead of need, and spends in process: set by
/// [`Policy::lease`](crate::Policy::lease), which explains leases.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{FixedWindow, Lease, Policy, Quota};
///
/// let policy = Policy::new("search", Quota::requests(1_000_000).per_hour())
///     .strategy(FixedWindow)
///     .lease(Lease::max_units(64).ttl(Duration::from_millis(50)));
/// # let limiter = tollgate::Limiter::builder().policy(policy).build()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    max_units: u64,
    ttl: Duration,
    /// In how many microseconds a unit refills; 0 unless the units refill one after the other.
    refill_us: u64,
}

/// The fewest and the most units of a lease.
const UNITS: std::ops::RangeInclusive<u64> = 2..=1_000_000;

/// The shortest and the longest TTL.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(10);

/// A clock of a process and that of the store differ in speed by one part of so many at most.
const DRIFT: u32 = 1_000;

impl Lease {
    /// Leases of at most `units` units each, from 2 to 1,000,000, with a TTL of 50 ms. Other values are a
    /// [`ConfigError`](crate::ConfigError) when the limiter is built.
    #[must_use]
    pub const fn max_units(units: u64) -> Self {
        Self {
            max_units: units,
            ttl: Duration::from_millis(50),
            refill_us: 0,
        }
    }

    /// Sets for how long the units of a lease may be spent, from the moment at which the process requests it: from 5 ms to 10 s,
    /// in whole microseconds. Default: 50 ms.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The most units of one lease.
    pub const fn most(&self) -> u64 {
        self.max_units
    }

    /// The [TTL](Lease::ttl).
    pub const fn lifetime(&self) -> Duration {
        self.ttl
    }

    /// By how much later than its charge a unit may be spent, by the store's clock: the TTL, a thousandth of it for clocks that
    /// differ in speed, and 1 ms.
    pub fn spread(&self) -> Duration {
        self.ttl + self.ttl / DRIFT + Duration::from_millis(1)
    }

    /// How long a lease lives that ends with its window, of which `rest` was left at the charge: the TTL, or the rest less a
    /// thousandth for clocks that differ in speed, whichever is shorter.
    pub fn lifetime_within(&self, rest: Duration) -> Duration {
        let rest = rest.saturating_sub(rest / DRIFT);
        self.ttl.min(rest.saturating_sub(Duration::from_micros(1)))
    }

    /// The same lease of units of which each refills in this time.
    pub(crate) const fn with_refill(mut self, refill: Duration) -> Self {
        self.refill_us = refill.as_micros() as u64;
        self
    }

    /// For how long after their charge a refund of so many units gives anything back, if that is only what has not refilled, by
    /// clocks that differ in speed. Zero if refunds do not depend on it.
    #[cfg(feature = "redis")]
    pub(crate) const fn refundable_for(&self, units: u64) -> Duration {
        let refill = self.refill_us.saturating_mul(units);
        let drift = refill.div_ceil(DRIFT as u64 / 2);
        Duration::from_micros(refill.saturating_add(drift))
    }

    /// The longest TTL in whole milliseconds that is no longer than `ttl`, for an error; `None` if that is too short.
    pub(crate) fn valid_ttl(ttl: Duration) -> Option<Duration> {
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let ttl = Duration::from_millis(millis).min(*TTL.end());
        TTL.contains(&ttl).then_some(ttl)
    }

    /// The longest TTL whose [spread](Lease::spread) is no longer than `spread`, for an error.
    pub(crate) fn valid_ttl_of_spread(spread: Duration) -> Option<Duration> {
        let scaled = spread
            .saturating_sub(Duration::from_millis(1))
            .min(Duration::from_secs(60))
            * DRIFT;
        Self::valid_ttl(scaled / (DRIFT + 1))
    }

    /// An error for values out of range.
    pub(crate) fn validate(&self) -> Result<(), InvalidValue> {
        if !UNITS.contains(&self.max_units) {
            return Err(InvalidValue::new(
                format!("leases of up to {} units", self.max_units),
                "from 2 to 1,000,000 units, or no lease",
            ));
        }
        self.validate_ttl()
    }

    /// An error for a TTL out of range.
    pub(crate) fn validate_ttl(&self) -> Result<(), InvalidValue> {
        let ttl = self.ttl;
        if !TTL.contains(&ttl) || !ttl.subsec_nanos().is_multiple_of(1_000) {
            return Err(InvalidValue::new(
                format!("leases with a TTL of {}", DurationText(ttl)),
                "from 5 ms to 10 s, in whole microseconds",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_range_is_an_error_that_names_the_range() {
        for (lease, valid) in [
            (Lease::max_units(0), "from 2 to 1,000,000"),
            (Lease::max_units(1), "or no lease"),
            (Lease::max_units(1_000_001), "from 2 to 1,000,000"),
            (
                Lease::max_units(8).ttl(Duration::from_millis(4)),
                "from 5 ms",
            ),
            (
                Lease::max_units(8).ttl(Duration::from_millis(10_001)),
                "to 10 s",
            ),
            (
                Lease::max_units(8).ttl(Duration::from_nanos(9_000_001)),
                "whole microseconds",
            ),
        ] {
            let error = lease.validate().expect_err(valid);
            assert!(format!("{error:?}").contains(valid), "{error:?}");
        }
        for lease in [
            Lease::max_units(2).ttl(Duration::from_millis(5)),
            Lease::max_units(1_000_000).ttl(Duration::from_secs(10)),
        ] {
            assert!(lease.validate().is_ok(), "{lease:?}");
        }
    }

    #[test]
    fn a_lease_ends_before_its_window_does_by_clocks_that_differ_in_speed() {
        let lease = Lease::max_units(8);
        assert_eq!(
            lease.lifetime_within(Duration::from_secs(1)),
            lease.lifetime()
        );
        assert_eq!(
            lease.lifetime_within(Duration::from_millis(10)),
            Duration::from_micros(9_989)
        );
        assert_eq!(lease.lifetime_within(Duration::ZERO), Duration::ZERO);
        assert_eq!(lease.spread(), Duration::from_micros(51_050));
    }
}
