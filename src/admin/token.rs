//! Tokens, and the users that they stand for.

use std::{fmt, sync::Arc};

use axum::{
    extract::{FromRequestParts, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};

use super::{AdminError, http::Failure, state::AdminState};
use crate::log::LogThrottle;

/// The fewest characters of a token, without the `=` that fill it up.
const MIN_TOKEN_CHARS: usize = 16;

/// The name that stands in the log for a user of the admin API: that of the token, or what a middleware of the application inserts
/// into the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminUser(Arc<str>);

impl AdminUser {
    /// A user of that name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// How requests are authenticated.
#[derive(Debug)]
pub(super) enum Authentication {
    Tokens(Vec<Token>),
    /// By a middleware of the application.
    OwnMiddleware,
}

/// A token's hash, and the user that it stands for.
#[derive(Clone)]
pub(super) struct Token {
    user: AdminUser,
    hash: blake3::Hash,
}

/// The result of authenticating a request.
pub(super) enum Identity {
    Known(AdminUser),
    /// It has no bearer token.
    Anonymous,
    /// It has a token that is not valid.
    WrongToken,
}

impl Token {
    pub(super) fn new(name: &str, token: &str) -> Result<Self, AdminError> {
        if name.trim().is_empty() {
            return Err(AdminError::EmptyName);
        }
        let text = token.trim_end_matches('=');
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
        if !text.bytes().all(is_valid) {
            let name = name.to_owned();
            return Err(AdminError::InvalidToken { name });
        }
        if text.len() < MIN_TOKEN_CHARS {
            return Err(AdminError::TokenTooShort {
                name: name.to_owned(),
                length: text.len(),
            });
        }
        Ok(Self {
            user: AdminUser::new(name),
            hash: blake3::hash(token.as_bytes()),
        })
    }

    pub(super) fn name(&self) -> &str {
        self.user.name()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Authentication {
    /// Authenticates a request by its token, or by the user that a middleware has inserted.
    pub(super) fn identify(&self, headers: &HeaderMap, inserted: Option<&AdminUser>) -> Identity {
        let tokens = match self {
            Self::Tokens(tokens) => tokens,
            Self::OwnMiddleware => {
                let user = inserted.cloned();
                return Identity::Known(user.unwrap_or_else(|| AdminUser::new("application")));
            }
        };
        let Some(token) = bearer(headers) else {
            return Identity::Anonymous;
        };
        let hash = blake3::hash(token);
        // Comparing hashes takes the same time wherever they differ, and all tokens are compared.
        let mut user = None;
        for known in tokens {
            if known.hash == hash {
                user = Some(&known.user);
            }
        }
        user.map_or(Identity::WrongToken, |user| Identity::Known(user.clone()))
    }
}

/// The bearer token of a request with exactly one `Authorization`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    (values.next().is_none() && scheme.eq_ignore_ascii_case(b"Bearer ")).then(|| token.trim_ascii())
}

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
