//! Quotas as text, such as `10/s burst 20`.

use std::{fmt, num::ParseIntError, str::FromStr, time::Duration};

use super::{Quota, SECOND, YEAR, unit::Unit};
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
    fn five_per_second_is_not_one_per_five_seconds() {
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
