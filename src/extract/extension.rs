//! Keys that a closure of the application makes: of an extension ([`extension`]), or of the whole head ([`from_fn`]).

use std::{any, borrow::Cow, fmt, sync::Arc};

use http::request::Parts;

use super::{Extracted, KeyExtractor, field};
use crate::key::Key;

/// Counts by a value of type `T` that a middleware or the server put into a request's extensions, such as the authenticated
/// user. The key is the closure's result; a request without a `T` has none.
///
/// Count by verified values: a client can change an unverified token or name with each request.
///
/// ```
/// use tollgate::{Key, KeyExtractor, extract};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = extract::extension::<User>(|user| Key::from(user.id));
/// let request = http::Request::get("/").extension(User { id: 7 }).body(()).unwrap();
/// assert_eq!(by_user.extract(&request.into_parts().0).key(), Some(Key::new("7")));
/// ```
///
/// By a claim of a JWT, whose signature a middleware has verified. For an optional claim, use [`from_fn`]:
///
/// ```
/// # use tollgate::{Key, extract};
/// #[derive(Clone)]
/// struct Claims {
///     sub: String,
///     tenant: Option<String>,
/// }
///
/// let by_subject = extract::extension::<Claims>(|claims| Key::new(&claims.sub));
/// let by_tenant = extract::from_fn(|parts| {
///     let claims = parts.extensions.get::<Claims>()?;
///     claims.tenant.as_ref().map(Key::new)
/// });
/// ```
///
/// By a client's TLS certificate, if the server puts it into the connection's info:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// # use tollgate::{Key, extract};
/// use axum::extract::ConnectInfo;
///
/// #[derive(Clone)]
/// struct Connection {
///     certificate: Vec<u8>,
/// }
///
/// let by_certificate = extract::extension::<ConnectInfo<Connection>>(|ConnectInfo(connection)| {
///     Key::new(&connection.certificate)
/// });
/// # }
/// ```
pub fn extension<T>(find: impl Fn(&T) -> Key + Send + Sync + 'static) -> Extension<T>
where
    T: Send + Sync + 'static,
{
    Extension {
        find: Arc::new(find),
        name: Cow::Borrowed(field::A_KEY),
    }
}

/// The extractor of an extension, from [`extension`].
pub struct Extension<T> {
    find: Arc<dyn Fn(&T) -> Key + Send + Sync>,
    name: Cow<'static, str>,
}

impl<T> Extension<T> {
    /// Sets the name of the key in the response to a request without a `T`: with `"a signed-in user"` it is "The request lacks
    /// a signed-in user."
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }
}

impl<T: Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, parts: &Parts) -> Extracted {
        let value = parts.extensions.get();
        value.map(|value| (self.find)(value)).into()
    }

    fn missing_key_name(&self, _parts: Option<&Parts>) -> Cow<'static, str> {
        self.name.clone()
    }
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self {
            find: self.find.clone(),
            name: self.name.clone(),
        }
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension<{}>(..)", any::type_name::<T>())
    }
}

/// Counts by the key that a closure returns for a request's head: an `Option<Key>`, `None` if the request has no key, or an
/// [`Extracted`], for requests that may be [ambiguous](Extracted::Ambiguous). It runs on the request path and must not block.
///
/// ```
/// use tollgate::{Key, KeyExtractor, extract};
///
/// /// Inserted by the middleware that authenticates callers.
/// #[derive(Clone)]
/// struct User(u64);
///
/// let by_user = extract::from_fn(|parts| {
///     let User(id) = parts.extensions.get()?;
///     Some(Key::from(*id))
/// });
/// let request = http::Request::get("/").extension(User(7)).body(()).unwrap();
/// assert_eq!(by_user.extract(&request.into_parts().0).key(), Some(Key::new("7")));
/// ```
pub fn from_fn<F, R>(find: F) -> FromFn<F>
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: Into<Extracted>,
{
    FromFn {
        find,
        name: Cow::Borrowed(field::A_KEY),
    }
}

/// The extractor of a closure's key, from [`from_fn`].
#[derive(Clone)]
pub struct FromFn<F> {
    find: F,
    name: Cow<'static, str>,
}

impl<F> FromFn<F> {
    /// Sets the name of the key in the 400 response to a request without one: with `"a tenant in its path"` it is "The request
    /// lacks a tenant in its path."
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }
}

impl<F, R> KeyExtractor for FromFn<F>
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: Into<Extracted>,
{
    fn extract(&self, parts: &Parts) -> Extracted {
        (self.find)(parts).into()
    }

    fn missing_key_name(&self, _parts: Option<&Parts>) -> Cow<'static, str> {
        self.name.clone()
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn(..)")
    }
}
