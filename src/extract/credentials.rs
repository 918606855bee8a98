//! Headers and bearer tokens, and which names look like a credential's.

use std::borrow::Cow;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};

use super::{Extracted, KeyExtractor, field, text};
use crate::{error::InvalidValue, key::Key};

/// Counts by the value of a header, which may have any bytes. The key is [`Key::new`], or [`Key::secret`] for a header that
/// [looks like a credential](crate::extract#credentials) or is declared [secret](Header::secret).
///
/// Spaces and tabs around a value do not count. A request with several different values of the header is
/// [ambiguous](Extracted::Ambiguous); one with an empty value has no key.
///
/// A header whose name ends in `-bin` is binary metadata of gRPC: values in base64, with padding or without, separated by
/// commas. The key is that of the decoded bytes; a value that is not base64 is ambiguous.
///
/// An invalid name is a [`ConfigError`](crate::ConfigError) when the limiter is built.
///
/// ```
/// use tollgate::{Key, KeyExtractor, extract};
///
/// let request = http::Request::get("/").header("x-tenant", "acme").header("x-api-key", "sk_1");
/// let (parts, ()) = request.body(()).unwrap().into_parts();
/// assert_eq!(extract::header("x-tenant").extract(&parts).key(), Some(Key::new("acme")));
/// assert_eq!(extract::header("x-api-key").extract(&parts).key(), Some(Key::secret("sk_1")));
/// ```
pub fn header(name: impl AsRef<str>) -> Header {
    let name = name.as_ref();
    let name = HeaderName::try_from(name).map_err(|_| name.to_owned());
    Header {
        secret: name.as_ref().is_ok_and(|name| is_credential(name.as_str())),
        name,
    }
}

/// The extractor of a header, from [`header()`].
#[derive(Clone, Debug)]
pub struct Header {
    name: Result<HeaderName, String>,
    secret: bool,
}

impl Header {
    /// Stores only a hash of the value, by [`Key::secret`], whatever the header's name.
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Stores a short value of plain characters readably, by [`Key::new`], also if the header's name looks like a credential.
    #[must_use]
    pub fn readable(mut self) -> Self {
        self.secret = false;
        self
    }
}

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts) -> Extracted {
        let Ok(name) = &self.name else {
            return Extracted::Absent;
        };
        let values = lines(&parts.headers, name);
        let (kind, text) = (KIND, name.as_str());
        if !is_binary(name) {
            return field::extract(kind, text, values, |value| field::key(value, self.secret));
        }
        let values = values.flat_map(|line| line.split(|byte| *byte == b','));
        let values = values.map(|value| decode(value.trim_ascii()));
        field::extract(kind, text, values, |value| match value {
            Some(value) => field::key(&value, self.secret).into(),
            None => field::ambiguous(kind, text),
        })
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        let value = field::text(texts)?.as_bytes().trim_ascii();
        if self.name.as_ref().is_ok_and(is_binary) {
            field::key(&decode(value)?, self.secret)
        } else {
            field::key(value, self.secret)
        }
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        let name = self.name.as_ref().ok()?.as_str();
        Some(text::field("header", name, self.secret, is_credential(name)).into())
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let name = self.name.as_ref().map_or("", HeaderName::as_str);
        let extracted = parts.map(|parts| self.extract(parts));
        field::missing(KIND, name, extracted == Some(Extracted::Ambiguous))
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        let name = self.name.as_ref();
        name.map(|_| ()).map_err(|name| {
            InvalidValue::new(format!("a header {name:?}"), "a field name of RFC 9110")
        })
    }
}

const KIND: &str = "the header";

/// The values of a header's lines. HTTP/1.1 has no spaces around a value, while HTTP/2 servers may pass them on.
fn lines<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).into_iter();
    lines.map(|line| HeaderValue::as_bytes(line).trim_ascii())
}

/// Whether a header is binary metadata of gRPC.
fn is_binary(name: &HeaderName) -> bool {
    name.as_str().ends_with("-bin")
}

/// The bytes of a value of binary metadata; `None` if it is not base64. Senders should omit the padding, and receivers have to
/// accept both.
fn decode(value: &[u8]) -> Option<Vec<u8>> {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    BASE64.decode(value).ok()
}

