//! Requests and responses of the admin API.

use std::fmt;

use axum::{
    body,
    extract::{FromRequest, FromRequestParts, Request},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::{Serialize, de::DeserializeOwned};

use super::api::Problem;
use crate::error::{CallError, StoreError, UnknownPolicy, overrides::OverrideError};

/// An answer with status 200.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(json) => with_type(status, "application/json", json.into()),
        // Not reached: only a map whose keys are no texts can't be written, and no answer has one.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

pub(crate) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: body::Body,
) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

/// The most bytes of a body.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// A body of JSON.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        match read(&parts.headers, body).await {
            Ok(body) => Ok(Self(body)),
            Err(failure) => Err(failure.into_response()),
        }
    }
}

async fn read<T: DeserializeOwned>(headers: &HeaderMap, body: body::Body) -> Result<T, Failure> {
    // A page of another site can't send this type without asking by a preflight.
    if !is_json(headers) {
        return Err(Failure::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body has to be JSON: send content-type: application/json",
        ));
    }
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Failure::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body has more than {MAX_BODY_BYTES} bytes"),
            )
        } else {
            Failure::bad_request("the body could not be read")
        }
    })?;
    let body = body.to_bytes();
    // serde takes a list for the values of a struct in the order of its fields.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Failure::bad_request("the body has to be a JSON object"));
    }
    serde_json::from_slice(&body).map_err(|error| {
        // A message about a value may quote a credential; about its place it does not.
        let problem = match error.classify() {
            serde_json::error::Category::Data => without_values(&error.to_string()),
            _ => error.to_string(),
        };
        Failure::bad_request(format!("the body is not valid: {problem}"))
    })
}

/// serde's message of wrong data without the value that was found, which it has between backquotes or quotes.
fn without_values(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let kind = found.split(['`', '"']).next().unwrap_or(found).trim_end();
    format!("{kind}, expected {expected}")
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    let text = value.and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = text.split(';').next().unwrap_or("");
    essence.trim().eq_ignore_ascii_case("application/json")
}

/// The entries of a list that are answered unless asked for otherwise.
const DEFAULT_LIMIT: usize = 100;

/// The most entries in an answer.
const MAX_LIMIT: usize = 10_000;

/// The `policy` and the `limit` of a query for a list.
pub(crate) fn policy_and_limit(query: Query) -> Result<(Option<String>, usize), Failure> {
    let [policy, limit] = query.only(["policy", "limit"])?;
    let limit = limit.map_or(Ok(DEFAULT_LIMIT), |limit| limit.parse());
    let limit = limit.ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    let limit = limit.ok_or_else(|| {
        Failure::bad_request(format!("limit: a number from 1 to {MAX_LIMIT} is expected"))
    })?;
    Ok((policy, limit))
}

/// The parameters of a query.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// The parameters, of which each has one of these names and occurs once.
    pub(crate) fn only<const N: usize>(
        self,
        names: [&str; N],
    ) -> Result<[Option<String>; N], Failure> {
        let mut values = [const { None }; N];
        for (name, value) in self.0 {
            let Some(index) = names.iter().position(|known| *known == name) else {
                return Err(Failure::bad_request(format!(
                    "a parameter of the query is not known; expected {names:?} at most"
                )));
            };
            if values[index].replace(value).is_some() {
                let name = names[index];
                return Err(Failure::bad_request(format!(
                    "{name} is in the query twice"
                )));
            }
        }
        Ok(values)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = form_urlencoded::parse(query.as_bytes());
        Ok(Self(pairs.into_owned().collect()))
    }
}

#[test]
fn a_message_about_wrong_data_does_not_quote_it() {
    for (message, expected) in [
        (
            "invalid type: string \"sk_live_1\", expected u64 at line 1 column 9",
            "invalid type: string, expected u64 at line 1 column 9",
        ),
        (
            "invalid type: string \"a, expected sk_live_1\", expected u64 at line 1 column 9",
            "invalid type: string, expected u64 at line 1 column 9",
        ),
        (
            "unknown field `sk_live_1`, expected `policy` or `key` at line 1 column 9",
            "unknown field, expected `policy` or `key` at line 1 column 9",
        ),
        (
            "missing field `key` at line 1 column 2",
            "missing field `key` at line 1 column 2",
        ),
    ] {
        assert_eq!(without_values(message), expected);
    }
}

/// What a handler returns.
pub(crate) type Answer<T> = Result<Json<T>, Failure>;

/// Why a request failed: a status, and what is wrong.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    detail: String,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    pub(crate) fn bad_request(detail: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail.to_string())
    }

    /// Whether the store or the process failed, rather than the request is wrong.
    pub(crate) fn is_server_error(&self) -> bool {
        self.status.is_server_error()
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
}

impl From<UnknownPolicy> for Failure {
    fn from(error: UnknownPolicy) -> Self {
        Self::new(StatusCode::NOT_FOUND, error.to_string())
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let detail = error.to_string();
        match error {
            CallError::UnknownPolicy(error) => error.into(),
            CallError::Store(StoreError::Unsupported(_))
            | CallError::DuplicatePolicy { .. }
            | CallError::TooManyEntries { .. }
            | CallError::PartsRequired { .. }
            | CallError::CreditUnsupported { .. }
            | CallError::NoBlockList
            | CallError::AdmitRequired { .. }
            | CallError::NotABan { .. } => Self::bad_request(detail),
            CallError::Store(error) => {
                let remedy = error.remedy();
                let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
                Self::new(StatusCode::SERVICE_UNAVAILABLE, detail + &remedy)
            }
        }
    }
}

impl From<OverrideError> for Failure {
    fn from(error: OverrideError) -> Self {
        match error {
            OverrideError::UnknownPolicy(error) => error.into(),
            OverrideError::Store(error) => CallError::Store(error).into(),
            error => Self::bad_request(error),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let problem = Problem {
            kind: "about:blank".to_owned(),
            title: self.status.canonical_reason().unwrap_or("Error").to_owned(),
            status: self.status.as_u16(),
            detail: self.detail,
        };
        let mut response = json(self.status, &problem);
        let content_type = HeaderValue::from_static("application/problem+json");
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, content_type);
        response
    }
}
