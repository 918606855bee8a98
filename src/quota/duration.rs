//! Durations as text, such as `50ms`, in the units of quotas.

use std::{fmt, time::Duration};

use super::{DAY, HOUR, MINUTE, SECOND};

/// The units of time that are displayed, the largest first, in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("day", DAY),
    ("h", HOUR),
    ("min", MINUTE),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Displays a duration as a whole number of the largest unit that divides it: `90min`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurationText(pub(crate) Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let divides = |unit: &u64| nanos.is_multiple_of(u128::from(*unit));
        let unit = UNITS.into_iter().find(|(_, unit)| divides(unit));
        let (name, unit) = unit.unwrap_or(("ns", 1));
        write!(f, "{}{name}", nanos / u128::from(unit))
    }
}
