//! Quotas as text, such as `10/s burst 20`.

use std::{fmt, num::ParseIntError, str::FromStr, time::Duration};

use super::{DAY, HOUR, MINUTE, MONTH, Quota, SECOND, WEEK, YEAR};
use crate::error::ParseQuotaError;

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_concurrent() {
            write!(f, "{} concurrent", self.requests)?;
            return self
                .burst
                .map_or(Ok(()), |burst| write!(f, " burst {burst}"));
        }
        write!(f, "{}/", self.requests)?;
        match Unit::of(self.period.as_nanos(), YEAR) {
            (1, unit) => f.write_str(unit)?,
            (many, unit) => write!(f, "{many}{unit}")?,
        }
        match self.burst {
            Some(burst) => write!(f, " burst {burst}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Quota {
    type Err = ParseQuotaError;

    /// Parses `N/PERIOD` or `N per PERIOD`, optionally followed by ` burst B`. A period is a unit (`s`, `min`, `h`, `day`,
    /// `week`, `month`, `year`, `ms`, `us`, `ns`, and long forms), optionally with a number before it. `N concurrent` is
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
    let quota = Quota::requests(number(requests)?).per(parse_period(period)?);
    Ok(match burst {
        Some(burst) => quota.burst(burst),
        None => quota,
    })
}

/// Parses a unit of time, optionally with a number before it.
pub(super) fn parse_period(period: &str) -> Result<Duration, String> {
    let period = period.trim();
    let digits = period
        .find(|c: char| !c.is_ascii_digit() && c != '_')
        .unwrap_or(period.len());
    let (count, unit) = period.split_at(digits);
    let count = if count.is_empty() { 1 } else { number(count)? };
    let unit = unit.trim();
    let known = Unit::named(unit).ok_or_else(|| format!("{unit:?} is no unit of time"))?;
    let nanos = u128::from(count) * u128::from(known.nanos);
    let secs = u64::try_from(nanos / u128::from(SECOND))
        .map_err(|_| "its period is too long".to_owned())?;
    Ok(Duration::new(secs, (nanos % u128::from(SECOND)) as u32))
}

fn number(text: &str) -> Result<u64, String> {
    let digits = text.trim().replace('_', "");
    digits
        .parse()
        .map_err(|error: ParseIntError| format!("{:?}: {error}", text.trim()))
}

/// Displays a duration as a whole number of the largest unit up to a day that divides it: `90min`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurationText(pub(crate) Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let (number, unit) = Unit::of(nanos, DAY);
        write!(f, "{number}{unit}")
    }
}

impl FromStr for DurationText {
    /// What is wrong with the text.
    type Err = String;

    /// Parses a whole number and a unit of a [quota](super::Quota)'s period: `50ms`, `2 seconds`, `1day`.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("it does not begin with a number".to_owned());
        }
        parse_period(text).map(Self)
    }
}

/// A unit of time.
pub(super) struct Unit {
    /// The name that is displayed, and then the others that are parsed.
    names: &'static [&'static str],
    pub(super) nanos: u64,
}

/// The largest first.
pub(super) const UNITS: [Unit; 10] = [
    unit(&["year", "years"], YEAR),
    unit(&["month", "months"], MONTH),
    unit(&["week", "weeks", "w"], WEEK),
    unit(&["day", "days", "d"], DAY),
    unit(&["h", "hour", "hours"], HOUR),
    unit(&["min", "mins", "minute", "minutes"], MINUTE),
    unit(&["s", "sec", "secs", "second", "seconds"], SECOND),
    unit(&["ms", "millisecond", "milliseconds"], 1_000_000),
    unit(&["us", "µs", "microseconds"], 1_000),
    unit(&["ns"], 1),
];

const fn unit(names: &'static [&'static str], nanos: u64) -> Unit {
    Unit { names, nanos }
}

impl Unit {
    /// The unit of a name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        UNITS.iter().find(|unit| unit.names.contains(&name))
    }

    /// The largest unit of up to `most` nanoseconds of which `nanos` is a multiple, and how many of it they are.
    pub(super) fn of(nanos: u128, most: u64) -> (u128, &'static str) {
        let mut units = UNITS.iter().filter(|unit| unit.nanos <= most);
        let divides = |unit: &&Unit| nanos > 0 && nanos.is_multiple_of(u128::from(unit.nanos));
        match units.find(divides) {
            Some(unit) => (nanos / u128::from(unit.nanos), unit.names[0]),
            None => (nanos, "ns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("12/year", Quota::requests(12).per_year()),
            (
                "12 per 2 years",
                Quota::requests(12).per(Duration::from_secs(730 * 86_400)),
            ),
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
            "1/18446744073709551615year",
            "1/y",
        ] {
            let error = text.parse::<Quota>().expect_err(text).to_string();
            assert!(error.contains("100/min"), "{error}");
        }
    }

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        for (text, millis) in [
            ("50ms", 50),
            (" 2 seconds", 2_000),
            ("1day", 86_400_000),
            ("0s", 0),
        ] {
            let parsed: DurationText = text.parse().expect(text);
            assert_eq!(parsed.0, Duration::from_millis(millis), "{text}");
        }
        for text in ["", "s", "-1s", "1.5s", "1", "1 fortnight", "1s burst 2"] {
            assert!(text.parse::<DurationText>().is_err(), "{text}");
        }
    }
}