/// Counts by the token of `Authorization: Bearer TOKEN` (RFC 6750). The key is [`Key::secret`] of the token, which is never
/// stored readably. A request with several different `Authorization` headers, or with spaces or tabs within a token, is
/// [ambiguous](Extracted::Ambiguous): some applications read the first word of a token, others all of it.
pub fn bearer() -> Bearer {
    Bearer { hash_key: None }
}

/// The extractor of a bearer token, from [`bearer`].
#[derive(Clone)]
pub struct Bearer {
    hash_key: Option<[u8; 32]>,
}

impl Bearer {
    /// Hashes tokens under a secret key of the application, by [`Key::secret_with`]. Default: a hash without a key.
    #[must_use]
    pub fn hash_key(mut self, hash_key: [u8; 32]) -> Self {
        self.hash_key = Some(hash_key);
        self
    }

    fn key_of(&self, token: &[u8]) -> Key {
        match &self.hash_key {
            Some(hash_key) => Key::secret_with(hash_key, token),
            None => Key::secret(token),
        }
    }
}

impl KeyExtractor for Bearer {
    fn extract(&self, parts: &Parts) -> Extracted {
        let name = header::AUTHORIZATION;
        let values = lines(&parts.headers, &name);
        field::extract(KIND, name.as_str(), values, |value| match token_of(value) {
            None => Extracted::Absent,
            Some(token) if is_one_word(token) => self.key_of(token).into(),
            Some(_) => field::ambiguous(KIND, name.as_str()),
        })
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        let token = field::text(texts)?.as_bytes().trim_ascii();
        (!token.is_empty() && is_one_word(token)).then(|| self.key_of(token))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(match &self.hash_key {
            Some(hash_key) => format!("bearer hash_key {}", fingerprint(hash_key)).into(),
            None => "bearer".into(),
        })
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        match parts.map(|parts| self.extract(parts)) {
            Some(Extracted::Ambiguous) => field::missing(KIND, "Authorization", true),
            _ => "a bearer token (Authorization header)".into(),
        }
    }
}

/// The token of an `Authorization` header of the scheme `Bearer`. RFC 9110 has spaces before it; applications that split at white
/// space read one behind a tab, too.
fn token_of(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(b"Bearer".len())?;
    let token = rest.trim_ascii();
    let is_apart = rest.first().is_some_and(u8::is_ascii_whitespace);
    (scheme.eq_ignore_ascii_case(b"Bearer") && is_apart && !token.is_empty()).then_some(token)
}

fn is_one_word(token: &[u8]) -> bool {
    !token.iter().any(u8::is_ascii_whitespace)
}

/// A short text that distinguishes hash keys and does not disclose them, unless they can be guessed.
fn fingerprint(hash_key: &[u8; 32]) -> String {
    let hash = blake3::derive_key(
        "tollgate fingerprint of a bearer token's hash key",
        hash_key,
    );
    let hash = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]);
    format!("{hash:08x}")
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.hash_key {
            Some(_) => "Bearer(keyed)",
            None => "Bearer",
        })
    }
}

/// A name that contains one of these looks like a credential's.
const CREDENTIAL_PARTS: [&str; 8] = [
    "apikey",
    "authorization",
    "credential",
    "passwd",
    "password",
    "secret",
    "session",
    "token",
];

/// A name that has one of these as a word looks like a credential's.
const CREDENTIAL_WORDS: [&str; 6] = ["auth", "cookie", "jwt", "key", "pwd", "sid"];

/// Whether a header or a query parameter of this name looks like a credential: the rule in the docs of
/// [`extract`](super).
pub(super) fn is_credential(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let contained = CREDENTIAL_PARTS.iter().any(|part| lower.contains(part));
    contained || words(name).any(|word| CREDENTIAL_WORDS.contains(&&*word.to_ascii_lowercase()))
}

/// The words of a name: `x-api-key`, `api_key` and `apiKey` have the word `key`.
fn words(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        let mut before = 'A';
        let end = rest.find(|c: char| {
            let begins = before.is_ascii_lowercase() && c.is_ascii_uppercase();
            before = c;
            begins || !c.is_ascii_alphabetic()
        });
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}
