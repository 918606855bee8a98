//! Quotas: units per period.

use std::time::Duration;

use crate::error::InvalidValue;

mod text;

pub(crate) use self::text::DurationText;

/// The largest capacity of a quota: fifteen digits, which is what a structured field holds (RFC 9651, section 3.3.1).
pub(crate) const MAX_CAPACITY: u64 = 999_999_999_999_999;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;
const MONTH: u64 = 30 * DAY;
const YEAR: u64 = 365 * DAY;

/// A number of units per period, with a burst.
///
/// A request costs one unit unless its policy sets another cost. The burst is the number of units that can be charged at once.
/// Default: the number of units per period.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
///
/// let quota = Quota::requests(10).per_second().burst(20);
/// assert_eq!(quota.to_string(), "10/s burst 20");
/// assert_eq!(quota, "10 per second burst 20".parse()?);
/// assert_eq!(Quota::requests(3).per(Duration::from_millis(500)), "3/500ms".parse()?);
/// # Ok::<(), tollgate::error::ParseQuotaError>(())
/// ```
///
/// The most that is admitted in a period depends on the strategy. [`Gcra`](crate::Gcra), the default, refills evenly and admits
/// up to `requests + burst` in some periods, so that 1,000 a day are up to 1,999 in the first 24 hours; a smaller
/// [`burst`](Quota::burst) lowers that. [`SlidingLog`](crate::SlidingLog) never admits more than the requests in any period,
/// and [`CalendarWindow`](crate::CalendarWindow) never more in a day, week, month or year of the calendar. The [table of
/// strategies](crate::strategy) has the worst case of each.
///
/// Any value can be constructed; one that its strategy can't count is a [`ConfigError`](crate::ConfigError) when the limiter is
/// built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    requests: u64,
    /// Zero for requests in flight.
    period: Duration,
    burst: Option<u64>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Rate,
    Concurrent,
}

/// A number of units without a period. [`per_second`](QuotaWithoutPeriod::per_second) and the other methods make a [`Quota`] of
/// it:
///
/// ```
/// # use tollgate::{Policy, Quota};
/// let policy = Policy::new("burst", Quota::requests(5).per_second());
/// assert_eq!(policy.quota().to_string(), "5/s");
/// ```
///
/// ```compile_fail,E0308
/// # use tollgate::{Policy, Quota};
/// let policy = Policy::new("burst", Quota::requests(5));
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "say per what: `.per_second()`, `.per(duration)`"]
pub struct QuotaWithoutPeriod(u64);

impl Quota {
    /// `n` requests, each of which costs one unit.
    pub const fn requests(n: u64) -> QuotaWithoutPeriod {
        QuotaWithoutPeriod(n)
    }

    /// `n` units, for policies whose requests cost more than one: the same as [`requests`](Quota::requests).
    ///
    /// ```
    /// use tollgate::Quota;
    ///
    /// assert_eq!(Quota::units(9).per_hour(), Quota::requests(9).per_hour());
    /// ```
    pub const fn units(n: u64) -> QuotaWithoutPeriod {
        QuotaWithoutPeriod(n)
    }

