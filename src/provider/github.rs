//! `x-ratelimit-{limit,remaining,reset,resource}` of GitHub's REST and GraphQL APIs.

use http::{HeaderName, StatusCode};

use super::reading::{Part, Reading, parse_unix, status_text, text};
use crate::headers::X_RATELIMIT;

const RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");

pub(super) fn read(reading: &mut Reading<'_>, status: StatusCode) {
    let resource = reading.headers.get(RESOURCE).and_then(text);
    let name = resource.unwrap_or("core");
    let [limit, remaining, reset] = &X_RATELIMIT;
    reading.read_units_of(name, Part::Limit, limit);
    reading.read_units_of(name, Part::Remaining, remaining);
    reading.read_window_ends(name, reset, parse_unix);
    // A 403 without either is missing permission.
    let exhausted = |reading: &Reading<'_>| {
        let mut limits = reading.feedback.limits.iter();
        limits.any(|limit| limit.remaining == Some(0))
    };
    let forbidden = status == StatusCode::FORBIDDEN;
    let cause = if forbidden && (reading.has_retry_after() || exhausted(reading)) {
        Some(status_text(status))
    } else {
        reading.refusing_status(status)
    };
    if let Some(cause) = cause {
        reading.refuse(cause);
    }
}
