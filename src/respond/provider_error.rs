//! Rejections as the APIs of OpenAI and Anthropic have them, and the fields by which their SDKs time a retry.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header::RETRY_AFTER};

use super::{Problem, RateLimitHeaders, RetryDelay, header_buf::HeaderBuf, problem::escaped};
use crate::{
    headers::{RETRY_AFTER_MS, SHOULD_RETRY},
    limiter::Decision,
    rejections::Rejections,
    strategy::RetryAfter,
};

/// The longest wait that all versions of the SDKs follow. A longer one makes some retry within a second, and others sleep.
const MAX_SDK_WAIT_MS: u64 = 60_000;

/// The body of a rejection in the form of a provider; `None` if it is in the default form.
pub(super) fn body(
    rejections: Rejections,
    problem: &Problem<'_>,
    fields: &RateLimitHeaders,
    delay: RetryDelay,
) -> Option<Bytes> {
    let message = || escaped(&problem.message(delay));
    let mut json = HeaderBuf::new();
    match rejections {
        Rejections::Default => return None,
        Rejections::OpenAi => {
            let counts_tokens = || {
                let mut violated = problem.violated();
                violated.any(|policy| fields.counts_tokens(policy.policy()))
            };
            let (kind, code) = match problem.status {
                StatusCode::TOO_MANY_REQUESTS if counts_tokens() => {
                    ("tokens", "\"rate_limit_exceeded\"")
                }
                StatusCode::TOO_MANY_REQUESTS => ("requests", "\"rate_limit_exceeded\""),
                StatusCode::SERVICE_UNAVAILABLE => ("server_error", "null"),
                _ => ("invalid_request_error", "null"),
            };
            json.text("{\"error\":{\"message\":\"").text(&message());
            json.text("\",\"type\":\"").text(kind);
            json.text("\",\"param\":null,\"code\":").text(code);
        }
        Rejections::Anthropic => {
            let kind = match problem.status {
                StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
                StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
                StatusCode::FORBIDDEN => "permission_error",
                _ => "invalid_request_error",
            };
            json.text("{\"type\":\"error\",\"error\":{\"type\":\"");
            json.text(kind).text("\",\"message\":\"");
            json.text(&message()).text("\"");
        }
    }
    json.text("}}");
    Some(json.body())
}

/// Adds the fields that tell the SDKs when to retry, but for a wait that the application has set by `Retry-After`. Called
/// before that field is added.
pub(super) fn write_retry(
    rejections: Rejections,
    decision: &Decision,
    delay: RetryDelay,
    headers: &mut HeaderMap,
) {
    if rejections == Rejections::Default || headers.contains_key(RETRY_AFTER) {
        return;
    }
    let wait_ms = delay.millis();
    if let Some(wait_ms) = wait_ms {
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(wait_ms));
    }
    let is_futile = match wait_ms {
        Some(wait_ms) => wait_ms > MAX_SDK_WAIT_MS,
        None => decision.retry_after() == RetryAfter::Never,
    };
    if is_futile {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
}
