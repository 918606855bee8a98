//! Numbers and times as providers write them. No floating point: digits beyond a nanosecond are dropped.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::{Timestamp, civil, fmt::rfc2822, tz::Offset};

/// Bytes of the longest number or time that is read.
const MAX_VALUE_BYTES: usize = 128;
/// The longest time that is reported. Longer ones are cut to it, so that they can be added to any instant.
pub(super) const MAX_TIME: Duration = Duration::from_secs(366 * 86_400);

/// A number that is not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Decimal {
    pub(super) whole: u64,
    /// Billionths.
    pub(super) fraction: u32,
}

impl Decimal {
    /// Parses `40`, `4.0`, and `30,000` with commas between groups of three digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = trimmed(text)?;
        let (whole, fraction) = match text.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (text, None),
        };
        let whole = without_commas(whole)?;
        let fraction = match fraction {
            None => 0,
            Some(digits) if !digits.is_empty() && all_digits(digits) => {
                let (value, scale) = digits
                    .bytes()
                    .take(9)
                    .fold((0, 1), |(value, scale), digit| {
                        (value * 10 + u32::from(digit - b'0'), scale * 10)
                    });
                value * (NANOS_PER_SECOND / scale)
            }
            Some(_) => return None,
        };
        Some(Self { whole, fraction })
    }

    /// As seconds.
    pub(super) const fn seconds(self) -> Duration {
        Duration::new(self.whole, self.fraction)
    }

    /// As milliseconds.
    pub(super) const fn millis(self) -> Duration {
        Duration::from_millis(self.whole)
            .saturating_add(Duration::from_nanos(self.fraction as u64 / 1_000))
    }
}

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A number of units, rounded down.
pub(super) fn units(text: &str) -> Option<u64> {
    Decimal::parse(text).map(|number| number.whole)
}

/// A number of seconds.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    Some(Decimal::parse(text)?.seconds().min(MAX_TIME))
}

/// A number of milliseconds.
pub(super) fn millis(text: &str) -> Option<Duration> {
    Some(Decimal::parse(text)?.millis().min(MAX_TIME))
}

/// An instant, as the time since the Unix epoch; earlier ones are the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instant(pub(super) Duration);

impl Instant {
    /// The system's clock.
    pub(super) fn now() -> Self {
        Self(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        )
    }

    /// The instant after a time.
    pub(super) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// The time from `now` on; zero if the instant has passed.
    pub(super) fn from(self, now: Self) -> Duration {
        self.0.saturating_sub(now.0).min(MAX_TIME)
    }

    /// Parses seconds since the Unix epoch.
    pub(super) fn parse_unix(text: &str) -> Option<Self> {
        Decimal::parse(text).map(|number| Self(number.seconds()))
    }

    /// Parses an instant of RFC 3339.
    #[cfg(feature = "provider-json")]
    pub(super) fn parse_rfc3339(text: &str) -> Option<Self> {
        trimmed(text)?.parse::<Timestamp>().ok().map(Self::at)
    }

    /// Parses a date of HTTP (RFC 9110, 5.6.7), in its three formats. Dates after the year 9999's last days are the last instant.
    pub(super) fn parse_http_date(text: &str) -> Option<Self> {
        const FORMATS: [&str; 3] = [
            "%d %b %Y %H:%M:%S GMT",
            "%d-%b-%y %H:%M:%S GMT",
            "%b %e %H:%M:%S %Y",
        ];
        // Some servers compute the day of the week wrongly, and it says nothing that the date does not.
        static WITH_OFFSET: rfc2822::DateTimeParser =
            rfc2822::DateTimeParser::new().relaxed_weekday(true);
        let text = trimmed(text)?;
        let is_weekday = |text: &str| {
            let name = text.trim_end_matches(',');
            name.bytes().all(|byte| byte.is_ascii_alphabetic())
        };
        let (_, date) = text
            .split_once(' ')
            .filter(|(weekday, _)| is_weekday(weekday))
            .unwrap_or_default();
        let mut formats = FORMATS.iter();
        let at = formats.find_map(|format| civil::DateTime::strptime(format, date).ok());
        match at {
            // Later ones are no instants of Unix time for some offsets.
            Some(at) => Some(Self::at(
                Offset::UTC.to_timestamp(at).unwrap_or(Timestamp::MAX),
            )),
            None => WITH_OFFSET.parse_timestamp(text).ok().map(Self::at),
        }
    }

    fn at(at: Timestamp) -> Self {
        Self(Duration::try_from(at.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default())
    }
}

/// The text without spaces around it; `None` if it is longer than what is read.
fn trimmed(text: &str) -> Option<&str> {
    (text.len() <= MAX_VALUE_BYTES).then(|| text.trim())
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A whole number, in which commas may stand between groups of three digits; the largest one if it is larger.
fn without_commas(text: &str) -> Option<u64> {
    let mut groups = text.split(',');
    let first = groups.next().filter(|first| !first.is_empty())?;
    let mut digits = first.to_owned();
    for group in groups {
        if first.len() > 3 || group.len() != 3 {
            return None;
        }
        digits.push_str(group);
    }
    // Digits alone are only too many.
    all_digits(&digits).then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_numbers_rounded_down() {
        for (text, expected) in [
            ("0", 0),
            (" 42 ", 42),
            ("4.0", 4),
            ("4.99999999999999999999", 4),
            ("30,000", 30_000),
            ("1,234,567", 1_234_567),
            ("18446744073709551616", u64::MAX),
        ] {
            assert_eq!(units(text), Some(expected), "{text}");
        }
        for text in [
            "",
            " ",
            "-1",
            "+1",
            "1e3",
            "NaN",
            "inf",
            "4.",
            ".5",
            "1,00",
            "1000,000",
            ",100",
            "100,",
            "1, 2",
            "١",
            &"1".repeat(200),
        ] {
            assert_eq!(units(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_seconds_and_milliseconds() {
        let nanos = |nanos| Some(Duration::from_nanos(nanos));
        assert_eq!(seconds("1.5"), nanos(1_500_000_000));
        assert_eq!(seconds("0.0000000019"), nanos(1));
        assert_eq!(seconds("18446744073709551615"), Some(MAX_TIME));
        assert_eq!(millis("12.5"), nanos(12_500_000));
    }

    #[test]
    fn instants_are_unix_seconds_and_dates() {
        let at = |seconds| Some(Instant(Duration::from_secs(seconds)));
        assert_eq!(Instant::parse_unix("784111777"), at(784_111_777));
        #[cfg(feature = "provider-json")]
        assert_eq!(
            Instant::parse_rfc3339("1994-11-06T08:49:37Z"),
            at(784_111_777)
        );
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Monday, 06-Nov-94 08:49:37 GMT",
            "06 Nov 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 09:49:37 +0100",
        ] {
            assert_eq!(Instant::parse_http_date(text), at(784_111_777), "{text}");
        }
        assert_eq!(
            Instant::parse_http_date("Sun, 06 Nov 1894 08:49:37 GMT"),
            at(0)
        );
        for text in ["", "1994-11-06", "Sun, 32 Nov 1994 08:49:37 GMT"] {
            assert_eq!(Instant::parse_http_date(text), None, "{text}");
        }
        let now = Instant(Duration::from_secs(100));
        assert_eq!(Instant(Duration::from_secs(90)).from(now), Duration::ZERO);
        assert_eq!(Instant(Duration::MAX).from(now), MAX_TIME);
    }
}
