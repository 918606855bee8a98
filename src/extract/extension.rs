use std::{any, borrow::Cow, fmt, sync::Arc};

use http::request::Parts;

use super::{KeyExtractor, field};
use crate::key::Key;

/// Counts by what a middleware or the server left in a request's extensions, such as the user that authentication found.
/// The key is the closure's; a request without a `T` has none.
///
/// Count by what was verified: a token or a name that is merely claimed, a client can change with each request.
///
/// ```
/// use tollgate::{Key, Policy, Quota, extract};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = extract::extension::<User>(|user| Key::new(user.id.to_string()));
/// let policy = Policy::new("users", Quota::requests(100).per_minute()).key(by_user);
/// ```
///
/// A claim of a JWT, once a middleware has verified the signature and left the claims. Where it may be absent,
/// [`from_fn`](super::from_fn) can say so:
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
/// A client's TLS certificate, where the server leaves it with what it knows of the connection:
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

/// See [`extension`].
pub struct Extension<T> {
    find: Arc<dyn Fn(&T) -> Key + Send + Sync>,
    name: Cow<'static, str>,
}

impl<T> Extension<T> {
    /// Says what a request without a `T` lacks, in its client's words: `"a signed-in user"`.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }
}

impl<T: Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn key(&self, parts: &Parts) -> Option<Key> {
        parts.extensions.get().map(|left| (self.find)(left))
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
