//! The settings of leases.

use std::time::Duration;

use crate::{error::InvalidValue, quota::DurationText};

/// The settings of a policy's leases: [`Policy::lease`](crate::Policy::lease) sets them, and explains what a lease is. There are no
/// defaults for the units; a lease has a TTL of 50 ms unless [`ttl`](Lease::ttl) sets another one.
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
    /// The time in which one unit refills, in microseconds. It is 0 for strategies that do not refill one unit after the other.
    refill_us: u64,
}

/// The valid values of the most units of a lease.
const UNITS: std::ops::RangeInclusive<u64> = 2..=1_000_000;

/// The valid TTLs.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(10);

/// The clocks of a process and of the store differ in speed by at most a thousandth.
const DRIFT: u32 = 1_000;

impl Lease {
    /// Leases of at most `units` units each, from 2 to 1,000,000, with a TTL of 50 ms. Other values are a
    /// [`ConfigError`](crate::ConfigError) when the limiter is built.
    ///
    /// ```
    /// use tollgate::{Lease, Limiter, Policy, Quota};
    ///
    /// let leased = |max_units| {
    ///     let policy = Policy::new("api", Quota::requests(1_000).per_second());
    ///     Limiter::builder().policy(policy.lease(Lease::max_units(max_units))).build()
    /// };
    /// assert!(leased(64).is_ok());
    /// assert!(leased(1).is_err());
    /// ```
    #[must_use]
    pub const fn max_units(units: u64) -> Self {
        Self {
            max_units: units,
            ttl: Duration::from_millis(50),
            refill_us: 0,
        }
    }

    /// Sets how long the units of a lease may be spent after the process has requested it: from 5 ms to 10 s, in whole
    /// microseconds. Default: 50 ms. Other values are a [`ConfigError`](crate::ConfigError) when the limiter is built.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Lease;
    ///
    /// let lease = Lease::max_units(64);
    /// assert_eq!(lease.lifetime(), Duration::from_millis(50));
    /// let longer = lease.ttl(Duration::from_millis(200));
    /// assert_eq!((longer.most(), longer.lifetime()), (64, Duration::from_millis(200)));
    /// ```
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Returns the most units of one lease, as set by [`max_units`](Lease::max_units).
    ///
    /// ```
    /// assert_eq!(tollgate::Lease::max_units(64).most(), 64);
    /// ```
    pub const fn most(&self) -> u64 {
        self.max_units
    }

    /// Returns the TTL, as set by [`ttl`](Lease::ttl).
    ///
    /// ```
    /// assert_eq!(tollgate::Lease::max_units(64).lifetime().as_millis(), 50);
    /// ```
    pub const fn lifetime(&self) -> Duration {
        self.ttl
    }

    /// Returns the longest time from a unit's charge until it is spent, by the store's clock: the TTL, a thousandth of it for
    /// clocks that differ in speed, and 1 ms. For [strategies](crate::strategy::Strategy::bind) of your own.
    ///
    /// ```
    /// // A TTL of 50 ms.
    /// let lease = tollgate::Lease::max_units(64);
    /// assert_eq!(lease.spread().as_micros(), 51_050);
    /// ```
    pub fn spread(&self) -> Duration {
        self.ttl + self.ttl / DRIFT + Duration::from_millis(1)
    }

    /// Returns how long the units of a lease may be spent if it ends with the window of its charge: at most the TTL, and less
    /// than `rest`, which is what was left of the window at the charge. A thousandth of `rest` is taken off for clocks that differ in
    /// speed, and 1 µs. See [`Rule::window_end`](crate::strategy::Rule::window_end).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// // A TTL of 50 ms.
    /// let lease = tollgate::Lease::max_units(64);
    /// assert_eq!(lease.lifetime_within(Duration::from_secs(1)), Duration::from_millis(50));
    /// assert_eq!(lease.lifetime_within(Duration::from_millis(10)), Duration::from_micros(9_989));
    /// assert_eq!(lease.lifetime_within(Duration::ZERO), Duration::ZERO);
    /// ```
    pub fn lifetime_within(&self, rest: Duration) -> Duration {
        let rest = rest.saturating_sub(rest / DRIFT);
        self.ttl.min(rest.saturating_sub(Duration::from_micros(1)))
    }

    /// Returns this lease for a strategy that refills one unit in each `refill`.
    pub(crate) const fn with_refill(mut self, refill: Duration) -> Self {
        self.refill_us = refill.as_micros() as u64;
        self
    }

    /// Returns how long after a charge of `units` a refund of them returns anything: until all of them have refilled, and two
    /// thousandths of that for clocks that differ in speed. Zero if the strategy does not refill one unit after the other.
    #[cfg(feature = "redis")]
    pub(crate) const fn refundable_for(&self, units: u64) -> Duration {
        let refill = self.refill_us.saturating_mul(units);
        let drift = refill.div_ceil(DRIFT as u64 / 2);
        Duration::from_micros(refill.saturating_add(drift))
    }

    /// Returns the longest valid TTL that is at most `ttl`, in whole milliseconds, for the text of an error; `None` if there is none.
    pub(crate) fn valid_ttl(ttl: Duration) -> Option<Duration> {
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let ttl = Duration::from_millis(millis).min(*TTL.end());
        TTL.contains(&ttl).then_some(ttl)
    }

    /// Returns the longest valid TTL whose [spread](Lease::spread) is at most `spread`, in whole milliseconds, for the text of an
    /// error; `None` if there is none.
    pub(crate) fn valid_ttl_of_spread(spread: Duration) -> Option<Duration> {
        let scaled = spread
            .saturating_sub(Duration::from_millis(1))
            .min(Duration::from_secs(60))
            * DRIFT;
        Self::valid_ttl(scaled / (DRIFT + 1))
    }

    /// Returns an error if a value is out of range.
    pub(crate) fn validate(&self) -> Result<(), InvalidValue> {
        if !UNITS.contains(&self.max_units) {
            return Err(InvalidValue::new(
                format!("leases with max_units = {}", self.max_units),
                "from 2 to 1,000,000 units, or no lease",
            ));
        }
        self.validate_ttl()
    }

    /// Returns an error if the TTL is out of range.
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
