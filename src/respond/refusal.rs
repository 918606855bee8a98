//! The refusal over plain HTTP: a status, and problem details (RFC 9457) or text that say what was exceeded.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE},
};

use super::{Delay, Problem, tell};
use crate::admission::Refused;

/// The response to a caller of whom nothing is known.
#[cfg(feature = "axum")]
pub(crate) fn response(refused: &Refused) -> Response<Bytes> {
    with(refused, false)
}

/// The response to a request of these header fields.
pub(super) fn negotiated(refused: &Refused, request: &HeaderMap) -> Response<Bytes> {
    with(refused, wants_text(request))
}

fn with(refused: &Refused, text: bool) -> Response<Bytes> {
    let delay = Delay::of(refused);
    let problem = Problem::of(refused.decision());
    let (media_type, body) = if text {
        let sentence = problem.sentence(delay);
        let body = format!("{}\n\n{sentence}\n", problem.status);
        ("text/plain; charset=utf-8", body)
    } else {
        ("application/problem+json", problem.json())
    };
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = problem.status;
    for (name, value) in [
        (CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (CONTENT_LENGTH, length),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ] {
        response.headers_mut().insert(name, value);
    }
    tell(refused.decision(), refused.fields(), delay, &mut response);
    response
}

/// Whether somebody reads it who takes text and no JSON: a browser that shows a page (RFC 9110, 12.5.1).
fn wants_text(request: &HeaderMap) -> bool {
    let lines = request.get_all(ACCEPT).into_iter();
    let ranges = lines.filter_map(|line| line.to_str().ok());
    let mut text = false;
    for range in ranges.flat_map(|line| line.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        if weight.is_some_and(|weight| weight.parse() == Ok(0.0)) {
            continue;
        }
        if media == "application/json" || media.ends_with("+json") {
            return false;
        }
        text |= media.starts_with("text/");
    }
    text
}
