//! An HTTP API for operators: policies in force, the status of a key, resets, credits and blocks.
//!
//! [`Admin`] builds the [`Router`], [`Activity`] counts what it reports of this process, and [`api`] has its JSON.
//!
#![doc = include_str!("../../docs/admin.md")]

use std::sync::Arc;

use axum::Router;

mod activity;
pub mod api;
mod audit;
mod dashboard;
mod handlers;
mod http;
mod key_text;
mod routes;
mod state;
mod token;

pub use self::{activity::Activity, state::AdminTarget, token::AdminUser};
use self::{
    state::AdminState,
    token::{Authentication, Token},
};

/// Builds the admin API of a [`Limiter`](crate::Limiter) or a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// ```
/// use axum::Router;
/// use tollgate::{Policy, Quota, RateLimitLayer, admin::Admin};
///
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("api", Quota::requests(10).per_minute()))
///     .build()?;
/// let admin = Admin::new(&layer).token("ops", std::env::var("ADMIN_TOKEN")?).router()?;
/// // The admin API is outside of the layer, so that it is not limited itself.
/// let app: Router = Router::new().layer(layer).nest_service("/admin", admin);
/// # Ok(())
/// # }
/// ```
///
/// `GET /` is a dashboard: one page without data in it, which asks for a token and fetches what it shows. It is at `/admin` and at
/// `/admin/` if the router is nested by [`nest_service`](Router::nest_service), and at `/admin` alone if it is by
/// [`nest`](Router::nest).
///
/// All other routes but `GET /health` need one of the [tokens](Self::token), unless the application [authenticates
/// requests](Self::unprotected_behind_own_middleware) itself. Each change is logged at INFO with the target `tollgate::admin`: the
/// name of the token that authorised it, the policy, the key as answers show it, and its status before and after. A change that was begun is completed and logged
/// even if its client disconnects.
#[derive(Clone, Debug)]
#[must_use = "an admin API is mounted by its router"]
pub struct Admin {
    target: AdminTarget,
    /// Their hashes, and the mistakes of those that can't be used.
    tokens: Vec<Result<Token, AdminError>>,
    behind_own_middleware: bool,
    activity: Option<Arc<Activity>>,
    host: Option<String>,
    #[cfg(feature = "config")]
    document: Option<Arc<str>>,
    #[cfg(feature = "config")]
    watcher: Option<Arc<crate::config::Watcher>>,
}

impl Admin {
    /// The admin API of a limiter, or of a layer and its limiter.
    pub fn new(target: impl Into<AdminTarget>) -> Self {
        Self {
            target: target.into(),
            tokens: Vec::new(),
            behind_own_middleware: false,
            activity: None,
            host: None,
            #[cfg(feature = "config")]
            document: None,
            #[cfg(feature = "config")]
            watcher: None,
        }
    }

    /// Adds a bearer token, with a name that stands for it in the log. Several tokens are valid at once, so that one can be replaced
    /// while it is still in use.
    ///
    /// A token has at least 16 letters, digits and `-._~+/`, optionally followed by `=` (RFC 6750). Its hash alone is kept, and hashes
    /// are compared in constant time.
    pub fn token(mut self, name: impl Into<String>, token: impl Into<String>) -> Self {
        self.tokens.push(Token::new(&name.into(), &token.into()));
        self
    }

    /// Leaves authentication to a middleware of the application around the router. **Without one, each client that can reach
    /// the routes can lift every limit.**
    ///
    /// The middleware may insert an [`AdminUser`] into the request's extensions, whose name is logged with each change.
    pub fn unprotected_behind_own_middleware(mut self) -> Self {
        self.behind_own_middleware = true;
        self
    }

    /// Adds what limiters do in this process, counted by an [`Activity`] that observes them: the routes `GET /activity`, `GET /events`
    /// and `GET /top`, which are 404 without.
    pub fn activity(mut self, activity: Arc<Activity>) -> Self {
        self.activity = Some(activity);
        self
    }

