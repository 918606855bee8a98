//! Key extractors: what a policy counts requests by.
//!
//! | extractor | key | constructor |
//! |---|---|---|
//! | [`peer`] | the address of the socket's peer, IPv6 by its /64 | [`Key::ip`](crate::Key::ip) |
//! | [`client_ip`] | the client's address behind trusted proxies | [`Key::ip`](crate::Key::ip) |
//! | [`header`] | a header's value (over gRPC: metadata's); hashed if it looks like a [credential](#credentials) | [`Key::new`](crate::Key::new), or [`Key::secret`](crate::Key::secret) |
//! | [`bearer`] | the token of `Authorization: Bearer`, hashed | [`Key::secret`](crate::Key::secret) |
//! | [`cookie`] | a cookie's value, hashed | [`Key::secret`](crate::Key::secret) |
//! | [`query`] | a query parameter's value; hashed if it looks like a [credential](#credentials) | [`Key::new`](crate::Key::new), or [`Key::secret`](crate::Key::secret) |
//! | [`host`] | the host that is called | [`Key::new`](crate::Key::new) |
//! | [`path`], [`method`] | the request's path as the client sent it; its method | [`Key::new`](crate::Key::new) |
//! | [`matched_path`] (feature `axum`) | the route | [`Key::new`](crate::Key::new) |
//! | [`grpc_service`], [`grpc_method`] | `pkg.Service`; `pkg.Service/Method` | [`Key::new`](crate::Key::new) |
//! | [`extension`] | what a middleware found: a user, a JWT's claim, a TLS certificate | yours |
//! | [`from_fn`] | what a closure says | yours |
//! | [`global`] | all requests together | [`Key::global`](crate::Key::global) |
//! | a tuple of two to four | all of them together | [`Key::tuple`](crate::Key::tuple) |
//! | [`or_else`](KeyExtractor::or_else) | the first that is there | [`Key::tuple`](crate::Key::tuple) of its place and its key |
//! | [`or_same`](KeyExtractor::or_same) | one credential, in either of two places | its key |
//!
//! ```
//! use tollgate::{Policy, Quota, extract::{self, KeyExtractor}};
//!
//! // Each tenant on each path,
//! let tenants = Policy::new("tenants", Quota::requests(100).per_minute())
//!     .key((extract::header("x-tenant"), extract::path()));
//!
//! // and each user, or, before they have signed in, each address behind our own proxies.
//! #[derive(Clone)]
//! struct User(String);
//!
//! let by_user = extract::extension::<User>(|User(name)| name.as_str().into());
//! let by_address = extract::client_ip().trusted_proxies(["10.0.0.0/8"]);
//! let users = Policy::new("users", Quota::requests(10).per_second()).key(by_user.or_else(by_address));
//! ```
//!
//! # Calls by hand
//!
//! A [`Limiter`](crate::Limiter) that is called with one key for all policies (`limiter.admit(&user)`) counts by it whatever
//! their extractors say, but for those by [`global`], or by a tuple of nothing else: such a policy has one key for all
//! requests, and keeps it ([`KeyExtractor::fixed_key`]). A policy by an address, a path or a tenant has to be named beside the
//! caller's: `limiter.admit([("users", user), ("tenants", tenant)])`. [`PolicyHandle::key`](crate::PolicyHandle::key) makes
//! the key that a policy's extractor finds in a request.
//!
//! # Credentials
//!
//! A short value of harmless characters is stored as it is, so that an operator can read it, unless it may be a
//! credential: then only its hash reaches the store and the logs ([`Key::secret`](crate::Key::secret)). [`bearer`] and [`cookie`] always hash.
//! [`header`] and [`query`] hash if the name looks like a credential's:
//!
//! - it contains `apikey`, `authorization`, `credential`, `passwd`, `password`, `secret`, `session` or `token`, in any
//!   case: `Proxy-Authorization`, `x-auth-token`, `JSESSIONID`;
//! - or one of its words is `auth`, `cookie`, `jwt`, `key`, `pwd` or `sid`: `x-api-key`, `api_key`. A word ends where
//!   something other than a letter follows and, in the names of query parameters, where an upper-case letter follows a
//!   lower-case one: `apiKey`.
//!
//! `.readable()` keeps such a value readable, and `.secret()` hashes any other. [`extension`] and [`from_fn`] return a
//! [`Key`](crate::Key) of the application's own making: use [`Key::secret`](crate::Key::secret) there.
//!
//! # Requests without a key
//!
//! | extractor | a request without a key is |
//! |---|---|
//! | [`peer`], [`client_ip`] | counted with all others without one, and an error is logged: [`MissingKey::Shared`] |
//! | [`header`], [`query`], [`cookie`], [`bearer`], [`host`], [`grpc_service`], [`grpc_method`], [`extension`], [`from_fn`] | rejected, 400 Bad Request: [`MissingKey::Reject`] |
//! | a tuple | rejected if a part is missing, but for parts of which all without one share a bucket |
//! | [`or_else`](KeyExtractor::or_else), [`or_same`](KeyExtractor::or_same) | what the last extractor says |
//! | [`path`], [`method`], [`matched_path`], [`global`] | none: each request has a key |
//!
//! [`Policy::missing_key`](crate::Policy::missing_key) says otherwise for one policy. A header with several lines, and a
//! query parameter or cookie that is given twice, are ambiguous and no key.
//!
//! The response to a rejected request says [what it lacks](KeyExtractor::missing_key_name), such as "The request lacks
//! the header x-api-key.", and not the policy's name. What the application probably did wrong is logged: a policy whose first
//! requests all lack a key logs a warning, once.
//!
//! # What a client can choose
//!
//! An address can't be chosen, nor what a middleware verified. All else a client can change with each request, and have
//! a new bucket each time: an API key that was not checked, a cookie, a path, a host. To limit clients rather than to
//! share out among what they name, verify first ([`extension`]), or put the address into a tuple with it.
//!
//! What must be awaited to know a key belongs into a middleware before this one, which leaves it in the request's
//! extensions for [`extension`].

mod address;
mod cookie;
mod credentials;
mod extension;
mod extractor;
mod field;
mod grpc;
mod host;
mod query;
pub(crate) mod tuple;
pub(crate) mod uri;

pub use self::address::client::{ClientIp, client_ip};
pub(crate) use self::address::networks::parse_network;
pub(crate) use self::address::peer::NO_PEER;
pub use self::address::peer::{Peer, PeerAddr, peer};
pub use self::tuple::{FromFn, from_fn};
pub use self::uri::{Global, Method, Path, global, method, original_path, path};
#[cfg(feature = "axum")]
pub use self::uri::{RoutePath, matched_path};
pub use cookie::{Cookie, cookie};
pub use credentials::{Bearer, Header, bearer, header};
pub use extension::{Extension, extension};
pub use extractor::{KeyExtractor, MissingKey, OrElse, OrSame};
pub use grpc::{GrpcMethod, GrpcService, grpc_method, grpc_service};
pub use host::{Host, host};
pub use query::{Query, query};
