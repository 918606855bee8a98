//! Units of the protocol by their names and periods.

use std::time::Duration;

use crate::rules::Unit;

/// Each unit of the protocol and its name.
pub(super) const UNITS: [(Unit, &str); 7] = [
    (Unit::Second, "second"),
    (Unit::Minute, "minute"),
    (Unit::Hour, "hour"),
    (Unit::Day, "day"),
    (Unit::Week, "week"),
    (Unit::Month, "month"),
    (Unit::Year, "year"),
];

/// The unit of a period, if it has one.
pub(super) fn unit_of(period: Duration) -> Option<Unit> {
    let mut units = UNITS.iter().map(|(unit, _)| *unit);
    units.find(|unit| unit.quota(1).period() == period)
}