    /// A quota of `n` requests in flight at once, counted by [`Concurrency`](crate::Concurrency): from 1 to 10,000.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("exports", Quota::concurrent(1)))
    ///     .build()?;
    /// let running = limiter.admit("alice").await?;
    /// assert!(limiter.admit("alice").await.is_err());
    /// drop(running);
    /// assert!(limiter.admit("alice").await.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn concurrent(n: u64) -> Self {
        Self {
            requests: n,
            period: Duration::ZERO,
            burst: None,
            kind: Kind::Concurrent,
        }
    }

    /// Whether this is a quota of requests in flight.
    pub const fn is_concurrent(&self) -> bool {
        matches!(self.kind, Kind::Concurrent)
    }

    /// Sets the number of units that can be charged at once. Default: the units per period. Under strategies that count in
    /// windows any other burst is a [`ConfigError`](crate::ConfigError) when the limiter is built.
    pub const fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// The units per period; for a quota of requests in flight, their number.
    pub const fn amount(&self) -> u64 {
        self.requests
    }

    /// The period; zero for a quota of requests in flight.
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// The number of units that can be charged at once: the burst, or the units per period.
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(burst) => burst,
            None => self.requests,
        }
    }

    /// The period in microseconds, if this is a rate with at least one unit, one unit of burst, and one microsecond.
    pub(crate) fn validated_period_us(&self) -> Result<u64, InvalidValue> {
        if self.is_concurrent() {
            return Err(InvalidValue::new(
                format!("{self} under a strategy that counts a rate"),
                "Concurrency, which is what such a quota is counted by unless another is set",
            ));
        }
        if self.requests == 0 {
            return Err(InvalidValue::new(
                "a quota of 0 requests",
                "at least 1; to admit no request, use a deny list",
            ));
        }
        if self.capacity() == 0 {
            return Err(InvalidValue::new("a burst of 0", "a burst of at least 1"));
        }
        let nanos = self.period.as_nanos();
        if nanos < 1_000 {
            return Err(InvalidValue::new(
                format!("a period of {:?}", self.period),
                "a period of at least 1 µs",
            ));
        }
        if !nanos.is_multiple_of(1_000) {
            return Err(InvalidValue::new(
                format!("a period of {:?}", self.period),
                "a period of a whole number of microseconds",
            ));
        }
        u64::try_from(nanos / 1_000).map_err(|_| {
            InvalidValue::new(
                format!("a period of {:?}", self.period),
                "a period of at most 584,942 years",
            )
        })
    }

    /// How many requests may be in flight, if this is a quota of [`concurrent`](Quota::concurrent) requests.
    pub(crate) fn validated_concurrent(&self) -> Result<u64, InvalidValue> {
        if !self.is_concurrent() {
            return Err(InvalidValue::new(
                format!("{self} under Concurrency"),
                "Quota::concurrent(n)",
            ));
        }
        if self.requests == 0 || self.burst.is_some() {
            return Err(InvalidValue::new(
                format!("a quota of {self}"),
                "at least 1 concurrent, without a burst",
            ));
        }
        Ok(self.requests)
    }
}

impl QuotaWithoutPeriod {
    /// A quota per `period`: at least 1 µs, in whole microseconds.
    pub const fn per(self, period: Duration) -> Quota {
        Quota {
            requests: self.0,
            period,
            burst: None,
            kind: Kind::Rate,
        }
    }

    /// A quota per second.
    pub const fn per_second(self) -> Quota {
        self.per(Duration::from_nanos(SECOND))
    }

    /// A quota per minute.
    pub const fn per_minute(self) -> Quota {
        self.per(Duration::from_nanos(MINUTE))
    }

    /// A quota per hour.
    pub const fn per_hour(self) -> Quota {
        self.per(Duration::from_nanos(HOUR))
    }

    /// A quota per day of 24 hours.
    pub const fn per_day(self) -> Quota {
        self.per(Duration::from_nanos(DAY))
    }

    /// A quota per week of seven days.
    pub const fn per_week(self) -> Quota {
        self.per(Duration::from_nanos(WEEK))
    }

    /// A quota per month of 30 days. [`CalendarWindow`](crate::CalendarWindow) counts it by the months of the calendar.
    pub const fn per_month(self) -> Quota {
        self.per(Duration::from_nanos(MONTH))
    }

    /// A quota per year of 365 days. [`CalendarWindow`](crate::CalendarWindow) counts it by the years of the calendar.
    ///
    /// ```
    /// use tollgate::Quota;
    ///
    /// assert_eq!(Quota::requests(12).per_year(), "12/year".parse()?);
    /// assert_eq!(Quota::requests(12).per_year().period().as_secs(), 365 * 86_400);
    /// # Ok::<(), tollgate::error::ParseQuotaError>(())
    /// ```
    pub const fn per_year(self) -> Quota {
        self.per(Duration::from_nanos(YEAR))
    }
}
