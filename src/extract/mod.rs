//! Key extractors: what a policy counts requests by.
//!
//! | extractor | key | constructor |
//! |---|---|---|
//! | [`peer`] | the address of the socket's peer, IPv6 by its /64 | [`Key::ip`] |
//! | [`client_ip`] | the client's address behind trusted proxies | [`Key::ip`] |
//! | [`header`] | a header's value (over gRPC: metadata's); hashed if it looks like a [credential](#credentials) | [`Key::new`], or [`Key::secret`] |
//! | [`bearer`] | the token of `Authorization: Bearer`, hashed | [`Key::secret`] |
//! | [`cookie`] | a cookie's value, hashed | [`Key::secret`] |
//! | [`query`] | a query parameter's value; hashed if it looks like a [credential](#credentials) | [`Key::new`], or [`Key::secret`] |
//! | [`host`] | the host that is called | [`Key::new`] |
//! | [`path`], [`method`] | the request's path as the client sent it; its method | [`Key::new`] |
//! | [`matched_path`] (feature `axum`) | the route | [`Key::new`] |
//! | [`grpc_service`], [`grpc_method`] | `pkg.Service`; `pkg.Service/Method` | [`Key::new`] |
//! | [`extension`] | what a middleware found: a user, a JWT's claim, a TLS certificate | yours |
//! | [`from_fn`] | what a closure says | yours |
//! | [`global`] | all requests together | [`Key::global`] |
//! | a tuple of two to four | all of them together | [`Key::tuple`] |
//! | [`or_else`](KeyExtractor::or_else) | the first that is there | [`Key::tuple`] of its place and its key |
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
//! credential: then only its hash reaches the store and the logs ([`Key::secret`]). [`bearer`] and [`cookie`] always hash.
//! [`header`] and [`query`] hash if the name looks like a credential's:
//!
//! - it contains `apikey`, `authorization`, `credential`, `passwd`, `password`, `secret`, `session` or `token`, in any
//!   case: `Proxy-Authorization`, `x-auth-token`, `JSESSIONID`;
//! - or one of its words is `auth`, `cookie`, `jwt`, `key`, `pwd` or `sid`: `x-api-key`, `api_key`. A word ends where
//!   something other than a letter follows and, in the names of query parameters, where an upper-case letter follows a
//!   lower-case one: `apiKey`.
//!
//! `.readable()` keeps such a value readable, and `.secret()` hashes any other. [`extension`] and [`from_fn`] return a
//! [`Key`] of the application's own making: use [`Key::secret`] there.
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

use std::{borrow::Cow, fmt, sync::Arc};

use http::request::Parts;

use crate::{error::InvalidValue, key::Key};

mod client;
mod cookie;
mod credentials;
mod extension;
mod field;
mod forwarded;
mod grpc;
mod host;
mod networks;
mod or_same;
mod peer;
mod query;
pub(crate) mod tuple;
pub(crate) mod uri;

pub use self::tuple::{FromFn, from_fn};
pub use self::uri::{Global, Method, Path, global, method, original_path, path};
#[cfg(feature = "axum")]
pub use self::uri::{RoutePath, matched_path};
pub use client::{ClientIp, client_ip};
pub use cookie::{Cookie, cookie};
pub use credentials::{Bearer, Header, bearer, header};
pub use extension::{Extension, extension};
pub use grpc::{GrpcMethod, GrpcService, grpc_method, grpc_service};
pub use host::{Host, host};
pub(crate) use networks::network;
pub use or_same::OrSame;
pub(crate) use peer::NO_PEER;
pub use peer::{Peer, PeerAddr, peer};
pub use query::{Query, query};

/// What to do with a request in which a policy finds no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The policy does not apply to it.
    Skip,
    /// It is rejected: 400 Bad Request.
    Reject,
    /// All such requests are counted together, under one key that no request can name.
    Shared,
}

