use std::borrow::Cow;

use http::request::Parts;

use super::{Extracted, KeyExtractor, credentials::is_credential, field, text};
use crate::{error::InvalidValue, key::Key};

/// Counts by a query parameter, decoded like a form (`application/x-www-form-urlencoded` of the WHATWG's URL standard): `+` and
/// `%20` are a space, invalid UTF-8 is replaced. The key is [`Key::new`], or [`Key::secret`] for a parameter that [looks like a
/// credential](crate::extract#credentials) or is declared [secret](Query::secret).
///
/// A request with several different values of the parameter is [ambiguous](Extracted::Ambiguous); one with an empty value has no
/// key. An empty name is a [`ConfigError`](crate::ConfigError) when the limiter is built.
///
/// ```
/// use tollgate::{Key, KeyExtractor, extract};
///
/// let request = http::Request::get("/tiles?map=old+town&api_key=sk_1").body(()).unwrap();
/// let (parts, ()) = request.into_parts();
/// assert_eq!(extract::query("map").extract(&parts).key(), Some(Key::new("old town")));
/// assert_eq!(extract::query("api_key").extract(&parts).key(), Some(Key::secret("sk_1")));
/// ```
pub fn query(name: impl Into<String>) -> Query {
    let name = name.into();
    Query {
        secret: is_credential(&name),
        name,
    }
}

/// The extractor of a query parameter, from [`query`].
#[derive(Clone, Debug)]
pub struct Query {
    name: String,
    secret: bool,
}

impl Query {
    /// Stores only a hash of the value, by [`Key::secret`], whatever the parameter's name.
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Stores a short value of plain characters readably, by [`Key::new`], also if the parameter's name looks like a
    /// credential.
    #[must_use]
    pub fn readable(mut self) -> Self {
        self.secret = false;
        self
    }

    /// The parameter's values, in order.
    fn values<'a>(&'a self, parts: &'a Parts) -> impl Iterator<Item = Cow<'a, str>> {
        let pairs = parts.uri.query().unwrap_or_default().split('&');
        pairs.filter_map(|pair| {
            let name = pair.split('=').next()?;
            // Most names are those of other parameters, and need no decoding to tell; decoding makes none longer.
            let is_encoded = || name.bytes().any(|byte| matches!(byte, b'%' | b'+'));
            if name != self.name && (name.len() < self.name.len() || !is_encoded()) {
                return None;
            }
            let (name, value) = form_urlencoded::parse(pair.as_bytes()).next()?;
            (name == self.name).then_some(value)
        })
    }
}

const KIND: &str = "the query parameter";

impl KeyExtractor for Query {
    fn extract(&self, parts: &Parts) -> Extracted {
        field::extract(KIND, &self.name, self.values(parts), |value| {
            field::key(value.as_bytes(), self.secret)
        })
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        field::key(field::text(texts)?.as_bytes(), self.secret)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        let by_default = is_credential(&self.name);
        Some(text::field("query", &self.name, self.secret, by_default).into())
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let extracted = parts.map(|parts| self.extract(parts));
        field::missing(KIND, &self.name, extracted == Some(Extracted::Ambiguous))
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        let invalid = || InvalidValue::new("a query parameter \"\"", "a parameter's name");
        (!self.name.is_empty()).then_some(()).ok_or_else(invalid)
    }
}
