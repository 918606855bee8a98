use http::{header, request::Parts};

use super::KeyExtractor;
use crate::{error::InvalidValue, key::Key};

/// Counts by a cookie's value (RFC 6265), of any bytes. The key is [`Key::secret`]: a session's cookie is a credential,
/// and never kept in the clear.
///
/// Names differ by case. Of several cookies of the name the first counts; an empty value is no key. A name that no
/// cookie can have is a [`ConfigError`](crate::ConfigError) when the limiter is built.
///
/// A client can invent a cookie with each request, or send none. Count by what a middleware
/// [verified](super::extension), unless it's only a hint.
///
/// ```
/// use tollgate::{Policy, Quota, extract};
///
/// let policy = Policy::new("sessions", Quota::requests(100).per_minute())
///     .key(extract::cookie("session"));
/// ```
pub fn cookie(name: impl Into<String>) -> Cookie {
    Cookie { name: name.into() }
}

/// See [`cookie`].
#[derive(Clone, Debug)]
pub struct Cookie {
    name: String,
}

impl KeyExtractor for Cookie {
    fn key(&self, parts: &Parts) -> Option<Key> {
        // HTTP/2 may send each cookie in a line of its own (RFC 9113, section 8.2.3).
        let lines = parts.headers.get_all(header::COOKIE).into_iter();
        let mut cookies = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let value = cookies.find_map(|cookie| {
            let equals = cookie.iter().position(|byte| *byte == b'=')?;
            let (name, value) = cookie.split_at(equals);
            (name.trim_ascii() == self.name.as_bytes()).then(|| value[1..].trim_ascii())
        })?;
        (!value.is_empty()).then(|| Key::secret(value))
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        let fits = !self.name.is_empty() && self.name.bytes().all(is_token);
        let unfit =
            || InvalidValue::new(format!("a cookie {:?}", self.name), "a token of RFC 6265");
        fits.then_some(()).ok_or_else(unfit)
    }
}

/// A character of a token (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
