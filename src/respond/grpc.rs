//! The rejection of a gRPC call: HTTP status 200, and the gRPC status in the trailers.
//!
//! Over gRPC the response is Trailers-Only ([PROTOCOL-HTTP2]); over gRPC-Web the trailers are a frame of the body
//! ([PROTOCOL-WEB]).
//!
//! [PROTOCOL-HTTP2]: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
//! [PROTOCOL-WEB]: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
    request::Parts,
};
#[cfg(feature = "tonic")]
use tonic::{Code, Status, metadata::MetadataMap};
#[cfg(feature = "tonic")]
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use super::{Problem, RateLimitHeaders, RetryDelay, http::NO_STORE, write_headers};
use crate::limiter::Decision;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
#[cfg(feature = "tonic")]
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: &str = "grpc-retry-pushback-ms";

const WEB: &str = "application/grpc-web";
const WEB_TEXT: &str = "application/grpc-web-text";

/// The protocol of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    /// `media` is the media type of the response; `text` is whether it is encoded in base64.
    Web {
        media: HeaderValue,
        text: bool,
    },
}

impl Protocol {
    /// The protocol by the request's content type. Only a POST is a call: a GET may have any content type, and caches could
    /// store its response with status 200 for other clients.
    pub(crate) fn of(parts: &Parts) -> Option<Self> {
        if parts.method != Method::POST {
            return None;
        }
        let media = media_type(parts.headers.get(CONTENT_TYPE)?)?;
        let (name, format) = media.split_once('+').unwrap_or((&media, ""));
        if name == "application/grpc" {
            return Some(Self::Grpc);
        }
        let text = is_text(name)?;
        // A client that sends one kind may accept the other.
        let accepted = parts.headers.get(ACCEPT).and_then(media_type);
        let accepted = accepted.and_then(|media| is_text(media.split('+').next()?));
        let text = accepted.unwrap_or(text);
        let mut media = String::from(if text { WEB_TEXT } else { WEB });
        // The response repeats the format only if that is alphanumeric.
        if !format.is_empty() && format.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            media.push('+');
            media.push_str(format);
        }
        let media = HeaderValue::try_from(media).ok()?;
        Some(Self::Web { media, text })
    }
}

/// Whether gRPC-Web by this name is in base64; `None` if it is another media type.
fn is_text(name: &str) -> Option<bool> {
    match name {
        WEB => Some(false),
        WEB_TEXT => Some(true),
        _ => None,
    }
}

/// The media type, without its parameters.
fn media_type(value: &HeaderValue) -> Option<String> {
    let media = value.to_str().ok()?.split(';').next()?;
    Some(media.trim().to_ascii_lowercase())
}

/// The response to a rejected call.
pub(super) fn response(
    decision: &Decision,
    fields: &RateLimitHeaders,
    protocol: Protocol,
) -> Response<Bytes> {
    let delay = RetryDelay::of(decision, fields);
    let trailers = trailers(decision, delay);
    let mut response = Response::new(Bytes::new());
    let media = match protocol {
        Protocol::Grpc => {
            *response.headers_mut() = trailers;
            HeaderValue::from_static("application/grpc")
        }
        Protocol::Web { media, text } => {
            let frame = frame(&trailers);
            *response.body_mut() = if text {
                BASE64_STANDARD.encode(frame).into()
            } else {
                frame.into()
            };
            media
        }
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, media);
    headers.insert(CACHE_CONTROL, NO_STORE);
    write_headers(decision, fields, delay, &mut response);
    response
}

/// Status, message, details (with feature `tonic`) and the retry delay.
fn trailers(decision: &Decision, delay: RetryDelay) -> HeaderMap {
    let problem = Problem::of(decision);
    let mut trailers = HeaderMap::with_capacity(8);
    trailers.insert(STATUS, HeaderValue::from(problem.code));
    if let Ok(message) = HeaderValue::try_from(percent_encoded(&problem.message(delay))) {
        trailers.insert(MESSAGE, message);
    }
    #[cfg(feature = "tonic")]
    {
        let status = status(&problem, delay);
        let details = base64::prelude::BASE64_STANDARD_NO_PAD.encode(status.details());
        if let Ok(details) = HeaderValue::try_from(details) {
            trailers.insert(DETAILS, details);
        }
    }
    if let Some(ms) = delay.pushback_ms() {
        trailers.insert(PUSHBACK, HeaderValue::from(ms));
    }
    trailers
}

/// The status of a rejection: its code, its message and the details of `google.rpc`.
#[cfg(feature = "tonic")]
pub(crate) fn status(problem: &Problem<'_>, delay: RetryDelay) -> Status {
    let mut details = ErrorDetails::new();
    if let Some(wait) = delay.wait() {
        details.set_retry_info(Some(wait));
    }
    let violated: Vec<_> = problem
        .violated()
        .map(|decision| {
            if decision.is_block_list() {
                QuotaViolation::new(decision.policy(), "blocked")
            } else {
                QuotaViolation {
                    quota_id: decision.policy().to_owned(),
                    quota_value: i64::try_from(decision.quota().amount()).unwrap_or(i64::MAX),
                    ..QuotaViolation::new(
                        decision.policy(),
                        format!("quota exceeded: {}", decision.quota()),
                    )
                }
            }
        })
        .collect();
    if !violated.is_empty() {
        details.set_quota_failure(violated);
    }
    let mut metadata = MetadataMap::new();
    if let Some(ms) = delay.pushback_ms() {
        metadata.insert(PUSHBACK, ms.into());
    }
    let message = problem.message(delay);
    Status::with_error_details_and_metadata(
        Code::from_i32(problem.code),
        message,
        details,
        metadata,
    )
}

/// gRPC-Web's last frame: its flag, its length, and the trailers as lines.
fn frame(trailers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::with_capacity(256);
    for (name, value) in trailers {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.push(b':');
        lines.extend_from_slice(value.as_bytes());
        lines.extend_from_slice(b"\r\n");
    }
    let length = u32::try_from(lines.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(lines.len() + 5);
    frame.push(0x80);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.append(&mut lines);
    frame
}

/// Encodes a `grpc-message`: all but visible ASCII and spaces, and `%`.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}
