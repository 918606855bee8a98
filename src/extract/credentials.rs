use http::{HeaderName, header, request::Parts};

use super::KeyExtractor;
use crate::{error::InvalidValue, key::Key};

/// Counts by a header's value, of any bytes. The key is [`Key::new`]; with [`secret`](Header::secret), for API keys and
/// the like, [`Key::secret`]. A request with several such headers counts by the first; an empty value is no key.
///
/// A name that no header can have is a [`ConfigError`](crate::ConfigError) when the limiter is built.
pub fn header(name: impl AsRef<str>) -> Header {
    let name = name.as_ref();
    Header {
        name: HeaderName::try_from(name).map_err(|_| name.to_owned()),
        secret: false,
    }
}

/// See [`header()`].
#[derive(Clone, Debug)]
pub struct Header {
    name: Result<HeaderName, String>,
    secret: bool,
}

impl Header {
    /// Keeps only a hash of the value, however short and harmless: [`Key::secret`].
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
}

impl KeyExtractor for Header {
    fn key(&self, parts: &Parts) -> Option<Key> {
        let value = parts.headers.get(self.name.as_ref().ok()?)?.as_bytes();
        let make = if self.secret { Key::secret } else { Key::new };
        (!value.is_empty()).then(|| make(value))
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        let name = self.name.as_ref();
        name.map(|_| ()).map_err(|name| {
            InvalidValue::new(format!("a header {name:?}"), "a field name of RFC 9110")
        })
    }
}

/// Counts by the token of `Authorization: Bearer TOKEN` (RFC 6750). The key is [`Key::secret`] of the token: it is never
/// kept in the clear.
pub fn bearer() -> Bearer {
    Bearer { hash_key: None }
}

/// See [`bearer`].
#[derive(Clone)]
pub struct Bearer {
    hash_key: Option<[u8; 32]>,
}

impl Bearer {
    /// Hashes tokens under a key that the application keeps to itself: [`Key::secret_with`].
    #[must_use]
    pub fn hash_key(mut self, hash_key: [u8; 32]) -> Self {
        self.hash_key = Some(hash_key);
        self
    }
}

impl KeyExtractor for Bearer {
    fn key(&self, parts: &Parts) -> Option<Key> {
        let value = parts.headers.get(header::AUTHORIZATION)?.as_bytes();
        let (scheme, token) = value.split_at_checked(7)?;
        let token = token.trim_ascii();
        if !scheme.eq_ignore_ascii_case(b"bearer ") || token.is_empty() {
            return None;
        }
        Some(match &self.hash_key {
            Some(hash_key) => Key::secret_with(hash_key, token),
            None => Key::secret(token),
        })
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.hash_key {
            Some(_) => "Bearer(keyed)",
            None => "Bearer",
        })
    }
}
