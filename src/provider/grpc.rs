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
    let time = match pushback(reading) {
        Some(time) => Some((PUSHBACK, time)),
        None => retry_info(reading).map(|time| (DETAILS, time)),
    };
    match time {
        Some((field, time)) => {
            let refusal = Refusal::new(field).retry_after(time);
            reading.feedback.refusal = Some(refusal);
        }
        // Without a time, `UNAVAILABLE` may be any failure.
        None if code == Code::ResourceExhausted => reading.refuse(STATUS),
        None => {}
    }
}

fn pushback(reading: &mut Reading<'_>) -> Option<Duration> {
    // A negative one asks the client not to retry, and names no time.
    reading.longest(PUSHBACK, |text, _| match text.strip_prefix('-') {
        Some(text) => millis(text).map(|_| Duration::ZERO),
        None => millis(text),
    })
}

fn retry_info(reading: &mut Reading<'_>) -> Option<Duration> {
    let mut longest = Duration::ZERO;
    for value in reading.headers.get_all(DETAILS) {
        let details = text(value)
            .filter(|text| text.len() <= MAX_DETAILS_BYTES)
            .and_then(|text| BASE64.decode(text).ok())
            .map(|details| Status::with_details(Code::Unknown, "", details.into()))
            .and_then(|status| status.check_error_details().ok());
        match details {
            Some(details) => {
                let info = details.retry_info();
                let time = info.and_then(|info| info.retry_delay).unwrap_or_default();
                longest = longest.max(time.min(MAX_TIME));
            }
            None => reading.feedback.add_unread(DETAILS, value),
        }
    }
    (!longest.is_zero()).then_some(longest)
}
