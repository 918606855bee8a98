//! `grpc-status`, `google.rpc.RetryInfo` and `grpc-retry-pushback-ms`, of responses of header fields alone
//! (Trailers-Only).

use std::time::Duration;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::HeaderValue;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{
    feedback::Refusal,
    reading::{Reading, text},
    text::{MAX_TIME, millis},
};

const STATUS: &str = "grpc-status";
const DETAILS: &str = "grpc-status-details-bin";
const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// What Envoy sends with the rejections of its rate limits.
const ENVOY: &str = "x-envoy-ratelimited";
/// Of Google's `ErrorInfo`.
const REASONS: [&str; 2] = ["RATE_LIMIT_EXCEEDED", "RESOURCE_QUOTA_EXCEEDED"];
/// Bytes of the longest details that are decoded.
const MAX_DETAILS_BYTES: usize = 64 << 10;

/// Binary metadata is written with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

pub(super) fn read(reading: &mut Reading<'_>, status: http::StatusCode) {
    if let Some(cause) = reading.refusing_status(status) {
        // From a proxy that does not speak gRPC.
        return reading.refuse(cause);
    }
    let code = reading.headers.get(STATUS).map(HeaderValue::as_bytes);
    let code = code.map_or(Code::Ok, Code::from_bytes);
    if !matches!(code, Code::ResourceExhausted | Code::Unavailable) {
        return;
    }
    let details = details(reading);
    let time = match (pushback(reading), details.retry) {
        (Some(time), _) => Some((PUSHBACK, time)),
        (None, Some(time)) => Some((DETAILS, time)),
        (None, None) => reading.retry_after(),
    };
    // `UNAVAILABLE` may be any failure, and `RESOURCE_EXHAUSTED` a message that is too large or a disk that is full. Envoy's rate limits
    // are the former by default.
    let is_limit = details.has_quota || reading.headers.contains_key(ENVOY);
    reading.feedback.refusal = match time {
        Some((field, time)) => Some(Refusal::new(field).retry_after(time)),
        None => is_limit.then(|| Refusal::new(STATUS)),
    };
}

fn pushback(reading: &mut Reading<'_>) -> Option<Duration> {
    // A negative one asks the client not to retry, and names no time.
    reading.longest(PUSHBACK, |text, reading| match text.strip_prefix('-') {
        Some(text) => millis(text).map(|_| Duration::ZERO),
        None => Some(reading.left(millis(text)?)),
    })
}

/// What the details of a status say about limits.
#[derive(Default)]
struct Details {
    /// The longest time of a `RetryInfo`.
    retry: Option<Duration>,
    /// Whether there is a `QuotaFailure`, or an `ErrorInfo` whose reason is a limit's.
    has_quota: bool,
}

fn details(reading: &mut Reading<'_>) -> Details {
    let (mut longest, mut has_quota) = (Duration::ZERO, false);
    for value in reading.headers.get_all(DETAILS) {
        let details = text(value)
            .filter(|text| (1..=MAX_DETAILS_BYTES).contains(&text.len()))
            .and_then(|text| BASE64.decode(text).ok())
            .map(|details| Status::with_details(Code::Unknown, "", details.into()))
            .and_then(|status| status.check_error_details().ok());
        match details {
            Some(details) => {
                let info = details.retry_info();
                let time = info.and_then(|info| info.retry_delay).unwrap_or_default();
                longest = longest.max(reading.left(time.min(MAX_TIME)));
                let reason = details.error_info().map(|info| info.reason.as_str());
                has_quota |= details.quota_failure().is_some()
                    || reason.is_some_and(|reason| REASONS.contains(&reason));
            }
            None => reading.feedback.add_unread(DETAILS, value),
        }
    }
    Details {
        retry: (!longest.is_zero()).then_some(longest),
        has_quota,
    }
}