/// Finds the key that a policy counts a request by.
///
/// ```compile_fail,E0277
/// # use tollgate::{Policy, Quota};
/// // The name of a header is no extractor; `extract::header("x-tenant")` is.
/// let policy = Policy::new("tenants", Quota::requests(5).per_second()).key("x-tenant");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key extractor",
    label = "not a key extractor",
    note = "those of `tollgate::extract` are: `extract::header(\"x-api-key\")`, `extract::peer()` and others, tuples of two \
            to four of them, and closures by `extract::from_fn(|parts| ..)`"
)]
pub trait KeyExtractor: fmt::Debug + Send + Sync + 'static {
    /// The key of a request; `None` if it has none.
    fn key(&self, parts: &Parts) -> Option<Key>;

    /// The key of a request that brings these texts where this extractor looks for them: for
    /// [`PolicyHandle::key`](crate::PolicyHandle::key). Most take one text; a tuple takes one for each of its parts;
    /// [`or_else`](KeyExtractor::or_else) takes the place of one of its extractors, `"1"` for the first, and the texts of that
    /// one; [`global`] takes none.
    ///
    /// `None` if they are no such texts, or keys are made by code of the application: by [`extension`], [`from_fn`], and an
    /// extractor of one's own unless it says otherwise.
    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        let _ = texts;
        None
    }

    /// The key of each request, if it's the same one whatever the request holds: [`global`]'s, and that of a tuple of such
    /// extractors. A call of a [`Limiter`](crate::Limiter) with one key for all policies counts by it in place of its own.
    /// `None` unless an extractor says otherwise.
    fn fixed_key(&self) -> Option<Key> {
        None
    }

    /// What to do with a request without a key, unless the policy says otherwise.
    fn on_missing_key(&self) -> MissingKey {
        MissingKey::Reject
    }

    /// What a request without a key lacks, in its client's words: "the header x-api-key". It stands in the response,
    /// after "The request lacks".
    ///
    /// `parts` is the request's head; there is none in a [`check`](crate::Limiter::check).
    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let _ = parts;
        Cow::Borrowed(field::A_KEY)
    }

    /// If a missing key is a mistake of the application's, what to do about it: it is logged as an error.
    fn missing_key_hint(&self) -> &'static str {
        ""
    }

    /// Called when a limiter is built.
    ///
    /// # Errors
    ///
    /// If it can't find keys, such as by a header whose name is none.
    fn validate(&self) -> Result<(), InvalidValue> {
        Ok(())
    }

    /// Uses `other` where this finds no key. What else is done with a request without a key is as `other` has it.
    ///
    /// For two kinds of caller. For one credential that may be in either of two places use
    /// [`or_same`](KeyExtractor::or_same): here a caller would have a bucket for each, and so twice the quota.
    ///
    /// The two never share a bucket, whatever they find: the key is [`Key::tuple`] of `Key::new("1")` and this one's
    /// key, or of `Key::new("2")` and `other`'s; a third's has a `"3"`.
    ///
    /// ```
    /// use tollgate::{Key, PeerAddr, extract::{self, KeyExtractor}};
    ///
    /// let by_key_or_address = extract::header("x-api-key").or_else(extract::peer());
    ///
    /// let request = || http::Request::get("/").extension(PeerAddr("192.0.2.1:80".parse().unwrap()));
    /// let key_of = |request: http::request::Builder| {
    ///     by_key_or_address.key(&request.body(()).unwrap().into_parts().0).unwrap()
    /// };
    /// let named = key_of(request().header("x-api-key", "sk_1"));
    /// assert_eq!(named, Key::tuple([Key::new("1"), Key::secret("sk_1")]));
    /// let address = Key::ip([192, 0, 2, 1].into());
    /// assert_eq!(key_of(request()), Key::tuple([Key::new("2"), address]));
    /// ```
    fn or_else(self, other: impl KeyExtractor) -> OrElse
    where
        Self: Sized,
    {
        OrElse::new(self, other)
    }

    /// Uses `other` where this finds no key, for one credential that may be in either of two places: both have one bucket. What
    /// else is done with a request without a key is as `other` has it.
    ///
    /// The key is the one that was found, so both have to make the same key of the same credential: two that hash it, or two
    /// that don't. A request that brings both is counted by this one's alone, so let the application authenticate by the
    /// same.
    ///
    /// ```
    /// use tollgate::{Key, extract::{self, KeyExtractor}};
    ///
    /// let by_api_key = extract::header("x-api-key").or_same(extract::bearer());
    ///
    /// let key_of = |name: &str, value: &str| {
    ///     let request = http::Request::get("/").header(name, value).body(()).unwrap();
    ///     by_api_key.key(&request.into_parts().0)
    /// };
    /// assert_eq!(key_of("x-api-key", "sk_1"), Some(Key::secret("sk_1")));
    /// assert_eq!(key_of("authorization", "Bearer sk_1"), Some(Key::secret("sk_1")));
    /// ```
    fn or_same<E: KeyExtractor>(self, other: E) -> OrSame<Self, E>
    where
        Self: Sized,
    {
        OrSame {
            first: self,
            second: other,
        }
    }
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn key(&self, parts: &Parts) -> Option<Key> {
        (**self).key(parts)
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        (**self).key_from_text(texts)
    }

    fn fixed_key(&self) -> Option<Key> {
        (**self).fixed_key()
    }

    fn on_missing_key(&self) -> MissingKey {
        (**self).on_missing_key()
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        (**self).missing_key_name(parts)
    }

    fn missing_key_hint(&self) -> &'static str {
        (**self).missing_key_hint()
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        (**self).validate()
    }
}

