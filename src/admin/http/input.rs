//! Reads the bodies and queries of requests.

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::problem::Failure;

/// The most bytes of a body.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// A body of JSON.
pub(in crate::admin) struct Body<T>(pub(in crate::admin) T);

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

async fn read<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: axum::body::Body,
) -> Result<T, Failure> {
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

/// The parameters of a query.
pub(in crate::admin) struct Query(Vec<(String, String)>);

impl Query {
    /// The parameters, of which each has one of these names and occurs once.
    pub(in crate::admin) fn only<const N: usize>(
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
