//! Units of time, in which periods and durations are parsed and displayed.

use super::{DAY, HOUR, MINUTE, MONTH, SECOND, WEEK, YEAR};

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
