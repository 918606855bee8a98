//! Quotas: units per period.

use std::{fmt, num::ParseIntError, str::FromStr, time::Duration};

use crate::error::InvalidValue;

/// The largest capacity of a quota: fifteen digits, which is what a structured field holds (RFC 9651, section 3.3.1).
pub(crate) const MAX_CAPACITY: u64 = 999_999_999_999_999;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;
const MONTH: u64 = 30 * DAY;

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
/// # Ok::<(), tollgate::ParseQuotaError>(())
/// ```
///
/// The most that is admitted in a period depends on the strategy. [`Gcra`](crate::Gcra), the default, refills evenly and admits
/// up to `requests + burst` in some periods, so that 1,000 a day are up to 1,999 in the first 24 hours; a smaller
/// [`burst`](Quota::burst) lowers that. [`SlidingLog`](crate::SlidingLog) never admits more than the requests in any period,
/// and [`CalendarWindow`](crate::CalendarWindow) never more in a day, week or month of the calendar. The [table of
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

    /// The period in microseconds, if this is a quota at all: at least one unit, one unit of burst, one microsecond.
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

    /// How many may be in flight, if that is what this says.
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

    /// A quota per month of 30 days.
    pub const fn per_month(self) -> Quota {
        self.per(Duration::from_nanos(MONTH))
    }
}

const PERIOD_UNITS: [(&str, u64); 27] = [
    ("s", SECOND),
    ("min", MINUTE),
    ("h", HOUR),
    ("day", DAY),
    ("week", WEEK),
    ("month", MONTH),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("µs", 1_000),
    ("millisecond", 1_000_000),
    ("milliseconds", 1_000_000),
    ("microseconds", 1_000),
    ("sec", SECOND),
    ("second", SECOND),
    ("seconds", SECOND),
    ("mins", MINUTE),
    ("minute", MINUTE),
    ("minutes", MINUTE),
    ("hour", HOUR),
    ("hours", HOUR),
    ("d", DAY),
    ("days", DAY),
    ("w", WEEK),
    ("weeks", WEEK),
    ("months", MONTH),
    ("secs", SECOND),
];

/// The units that [`Quota`] prints, the largest first.
const DISPLAY_UNITS: [(&str, u64); 9] = [
    ("month", MONTH),
    ("week", WEEK),
    ("day", DAY),
    ("h", HOUR),
    ("min", MINUTE),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_concurrent() {
            write!(f, "{} concurrent", self.requests)?;
            return self
                .burst
                .map_or(Ok(()), |burst| write!(f, " burst {burst}"));
        }
        let nanos = self.period.as_nanos();
        let (name, unit) = DISPLAY_UNITS
            .into_iter()
            .find(|(_, unit)| nanos > 0 && nanos.is_multiple_of(u128::from(*unit)))
            .unwrap_or(("ns", 1));
        write!(f, "{}/", self.requests)?;
        match nanos / u128::from(unit) {
            1 => write!(f, "{name}")?,
            many => write!(f, "{many}{name}")?,
        }
        match self.burst {
            Some(burst) => write!(f, " burst {burst}"),
            None => Ok(()),
        }
    }
}

/// The error of text that is no [`Quota`]. It names the problem, and shows valid quotas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid quota {text:?}: {problem}; expected a quota such as \"100/min\", \"10/s burst 20\", \"5000 per day\", \"3/500ms\" or \"8 concurrent\""
)]
pub struct ParseQuotaError {
    text: String,
    problem: String,
}

impl FromStr for Quota {
    type Err = ParseQuotaError;

    /// Parses `N/PERIOD` or `N per PERIOD`, optionally followed by ` burst B`. A period is a unit (`s`, `min`, `h`, `day`,
    /// `week`, `month`, `ms`, `us`, `ns`, and long forms), optionally with a number before it. `N concurrent` is
    /// [`Quota::concurrent`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|problem| ParseQuotaError {
            text: text.to_owned(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Quota, String> {
    if let Some(n) = text.trim().strip_suffix("concurrent") {
        return number(n).map(Quota::concurrent);
    }
    let (rate, burst) = match text.split_once("burst") {
        Some((rate, burst)) => (rate, Some(number(burst)?)),
        None => (text, None),
    };
    let (requests, period) = rate
        .split_once('/')
        .or_else(|| rate.split_once(" per "))
        .ok_or_else(|| "there is neither \"/\" nor \" per \" in it".to_owned())?;
    let period = period.trim();
    let digits = period
        .find(|c: char| !c.is_ascii_digit() && c != '_')
        .unwrap_or(period.len());
    let (count, unit) = period.split_at(digits);
    let count = if count.is_empty() { 1 } else { number(count)? };
    let unit = unit.trim();
    let (_, nanos) = PERIOD_UNITS
        .into_iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("{unit:?} is no unit of time"))?;
    let nanos = u128::from(count) * u128::from(nanos);
    let secs = u64::try_from(nanos / u128::from(SECOND))
        .map_err(|_| "its period is too long".to_owned())?;
    let quota = Quota::requests(number(requests)?)
        .per(Duration::new(secs, (nanos % u128::from(SECOND)) as u32));
    Ok(match burst {
        Some(burst) => quota.burst(burst),
        None => quota,
    })
}

fn number(text: &str) -> Result<u64, String> {
    let digits = text.trim().replace('_', "");
    digits
        .parse()
        .map_err(|error: ParseIntError| format!("{:?}: {error}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quotas_are_parsed_as_people_write_them() {
        for (text, quota) in [
            ("100/min", Quota::requests(100).per_minute()),
            ("10/s burst 20", Quota::requests(10).per_second().burst(20)),
            ("5000 per day", Quota::requests(5_000).per_day()),
            (
                "3/500ms",
                Quota::requests(3).per(Duration::from_millis(500)),
            ),
            (
                "5 per 10 seconds",
                Quota::requests(5).per(Duration::from_secs(10)),
            ),
            ("1_000_000/h", Quota::requests(1_000_000).per_hour()),
            ("1/month", Quota::requests(1).per_month()),
            (" 7 / week ", Quota::requests(7).per_week()),
        ] {
            assert_eq!(text.parse::<Quota>(), Ok(quota), "{text}");
        }
    }

    #[test]
    fn an_invalid_quota_is_an_error_that_shows_a_valid_one() {
        for text in [
            "",
            "100",
            "100/",
            "/s",
            "-1/s",
            "ten/s",
            "10/m",
            "10/fortnight",
            "10/s burst",
            "10/s burst x",
            "1.5/s",
            "99999999999999999999/s",
            "1/99999999999999999999s",
            "1/18446744073709551615month",
        ] {
            let error = text.parse::<Quota>().expect_err(text).to_string();
            assert!(error.contains("100/min"), "{error}");
        }
    }

    #[test]
    fn ten_per_minute_is_not_a_period_of_ten() {
        // tower-governor#55: `per_second(5)` that meant a period of five seconds.
        let quota = Quota::requests(5).per_second();
        assert_eq!(
            (quota.amount(), quota.period()),
            (5, Duration::from_secs(1))
        );
    }

    proptest! {
        #[test]
        fn a_printed_quota_parses_to_itself(requests: u64, nanos in 0..u64::MAX, burst: Option<u64>) {
            let mut quota = Quota::requests(requests).per(Duration::from_nanos(nanos));
            quota.burst = burst;
            prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota));
            let quota = Quota::concurrent(requests);
            prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota));
        }
    }
}
