//! `x-ratelimit-{limit,remaining,reset,resource}` of GitHub's REST and GraphQL APIs.

use http::{HeaderName, StatusCode};

use super::reading::{Part, Reading, parse_window_end, status_text, text};

const RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");
const FIELDS: [(HeaderName, Part); 3] = [
    (HeaderName::from_static("x-ratelimit-limit"), Part::Limit),
    (
        HeaderName::from_static("x-ratelimit-remaining"),
        Part::Remaining,
    ),
    (HeaderName::from_static("x-ratelimit-reset"), Part::Reset),
];

pub(super) fn read(reading: &mut Reading<'_>, status: StatusCode) {
    let resource = reading.headers.get(RESOURCE).and_then(text);
    reading.read_fields(resource.unwrap_or("core"), &FIELDS, parse_window_end);
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
