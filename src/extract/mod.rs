//! Who is asking: key extractors.
//!
//! | extractor | key | constructor |
//! |---|---|---|
//! | [`peer`] | the client's address, IPv6 by its /64 | [`Key::ip`] |
//! | [`header`] | a header's value | [`Key::new`] |
//! | [`bearer`] | the token of `Authorization: Bearer`, hashed | [`Key::secret`] |
//! | [`path`], [`method`] | the request's path as the client sent it; its method | [`Key::new`] |
//! | [`matched_path`] (feature `axum`) | the route | [`Key::new`] |
//! | [`global`] | everybody together | [`Key::global`] |
//! | [`from_fn`] | what a closure says | yours |
//! | a tuple of two to four | all of them together | [`Key::tuple`] |
//!
//! ```
//! use tollgate::{Policy, Quota, extract};
//!
//! // Each tenant on each path.
//! let policy = Policy::new("tenants", Quota::requests(100).per_minute())
//!     .key((extract::header("x-tenant"), extract::path()));
//! ```
//!
//! What must be awaited to know a key belongs into a middleware before this one, which leaves it in the request's
//! extensions for [`from_fn`].

use std::{fmt, sync::Arc};

use http::request::Parts;

use crate::{error::Unfit, key::Key};

mod combine;
mod credentials;
mod peer;
mod target;

pub use combine::{FromFn, from_fn};
pub use credentials::{Bearer, Header, bearer, header};
pub use peer::{Peer, PeerAddr, peer};
pub use target::{Global, Method, Path, global, method, path};
#[cfg(feature = "axum")]
pub use target::{RoutePath, matched_path};

/// What to do with a request in which a policy finds no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The policy does not apply to it.
    Skip,
    /// It is refused: 400 Bad Request.
    Refuse,
    /// All such requests are counted together, under one key that no request can name.
    Shared,
}

/// Finds out who is asking.
pub trait KeyExtractor: fmt::Debug + Send + Sync + 'static {
    /// The key of a request; `None` if it has none.
    fn key(&self, parts: &Parts) -> Option<Key>;

    /// What to do with a request without a key, unless the policy says otherwise.
    fn when_missing(&self) -> MissingKey {
        MissingKey::Refuse
    }

    /// If a missing key is a mistake of the application's, what to do about it: it is logged as an error.
    fn hint(&self) -> &'static str {
        ""
    }

    /// Asked when a limiter is built.
    ///
    /// # Errors
    ///
    /// If it can't find keys, such as by a header whose name is none.
    fn check(&self) -> Result<(), Unfit> {
        Ok(())
    }
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn key(&self, parts: &Parts) -> Option<Key> {
        (**self).key(parts)
    }

    fn when_missing(&self) -> MissingKey {
        (**self).when_missing()
    }

    fn hint(&self) -> &'static str {
        (**self).hint()
    }

    fn check(&self) -> Result<(), Unfit> {
        (**self).check()
    }
}
