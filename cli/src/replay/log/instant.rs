//! Instants and durations as logs write them.

use jiff::Timestamp;

const SECOND: i64 = 1_000_000;

/// The instant of the common format, such as `10/Oct/2027:13:55:36 +0200`.
pub(super) fn common(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 26 || !text.is_ascii() {
        return None;
    }
    let number = |start: usize, end: usize| -> Option<i64> {
        let digits = bytes.get(start..end)?;
        let are_digits = digits.iter().all(u8::is_ascii_digit);
        are_digits.then(|| {
            let digits = digits.iter();
            digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
        })
    };
    let separators = [
        (2, b'/'),
        (6, b'/'),
        (11, b':'),
        (14, b':'),
        (17, b':'),
        (20, b' '),
    ];
    if separators
        .iter()
        .any(|(index, byte)| bytes[*index] != *byte)
    {
        return None;
    }
    let months = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let month = months.iter().position(|name| *name == &text[3..6])? as i64 + 1;
    let (day, year) = (number(0, 2)?, number(7, 11)?);
    let (hour, minute, second) = (number(12, 14)?, number(15, 17)?, number(18, 20)?);
    let (east_hours, east_minutes) = (number(22, 24)?, number(24, 26)?);
    let fits = (1..=days_of_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60
        && east_hours < 24
        && east_minutes < 60;
    let east = (east_hours * 60 + east_minutes) * 60;
    let east = match bytes[21] {
        b'+' => east,
        b'-' => -east,
        _ => return None,
    };
    let days = days_since_epoch(year, month, day);
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - east;
    in_range(seconds * SECOND).filter(|_| fits)
}

/// The number of days of a month of the Gregorian calendar.
fn days_of_month(year: i64, month: i64) -> i64 {
    let (next_year, next_month) = match month {
        12 => (year + 1, 1),
        _ => (year, month + 1),
    };
    days_since_epoch(next_year, next_month, 1) - days_since_epoch(year, month, 1)
}

/// The days from 1970-01-01 to a date of the Gregorian calendar.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    // Of years that begin in March, so that a leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + day_of_year - 719_468
}

/// The instant of a number since the epoch, in seconds, milliseconds, microseconds or nanoseconds: whichever is of this
/// century.
pub(super) fn of_number(number: f64) -> Option<i64> {
    let micros = match number {
        n if n < 0.0 || !n.is_finite() => return None,
        n if n < 1e11 => n * 1e6,
        n if n < 1e14 => n * 1e3,
        n if n < 1e17 => n,
        n if n < 1e19 => n / 1e3,
        _ => return None,
    };
    in_range(micros.round() as i64)
}

/// The instant of a text: RFC 3339, the common format, or a number. Also whether it has no fraction of a second.
pub(super) fn of_text(text: &str) -> Option<(i64, bool)> {
    if let Some(micros) = common(text) {
        return Some((micros, true));
    }
    if let Ok(number) = text.parse() {
        let micros = of_number(number)?;
        return Some((micros, !text.contains('.') && number < 1e11));
    }
    let timestamp: Timestamp = match text.parse() {
        Ok(timestamp) => timestamp,
        // `+0000` in place of `+00:00`.
        Err(_) => Timestamp::strptime("%Y-%m-%dT%H:%M:%S%.f%z", text).ok()?,
    };
    let micros = in_range(timestamp.as_microsecond())?;
    Some((micros, !text.contains('.')))
}

/// The instant, if limits can be counted then: from 1970 up to 2200.
fn in_range(micros: i64) -> Option<i64> {
    let range = 0..7_258_118_400 * SECOND;
    range.contains(&micros).then_some(micros)
}

/// The microseconds of a duration with a unit, such as `12.5ms`.
pub(super) fn duration_us(text: &str) -> Option<i64> {
    let end = text.find(|char: char| !(char.is_ascii_digit() || char == '.'))?;
    let (number, unit) = text.split_at(end);
    let micros = match unit.trim() {
        "ns" => 1e-3,
        "us" | "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    scaled(number.parse().ok()?, micros)
}

/// A duration of so many units, each of so many microseconds: at most a year.
pub(super) fn scaled(number: f64, unit_us: f64) -> Option<i64> {
    let micros = (number * unit_us).round();
    (0.0..=366.0 * 86_400e6)
        .contains(&micros)
        .then_some(micros as i64)
}
