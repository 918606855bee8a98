use std::borrow::Cow;

use http::{header, request::Parts};

use super::{KeyExtractor, field, text};
use crate::{error::InvalidValue, key::Key};

/// Counts by the value of a cookie (RFC 6265), which may have any bytes. The key is [`Key::secret`], since most cookies are
/// credentials; with [`readable`](Cookie::readable) it is [`Key::new`].
///
/// Names are case-sensitive. A request with several cookies of the name is ambiguous and has no key, nor has one with an empty
/// value. Several `Cookie` fields, as in HTTP/2, are one list. An invalid name is a [`ConfigError`](crate::ConfigError) when
/// the limiter is built.
///
/// A client can send another cookie with each request, or none. To enforce a limit, count by what a middleware
/// [verified](super::extension).
///
/// ```
/// use tollgate::{Key, extract::{self, KeyExtractor}};
///
/// let request = http::Request::get("/").header("cookie", "lang=it; session=8f3a").body(()).unwrap();
/// let (parts, ()) = request.into_parts();
/// assert_eq!(extract::cookie("session").key(&parts), Some(Key::secret("8f3a")));
/// assert_eq!(extract::cookie("lang").readable().key(&parts), Some(Key::new("it")));
/// ```
pub fn cookie(name: impl Into<String>) -> Cookie {
    Cookie {
        name: name.into(),
        secret: true,
    }
}

/// The extractor of a cookie, from [`cookie`].
#[derive(Clone, Debug)]
pub struct Cookie {
    name: String,
    secret: bool,
}

impl Cookie {
    /// Stores only a hash of the value, by [`Key::secret`]: the default.
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Stores a short value of plain characters, such as a language, readably, by [`Key::new`].
    #[must_use]
    pub fn readable(mut self) -> Self {
        self.secret = false;
        self
    }

    /// The values of the cookies of this name, in order.
    fn values<'a>(&'a self, parts: &'a Parts) -> impl Iterator<Item = &'a [u8]> {
        // HTTP/2 may send each cookie in a line of its own (RFC 9113, section 8.2.3).
        let lines = parts.headers.get_all(header::COOKIE).into_iter();
        let cookies = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        cookies.filter_map(|cookie| {
            let equals = cookie.iter().position(|byte| *byte == b'=')?;
            let (name, value) = cookie.split_at(equals);
            (name.trim_ascii() == self.name.as_bytes()).then(|| value[1..].trim_ascii())
        })
    }
}

impl KeyExtractor for Cookie {
    fn key(&self, parts: &Parts) -> Option<Key> {
        let value = field::single_value("the cookie", &self.name, self.values(parts))?;
        field::key(value, self.secret)
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        field::key(field::text(texts)?.as_bytes().trim_ascii(), self.secret)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(text::field("cookie", &self.name, self.secret, true).into())
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let values = parts.map_or(0, |parts| self.values(parts).count());
        field::missing("the cookie", &self.name, values)
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        let fits = !self.name.is_empty() && self.name.bytes().all(is_token);
        let invalid =
            || InvalidValue::new(format!("a cookie {:?}", self.name), "a token of RFC 6265");
        fits.then_some(()).ok_or_else(invalid)
    }
}

/// A character of a token (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
