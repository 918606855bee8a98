//! Errors as problem details (RFC 9457).

use std::fmt;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use super::{Json, json};
use crate::{
    admin::api::Problem,
    error::{CallError, StoreError, UnknownPolicy, overrides::OverrideError},
};

/// What a handler returns.
pub(in crate::admin) type Answer<T> = Result<Json<T>, Failure>;

/// Why a request failed: a status, and what is wrong.
#[derive(Debug)]
pub(in crate::admin) struct Failure {
    status: StatusCode,
    detail: String,
}

impl Failure {
    pub(in crate::admin) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    pub(in crate::admin) fn bad_request(detail: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail.to_string())
    }

    /// Whether the store or the process failed, rather than the request is wrong.
    pub(in crate::admin) fn is_server_error(&self) -> bool {
        self.status.is_server_error()
    }

    pub(in crate::admin) fn detail(&self) -> &str {
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
            | CallError::LowerUnsupported { .. }
            | CallError::NoBlockList
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
