//! Instants and durations as logs write them.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// 2200-01-01, in microseconds since the Unix epoch.
const MAX_INSTANT_US: i64 = 7_258_118_400_000_000;

const MAX_DURATION_US: f64 = 366.0 * 86_400e6;

/// The instant of the common format, such as `10/Oct/2027:13:55:36 +0200`, in microseconds since the Unix epoch.
pub(super) fn common(text: &str) -> Option<i64> {
    let timestamp = Timestamp::strptime("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
    in_range(timestamp.as_microsecond())
}

/// The instant of a number, or of a text: RFC 3339, the common format, or a number.
pub(super) fn instant(value: &Value) -> Option<i64> {
    let text = match value {
        Value::Number(number) => return since_epoch(number.as_f64()?),
        value => value.as_str()?,
    };
    if let Ok(number) = text.parse() {
        return since_epoch(number);
    }
    match text.parse::<Timestamp>() {
        Ok(timestamp) => in_range(timestamp.as_microsecond()),
        Err(_) => common(text),
    }
}

/// The instant of a number since the epoch, in seconds, milliseconds, microseconds or nanoseconds: whichever is of this
/// century.
fn since_epoch(number: f64) -> Option<i64> {
    let micros = match number {
        n if n < 1e11 => n * 1e6,
        n if n < 1e14 => n * 1e3,
        n if n < 1e17 => n,
        n => n / 1e3,
    };
    in_range(micros.round() as i64)
}

/// The instant, if limits can be counted then.
fn in_range(micros: i64) -> Option<i64> {
    (0..MAX_INSTANT_US).contains(&micros).then_some(micros)
}

/// A duration: a number of units of so many microseconds, or a text with a unit, such as `12.5ms`.
pub(super) fn duration_us(value: &Value, unit_us: f64) -> Option<i64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => match text.parse() {
            Ok(number) => number,
            Err(_) => {
                let duration: SignedDuration = text.parse().ok()?;
                duration.as_secs_f64() * 1e6 / unit_us
            }
        },
        _ => return None,
    };
    let micros = (number * unit_us).round();
    (0.0..=MAX_DURATION_US)
        .contains(&micros)
        .then_some(micros as i64)
}
