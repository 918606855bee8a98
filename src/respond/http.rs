//! The rejection over plain HTTP: a status, and problem details (RFC 9457) or text that name the exceeded policies.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE},
};

use super::{Problem, RateLimitHeaders, RetryDelay, provider_error, write_headers};
#[cfg(feature = "axum")]
use crate::limiter::Rejected;
use crate::{limiter::Decision, rejections::Rejections};

// Constants: made for each rejection, each of their characters would be validated.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The response of a rejection that a handler returned: its request is not known here, so the body is problem details.
#[cfg(feature = "axum")]
pub(crate) fn response<B: From<Bytes>>(rejected: &Rejected) -> Response<B> {
    build(
        rejected.decision(),
        rejected.fields(),
        rejected.form(),
        false,
    )
}

/// The response to a rejected request, with a provider's error, plain text or problem details as its body.
pub(super) fn build<B: From<Bytes>>(
    decision: &Decision,
    fields: &RateLimitHeaders,
    rejections: Rejections,
    plain_text: bool,
) -> Response<B> {
    let delay = RetryDelay::of(decision, fields);
    let problem = Problem::of(decision);
    let error = provider_error::body(rejections, &problem, fields, delay);
    let (media_type, length, body) = if let Some(error) = error {
        (JSON, HeaderValue::from(error.len()), error)
    } else if plain_text {
        let body = format!("{}\n\n{}\n", problem.status, problem.message(delay));
        let length = HeaderValue::from(body.len());
        (TEXT, length, body.into())
    } else {
        let problem = problem.json();
        (PROBLEM, problem.length, problem.body)
    };
    let mut response = Response::new(B::from(body));
    *response.status_mut() = problem.status;
    // These three, and the rate-limit fields.
    let headers = response.headers_mut();
    headers.reserve(6);
    headers.insert(CONTENT_TYPE, media_type);
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CACHE_CONTROL, NO_STORE);
    provider_error::write_retry(rejections, decision, delay, headers);
    write_headers(decision, fields, delay, &mut response);
    response
}

/// Whether `Accept` names text and no JSON, as that of a browser does (RFC 9110, 12.5.1).
pub(super) fn prefers_plain_text(request: &HeaderMap) -> bool {
    if !request.contains_key(ACCEPT) {
        return false;
    }
    let lines = request.get_all(ACCEPT).into_iter();
    let ranges = lines.filter_map(|line| line.to_str().ok());
    let mut text = false;
    for range in ranges.flat_map(|line| line.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        if weight.is_some_and(|weight| weight.parse() == Ok(0.0)) {
            continue;
        }
        let (kind, name) = media.split_once('/').unwrap_or_default();
        let syntax = name.rsplit('+').next().unwrap_or_default();
        if syntax.eq_ignore_ascii_case("json")
            && (kind.eq_ignore_ascii_case("application") || name.contains('+'))
        {
            return false;
        }
        text |= kind.eq_ignore_ascii_case("text");
    }
    text
}
