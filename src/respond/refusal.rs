//! The refusal: a status, and problem details (RFC 9457) that name what was exceeded.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE},
};

use crate::{
    admission::Refused,
    decision::{Decision, Ruling},
    respond::fields,
};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The response that a refused caller gets.
pub(crate) fn response(refused: &Refused) -> Response<Bytes> {
    let decision = refused.decision();
    let (status, body) = problem(decision);
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields::write(decision, headers);
    response
}

/// Names hold neither quotes nor backslashes nor control characters, so that JSON takes them as they are.
fn problem(decision: &Decision) -> (StatusCode, String) {
    match decision.ruling() {
        Ruling::Exhausted | Ruling::Admitted => {
            let refused: Vec<_> = decision
                .verdicts()
                .filter(|verdict| verdict.refused())
                .map(|verdict| format!("\"{}\"", verdict.policy()))
                .collect();
            let body = format!(
                "{{\"type\":\"{QUOTA_EXCEEDED}\",\
                 \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
                 \"status\":429,\"violated-policies\":[{}]}}",
                refused.join(",")
            );
            (StatusCode::TOO_MANY_REQUESTS, body)
        }
        Ruling::MissingKey { policy } => {
            let body = format!(
                "{{\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
                 \"detail\":\"The request lacks what policy '{policy}' counts by.\"}}"
            );
            (StatusCode::BAD_REQUEST, body)
        }
        Ruling::Fault(_) => {
            let body = format!(
                "{{\"type\":\"{REDUCED_CAPACITY}\",\
                 \"title\":\"Request cannot be satisfied due to temporary server capacity constraints\",\
                 \"status\":503}}"
            );
            (StatusCode::SERVICE_UNAVAILABLE, body)
        }
    }
}