/// The first key that one of several extractors finds: see [`KeyExtractor::or_else`].
#[derive(Clone)]
pub struct OrElse {
    /// Each with what sets its keys apart from the others'.
    extractors: Vec<(Key, Arc<dyn KeyExtractor>)>,
}

impl OrElse {
    pub(crate) fn new(first: impl KeyExtractor, second: impl KeyExtractor) -> Self {
        let extractors = Vec::new();
        Self { extractors }.or_else(first).or_else(second)
    }

    /// Uses `next` where all so far have found no key.
    #[must_use]
    pub fn or_else(mut self, next: impl KeyExtractor) -> Self {
        let place = Key::new((self.extractors.len() + 1).to_string());
        self.extractors.push((place, Arc::new(next)));
        self
    }

    fn last(&self) -> Option<&dyn KeyExtractor> {
        self.extractors.last().map(|(_, last)| &**last)
    }
}

impl KeyExtractor for OrElse {
    fn key(&self, parts: &Parts) -> Option<Key> {
        self.extractors.iter().find_map(|(place, extractor)| {
            let key = extractor.key(parts)?;
            Some(Key::tuple([*place, key]))
        })
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        // The place of the extractor, as in its keys, then what that one takes.
        let (place, texts) = texts.split_first()?;
        let place = Key::new(place);
        let mut extractors = self.extractors.iter();
        let (_, extractor) = extractors.find(|(own, _)| *own == place)?;
        Some(Key::tuple([place, extractor.key_from_text(texts)?]))
    }

    fn fixed_key(&self) -> Option<Key> {
        // The others are asked only where the first finds no key.
        let (place, first) = self.extractors.first()?;
        Some(Key::tuple([*place, first.fixed_key()?]))
    }

    fn on_missing_key(&self) -> MissingKey {
        self.last()
            .map_or(MissingKey::Reject, KeyExtractor::on_missing_key)
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let extractors = self.extractors.iter().map(|(_, extractor)| extractor);
        let names: Vec<_> = extractors.map(|one| one.missing_key_name(parts)).collect();
        names.join(" or ").into()
    }

    fn missing_key_hint(&self) -> &'static str {
        self.last().map_or("", KeyExtractor::missing_key_hint)
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        self.extractors
            .iter()
            .try_for_each(|(_, extractor)| extractor.validate())
    }
}

impl fmt::Debug for OrElse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extractors = self.extractors.iter().map(|(_, extractor)| extractor);
        f.write_str("OrElse")?;
        f.debug_list().entries(extractors).finish()
    }
}
