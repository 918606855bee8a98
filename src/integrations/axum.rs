//! Implementations of axum's traits: [`Admission`] is an extractor, and [`Rejected`] and errors are responses.

use std::convert::Infallible;

use ::axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};

use super::Unavailable;
use crate::{
    error::{CallError, MissingAdmission, StoreError, UnknownPolicy},
    limiter::{Admission, Rejected},
    respond::http,
};

impl IntoResponse for MissingAdmission {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Admission {
    type Rejection = MissingAdmission;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, MissingAdmission> {
        parts.extensions.get().cloned().ok_or(MissingAdmission)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Admission {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}

/// The response of a layer's own rejection. Behind a [`RateLimitLayer`](crate::RateLimitLayer) the innermost layer replaces it
/// by its response, with its fields and its [`on_rejection`](crate::RateLimitLayer::on_rejection), since it finds the
/// `Rejected` in the response's extensions.
impl IntoResponse for Rejected {
    fn into_response(self) -> Response {
        let mut response = http::response(&self);
        response.extensions_mut().insert(self);
        response
    }
}

/// The response 503 Service Unavailable with problem details, and `Retry-After` if the store failed. A mistake in the
/// application, such as an unknown policy, is logged as an error at most every 10 s.
impl IntoResponse for CallError {
    fn into_response(self) -> Response {
        let unavailable = Unavailable::of(&self);
        let mut response = (StatusCode::SERVICE_UNAVAILABLE, Unavailable::json()).into_response();
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = unavailable.seconds() {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The response of [`CallError::Store`].
impl IntoResponse for StoreError {
    fn into_response(self) -> Response {
        CallError::from(self).into_response()
    }
}

/// The response of [`CallError::UnknownPolicy`].
impl IntoResponse for UnknownPolicy {
    fn into_response(self) -> Response {
        CallError::from(self).into_response()
    }
}
