//! Requests and responses of the admin API.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

pub(super) mod input;
pub(super) mod problem;

/// An answer with status 200.
pub(in crate::admin) struct Json<T>(pub(in crate::admin) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

pub(in crate::admin) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(json) => with_type(status, "application/json", json.into()),
        // Not reached: only a map whose keys are no texts can't be written, and no answer has one.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

pub(in crate::admin) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: Body,
) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}
