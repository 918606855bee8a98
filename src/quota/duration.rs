//! Durations as text, such as `50ms`, in the units of quotas.

use std::{fmt, str::FromStr, time::Duration};

use super::{DAY, text::parse_period, unit::Unit};

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn a_printed_duration_parses_to_itself(nanos: u64) {
            let duration = Duration::from_nanos(nanos);
            let parsed: DurationText = DurationText(duration).to_string().parse().expect("a duration");
            prop_assert_eq!(parsed.0, duration);
        }
    }
}
