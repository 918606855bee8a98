//! The authentication of requests.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header, request::Parts};

use super::{
    http::problem::Failure,
    state::AdminState,
    token::{AdminUser, Identity},
};
use crate::log::LogThrottle;

/// Rejects requests without a valid token, and inserts the user of the others.
pub(super) async fn authenticate(
    State(state): State<Arc<AdminState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let inserted = request.extensions().get::<AdminUser>();
    match state.authentication.identify(request.headers(), inserted) {
        Identity::Known(user) => {
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        Identity::Anonymous => unauthorized(false),
        Identity::WrongToken => unauthorized(true),
    }
}

/// The response to a request without a token, or with a wrong one.
pub(super) fn unauthorized(has_token: bool) -> Response {
    let (detail, challenge) = if has_token {
        (
            "the bearer token is not valid",
            "Bearer realm=\"tollgate\", error=\"invalid_token\"",
        )
    } else {
        (
            "a bearer token is required: send it as Authorization: Bearer TOKEN",
            "Bearer realm=\"tollgate\"",
        )
    };
    if has_token {
        static WRONG_TOKEN: LogThrottle = LogThrottle::new();
        WRONG_TOKEN.log_with(|suppressed| {
            tracing::warn!(
                target: "tollgate::admin",
                suppressed,
                "an admin request has a token that is not valid"
            );
        });
    }
    let mut response = Failure::new(StatusCode::UNAUTHORIZED, detail).into_response();
    let challenge = HeaderValue::from_static(challenge);
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, challenge);
    response
}

/// The user that `authenticate` inserted.
impl<S: Send + Sync> FromRequestParts<S> for AdminUser {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let user = parts.extensions.get::<Self>().cloned();
        user.ok_or_else(|| unauthorized(false))
    }
}
