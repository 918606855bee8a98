use std::borrow::Cow;

use http::{header, request::Parts};
use percent_encoding::percent_decode;

use super::{Extracted, KeyExtractor, field, text};
use crate::{error::InvalidValue, key::Key};

/// Counts by the value of a cookie (RFC 6265), which may have any bytes. The key is [`Key::secret`], since most cookies are
/// credentials; with [`readable`](Cookie::readable) it is [`Key::new`].
///
/// Names are case-sensitive. Names and values are percent-decoded, and quotes around a value are no part of it, as in many
/// frameworks, so that a client can't spell one session as several. Several `Cookie` fields, as in HTTP/2, are one list.
///
/// A request with several different values of the cookie is [ambiguous](Extracted::Ambiguous), unless [`first`](Cookie::first) or
/// [`last`](Cookie::last) says which of them the application reads, and no framework would skip one: for bytes other than ASCII,
/// or a decoded value that is not UTF-8. One with an empty value has no key. An invalid name is a
/// [`ConfigError`](crate::ConfigError) when the limiter is built.
///
/// A subdomain, or a page of the same site under another path, can give a browser a second cookie of the name, so that its user
/// is rejected. A browser accepts no second one of a name that begins with `__Host-`.
///
/// A client can send another cookie with each request, or none. To enforce a limit, count by what a middleware
/// [verified](super::extension).
///
/// ```
/// use tollgate::{Key, KeyExtractor, extract};
///
/// let request = http::Request::get("/").header("cookie", "lang=it; session=8f3a").body(()).unwrap();
/// let (parts, ()) = request.into_parts();
/// assert_eq!(extract::cookie("session").extract(&parts).key(), Some(Key::secret("8f3a")));
/// assert_eq!(extract::cookie("lang").readable().extract(&parts).key(), Some(Key::new("it")));
/// ```
pub fn cookie(name: impl Into<String>) -> Cookie {
    Cookie {
        name: name.into(),
        secret: true,
        of_several: None,
    }
}

/// The extractor of a cookie, from [`cookie`].
#[derive(Clone, Debug)]
pub struct Cookie {
    name: String,
    secret: bool,
    /// Which of several values counts; none by default.
    of_several: Option<Position>,
}

#[derive(Clone, Copy, Debug)]
enum Position {
    First,
    Last,
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

    /// Counts by the first of several values: for applications that read the first one, such as those of actix-web. If a `Cookie`
    /// field has other characters than visible ASCII, several values are ambiguous still.
    #[must_use]
    pub fn first(mut self) -> Self {
        self.of_several = Some(Position::First);
        self
    }

    /// Counts by the last of several values: for applications that read the last one, such as by the `CookieJar` of axum-extra. If
    /// a `Cookie` field has other characters than visible ASCII, several values are ambiguous still.
    #[must_use]
    pub fn last(mut self) -> Self {
        self.of_several = Some(Position::Last);
        self
    }

    /// The values of the cookies of this name, in order.
    fn values<'a>(&'a self, parts: &'a Parts) -> impl Iterator<Item = Cow<'a, [u8]>> {
        // HTTP/2 may send each cookie in a line of its own (RFC 9113, section 8.2.3).
        let lines = parts.headers.get_all(header::COOKIE).into_iter();
        let cookies = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        cookies.filter_map(|cookie| {
            let equals = cookie.iter().position(|byte| *byte == b'=')?;
            let (name, value) = cookie.split_at(equals);
            let (name, own) = (name.trim_ascii(), self.name.as_bytes());
            (name == own || *Cow::from(percent_decode(name)) == *own).then(|| decoded(&value[1..]))
        })
    }

    /// Whether no framework skips a value: axum-extra skips lines that are not ASCII, and values that are not UTF-8.
    fn is_read_alike(&self, parts: &Parts) -> bool {
        let lines = parts.headers.get_all(header::COOKIE);
        lines.iter().all(|line| line.to_str().is_ok())
            && self
                .values(parts)
                .all(|value| str::from_utf8(&value).is_ok())
    }
}

/// The value of a cookie, percent-decoded and without quotes around it.
fn decoded(value: &[u8]) -> Cow<'_, [u8]> {
    match Cow::from(percent_decode(value.trim_ascii())) {
        Cow::Borrowed(value) => unquoted(value).into(),
        Cow::Owned(value) => unquoted(&value).to_vec().into(),
    }
}

fn unquoted(value: &[u8]) -> &[u8] {
    let quoted = value.strip_prefix(b"\"");
    let unquoted = quoted.and_then(|value| value.strip_suffix(b"\""));
    unquoted.unwrap_or(value)
}

const KIND: &str = "the cookie";

impl KeyExtractor for Cookie {
    fn extract(&self, parts: &Parts) -> Extracted {
        let mut values = self.values(parts);
        let key = |value: Cow<'_, [u8]>| field::key(&value, self.secret);
        match self.of_several.filter(|_| self.is_read_alike(parts)) {
            None => field::extract(KIND, &self.name, values, key),
            Some(Position::First) => values.next().and_then(key).into(),
            Some(Position::Last) => values.last().and_then(key).into(),
        }
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        field::key(&decoded(field::text(texts)?.as_bytes()), self.secret)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        let mut text = text::field("cookie", &self.name, self.secret, true);
        text.push_str(match self.of_several {
            None => "",
            Some(Position::First) => " first",
            Some(Position::Last) => " last",
        });
        Some(text.into())
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let extracted = parts.map(|parts| self.extract(parts));
        field::missing(KIND, &self.name, extracted == Some(Extracted::Ambiguous))
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
