use http::request::Parts;

use super::KeyExtractor;
use crate::{error::InvalidValue, key::Key};

/// Counts by a parameter of the query, decoded as forms are (`application/x-www-form-urlencoded` of the WHATWG's URL
/// standard): `+` and `%20` are a space, what isn't UTF-8 is replaced. The key is [`Key::new`]; with
/// [`secret`](Query::secret), for API keys and the like, [`Key::secret`].
///
/// Of several parameters of the name the first counts; an empty value is no key. An empty name is a
/// [`ConfigError`](crate::ConfigError) when the limiter is built.
///
/// ```
/// use tollgate::{Policy, Quota, extract};
///
/// let policy = Policy::new("maps", Quota::requests(50).per_second())
///     .key(extract::query("api_key").secret());
/// ```
pub fn query(name: impl Into<String>) -> Query {
    Query {
        name: name.into(),
        secret: false,
    }
}

/// See [`query`].
#[derive(Clone, Debug)]
pub struct Query {
    name: String,
    secret: bool,
}

impl Query {
    /// Keeps only a hash of the value, however short and harmless: [`Key::secret`].
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
}

impl KeyExtractor for Query {
    fn key(&self, parts: &Parts) -> Option<Key> {
        let mut pairs = form_urlencoded::parse(parts.uri.query()?.as_bytes());
        let (_, value) = pairs.find(|(name, _)| *name == self.name)?;
        let make = if self.secret { Key::secret } else { Key::new };
        (!value.is_empty()).then(|| make(value.as_bytes()))
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        let unfit = || InvalidValue::new("a query parameter \"\"", "a parameter's name");
        (!self.name.is_empty()).then_some(()).ok_or_else(unfit)
    }
}
