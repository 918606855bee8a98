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
//! | [`extension`] | a value of a middleware: a user, a JWT's claim, a TLS certificate | yours |
//! | [`from_fn`] | a closure's result | yours |
//! | [`global`] | all requests together | [`Key::global`](crate::Key::global) |
//! | a tuple of two to four | all of them together | [`Key::tuple`](crate::Key::tuple) |
//! | [`or_else`](KeyExtractor::or_else) | the first that is there | [`Key::tuple`](crate::Key::tuple) of its place and its key |
//! | [`or_same`](KeyExtractor::or_same) | one credential, in either of two places | its key |
//!
//! ```
//! use tollgate::{KeyExtractor, Policy, Quota, extract};
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
//! their extractors are, except under policies by [`global`], or a tuple of nothing else, which keep their one key
//! ([`KeyExtractor::fixed_key`]). Policies by an address, a path or a tenant have to be named, each with its key:
//! `limiter.admit([("users", user), ("tenants", tenant)])`. [`PolicyHandle::key`](crate::limiter::PolicyHandle::key) makes the key that
//! a policy's extractor finds in a request.
//!
//! # Credentials
//!
//! A short value of plain characters is stored unchanged, so that an operator can read it, unless it may be a credential: then
//! only its hash reaches the store and the logs ([`Key::secret`](crate::Key::secret)). [`bearer`] and, by default, [`cookie`]
//! always hash. [`header`] and [`query`] hash if the name looks like a credential's:
//!
//! - it contains `apikey`, `authorization`, `credential`, `passwd`, `password`, `secret`, `session` or `token`, in any
//!   case: `Proxy-Authorization`, `x-auth-token`, `JSESSIONID`;
//! - or one of its words is `auth`, `cookie`, `jwt`, `key`, `pwd` or `sid`: `x-api-key`, `api_key`. A word ends where
//!   something other than a letter follows and, in the names of query parameters, where an upper-case letter follows a
//!   lower-case one: `apiKey`.
//!
//! `.readable()` stores such a value readably, and `.secret()` hashes any other. [`extension`] and [`from_fn`] return a
//! [`Key`](crate::Key) that the application makes: use [`Key::secret`](crate::Key::secret) there. A UUID is readable like a name:
//! declare one that is a credential secret.
//!
//! # Requests without a key
//!
//! | extractor | a request without a key is |
//! |---|---|
//! | [`peer`], [`client_ip`] | counted in one bucket with all others without one, which is logged as an error and is a [warning](crate::store::HealthWarning) of health checks: [`MissingKey::Shared`] |
//! | [`header`], [`query`], [`cookie`], [`bearer`], [`host`], [`grpc_service`], [`grpc_method`], [`extension`], [`from_fn`] | rejected, 400 Bad Request: [`MissingKey::Reject`] |
//! | a tuple | rejected if a part is missing, unless that part is [`MissingKey::Shared`] |
//! | [`or_else`](KeyExtractor::or_else), [`or_same`](KeyExtractor::or_same) | as the last extractor does |
//! | [`path`], [`method`], [`matched_path`], [`global`] | impossible: each request has a key |
//!
//! [`Policy::missing_key`](crate::Policy::missing_key) changes this for one policy.
//!
//! A header, bearer token, host, query parameter or cookie with several different values is [ambiguous](Extracted::Ambiguous): the request is rejected
//! with 400, whatever `missing_key` is and whatever else a combination would find, since the application may authenticate by
//! another of the values than the one that is counted. Equal values are one. A list of keys to allow or deny rejects such a
//! request too.
//!
//! The response to a rejected request says [what it lacks](KeyExtractor::missing_key_name), such as "The request lacks the
//! header x-api-key.", and not the policy's name.
//!
//! # In a configuration document
//!
//! A document (feature `config`) has an extractor as text, [`KeyExtractor::config_text`], in which settings follow as words:
//!
//! | text | extractor |
//! |---|---|
//! | `peer`, `peer ipv6_prefix 56 ipv4_prefix 24` | [`peer`] |
//! | `client_ip` | [`client_ip`] as the document's table `client_ip` sets it |
//! | `client_ip trusted_proxies 10.0.0.0/8,192.168.0.0/16`, `client_ip hops 2 forwarded`, `client_ip trusted_proxies 10.0.0.1 header cf-connecting-ip` | [`client_ip`] with these settings alone; `ipv6_prefix` and `ipv4_prefix` too |
//! | `header:x-api-key`, `header:x-api-key readable`, `header:x-tenant secret` | [`header`] |
//! | `query:api_key`, `cookie:session`, `cookie:lang readable`, `cookie:session last` | [`query`], [`cookie`] |
//! | `bearer` | [`bearer`], with the document's `bearer.hash_key` |
//! | `host`, `path`, `method`, `matched_path`, `grpc_service`, `grpc_method`, `global` | the functions of these names |
//! | `bearer \| peer` | [`or_else`](KeyExtractor::or_else); one in another is in parentheses: `host \| (bearer \| peer)` |
//! | `same(header:x-api-key, bearer)` | [`or_same`](KeyExtractor::or_same) |
//! | `[header:x-tenant, path]` | a tuple of two to four |
//!
//! A name with other characters than letters, digits, `-`, `_` and `.` is in quotes, in which a backslash stands before a quote
//! or a backslash: `query:"old map"`. Other extractors are registered, and have the names that they are registered by.
//!
//! # Keys that a client can choose
//!
//! A client can't choose its address, nor a value that a middleware verified. It can change everything else with each request,
//! and so have a new bucket each time: an unverified API key, a cookie, a path, a host. To limit clients, verify the value
//! first ([`extension`]), or combine it with the address in a tuple.
//!
//! So does a client of an application that reads a value more freely than its extractor: that trims a query parameter, ignores
//! case, or splits a header at commas. There `acme`, `ACME` and `acme,1` are one caller with three buckets: count by what the
//! application has read ([`extension`]).
//!
//! A key that has to be awaited is found by a middleware in front of the limiter, which puts it into the request's extensions
//! for [`extension`].

mod address;
#[cfg(feature = "config")]
pub(crate) mod built_in;
mod cookie;
mod credentials;
mod extension;
pub(crate) mod extractor;
mod field;
mod grpc;
mod host;
mod query;
pub(crate) mod text;
pub(crate) mod tuple;
pub(crate) mod uri;

pub use self::address::client::{ClientIp, client_ip};
pub(crate) use self::address::networks::parse_network;
pub(crate) use self::address::peer::NO_PEER;
pub use self::address::peer::{Peer, PeerAddr, peer};
pub use self::uri::{Global, Method, Path, global, method, original_path, path};
#[cfg(feature = "axum")]
pub use self::uri::{RoutePath, matched_path};
pub use cookie::{Cookie, cookie};
pub use credentials::{Bearer, Header, bearer, header};
pub use extension::{Extension, FromFn, extension, from_fn};
pub(crate) use extractor::KeyExtractor;
pub use extractor::{Extracted, MissingKey, OrElse, OrSame};
pub use grpc::{GrpcMethod, GrpcService, grpc_method, grpc_service};
pub use host::{Host, host};
pub use query::{Query, query};