    /// Sets the name by which `GET /activity` and the dashboard tell this process from others, such as `api-1` or the name of a
    /// pod. Default: the machine's name.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.host = Some(name.into());
        self
    }

    /// Adds the text of the document that the application has loaded to `GET /config`: its comments too, and the names of variables
    /// in place of their values. A [`watcher`](Self::watcher) replaces it by that of each document that it puts in force.
    #[cfg(feature = "config")]
    pub fn document(mut self, document: &crate::config::Document) -> Self {
        self.document = Some(document.text().into());
        self
    }

    /// Adds a watch of the configuration file to `GET /config`: its state, and the text that it has loaded. The router keeps the
    /// watcher, and with it the watch; an application that needs it too passes a clone of an `Arc`.
    #[cfg(feature = "config")]
    pub fn watcher(mut self, watcher: impl Into<Arc<crate::config::Watcher>>) -> Self {
        self.watcher = Some(watcher.into());
        self
    }

    /// Builds the router. An application with state of its own nests it as `router.with_state(())`.
    ///
    /// # Errors
    ///
    /// [`AdminError`] if there is neither a token nor the [opt-out](Self::unprotected_behind_own_middleware), or both; if a token is
    /// shorter than 16 characters or has other characters than a request can carry; if a name is empty, or two tokens have the same
    /// name or are equal.
    pub fn router(self) -> Result<Router, AdminError> {
        let tokens = self.tokens.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (index, token) in tokens.iter().enumerate() {
            let (name, earlier) = (token.name().to_owned(), &tokens[..index]);
            if earlier.iter().any(|other| other.name() == name) {
                return Err(AdminError::DuplicateName { name });
            }
            if earlier.iter().any(|other| other.is_same(token)) {
                return Err(AdminError::DuplicateToken { name });
            }
        }
        let authentication = match (self.behind_own_middleware, tokens.is_empty()) {
            (false, true) => return Err(AdminError::Unprotected),
            (true, false) => return Err(AdminError::TokensAndOwnMiddleware),
            (true, true) => Authentication::OwnMiddleware,
            (false, false) => Authentication::Tokens(tokens),
        };
        let state = AdminState::new(self.target, authentication, self.activity, self.host);
        #[cfg(feature = "config")]
        let state = AdminState {
            document: self.document,
            watcher: self.watcher,
            ..state
        };
        Ok(routes::router(Arc::new(state)))
    }
}

/// Why an [`Admin`] has no router.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// There is neither a token nor the opt-out.
    #[error(
        "the admin API has no token: add one by Admin::token, or call Admin::unprotected_behind_own_middleware if a middleware of \
         the application authenticates its requests"
    )]
    Unprotected,
    /// There are tokens, and the opt-out, which ignores them.
    #[error(
        "the admin API has tokens and is also unprotected_behind_own_middleware, which would ignore them: remove one of the two"
    )]
    TokensAndOwnMiddleware,
    /// A token is too short.
    #[error(
        "the admin token {name:?} has {length} characters; at least 16 are required, as by `openssl rand -hex 16`"
    )]
    #[non_exhaustive]
    TokenTooShort {
        /// The token's name.
        name: String,
        /// The token's length, without the `=` at its end.
        length: usize,
    },
    /// A token has characters that no request can carry.
    #[error(
        "the admin token {name:?} has characters other than letters, digits and -._~+/ with = at the end; a file that it was read \
         from may end with a line break"
    )]
    #[non_exhaustive]
    InvalidToken {
        /// The token's name.
        name: String,
    },
    /// A token has no name.
    #[error("an admin token has an empty name; it is what the log says of its user")]
    EmptyName,
    /// Two tokens have the same name.
    #[error("two admin tokens are named {name:?}; the log would not tell them apart")]
    #[non_exhaustive]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// Two tokens are equal.
    #[error("the admin token {name:?} is the same as another one")]
    #[non_exhaustive]
    DuplicateToken {
        /// The name of the second.
        name: String,
    },
}
