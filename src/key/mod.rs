//! Keys, which requests are counted by.

use std::{
    borrow::Borrow,
    fmt,
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv4Addr},
    process, str,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

#[cfg(test)]
mod tests;
mod text;
mod uuid;

use crate::{address, random::random_u64};
use text::{MAX_DOTTED_LEN, TextBuf, dotted};
use uuid::UUID_MARKER;

/// The longest text that stays readable; longer text is hashed. An IPv6 /64 fits. The byte after it holds the text's length.
const MAX_READABLE_LEN: usize = 23;

/// The first character of a hash, which no readable key contains.
const HASH_MARKER: u8 = b'#';

/// Separates the parts of a tuple; no part contains it.
const TUPLE_SEPARATOR: u8 = b'+';

/// How much of a hash a key holds: 120 bits, which are 20 characters of base64.
const HASH_BYTES: usize = 15;

/// The length of a hash as text.
const HASH_CHARS: usize = HASH_BYTES / 3 * 4;

/// The key that a request is counted by in the store, such as a client's address or a user.
///
/// A key has a fixed size of 24 bytes and never allocates. Text of up to 23 plain characters (`A-Z a-z 0-9 . _ - @ : /`) stays
/// readable, also in the store; other text, and everything [secret](Key::secret), is stored as 120 bits of its BLAKE3 hash.
/// A UUID is stored in 23 characters, and displayed as it is. Different texts never make the same key, and no text can pass for a
/// hash, a tuple or a stored UUID.
///
/// The documentation of each key extractor in [`extract`](crate::extract) names the constructor of its keys, so that calls by
/// hand can use the same bucket.
///
/// ```
/// use tollgate::Key;
///
/// assert_eq!(Key::new("alice").as_str(), "alice");
/// assert_eq!(Key::secret("sk_live_abc").as_str(), "#7lEM2SSxGPnYHjFZP0wx");
/// assert_eq!(Key::ip("2001:db8::7".parse().unwrap()), Key::ip("2001:db8::8".parse().unwrap()));
/// assert_eq!(Key::tuple([Key::new("tenant-7"), Key::new("/ocr")]).as_str(), "tenant-7+/ocr");
/// let uuid = Key::new("550e8400-e29b-41d4-a716-446655440000");
/// assert_eq!(uuid.to_string(), "550e8400-e29b-41d4-a716-446655440000");
/// assert_eq!(uuid.as_str(), "~VQ6EAOKbQdSnFkRmVUQAAA");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
// Aligned, so that it is copied in whole words.
#[repr(align(8))]
pub struct Key([u8; MAX_READABLE_LEN + 1]);

impl Key {
    /// A key of text that may be readable in the store and in logs: a user's name, a tenant, a path. Text of more than 23 bytes
    /// or with other characters is hashed, but for a UUID in its canonical form of 36 characters, all in lower or all in upper case.
    /// A UUID that is a credential, such as that of a session, is a [secret](Key::secret).
    pub fn new(text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        if text.is_empty() || !text.iter().all(is_plain) {
            return Self::hash("text", text);
        }
        Self::readable(text)
            .or_else(|| Self::uuid(text))
            .unwrap_or_else(|| Self::hash("text", text))
    }

    /// The key of a UUID in canonical form, all in lower or all in upper case; `None` for other text.
    pub(crate) fn uuid(text: &[u8]) -> Option<Self> {
        Self::readable(&uuid::stored(text)?)
    }

    /// A key of secret text, such as a token, which is always hashed.
    ///
    /// The hash has no secret key, so it hides only text that can't be guessed. For text that can, such as a telephone number,
    /// use [`secret_with`](Key::secret_with).
    pub fn secret(secret: impl AsRef<[u8]>) -> Self {
        Self::hash("secret", secret.as_ref())
    }

    /// A key of secret text that is hashed under a secret key of 32 bytes: see [`secret`](Key::secret). All processes that
    /// share counts need the same `hash_key`.
    pub fn secret_with(hash_key: &[u8; 32], secret: impl AsRef<[u8]>) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(hash_key);
        hasher.update(secret.as_ref());
        Self::hashed(&hasher.finalize())
    }

    /// A key of a client's address: the full IPv4 address, also where it is within an IPv6 one (mapped, or by NAT64 with the prefix
    /// `64:ff9b::/96`, 6to4 or Teredo); or the /64 of an IPv6 address, which one subscriber has; or a full link-local one.
    pub fn ip(address: IpAddr) -> Self {
        Self::network(address, 32, 64)
    }

    /// A key of a client's network: the first `v4` bits of an IPv4 address, or the first `v6` bits of an IPv6 address; at most
    /// 32 and 128, and larger numbers count as these.
    pub fn network(address: IpAddr, v4: u8, v6: u8) -> Self {
        // Canonical first: masked as IPv6, all of mapped IPv4 would be one network (CVE-2026-30827).
        match address::canonical(address) {
            IpAddr::V4(address) if v4 >= 32 => Self::dotted(address),
            // All hosts of a link share the prefix.
            IpAddr::V6(address) if address.is_unicast_link_local() => {
                Self::masked(address.into(), v4, 128)
            }
            address => Self::masked(address, v4, v6),
        }
    }

    /// A key of all of an IPv4 address.
    #[inline]
    fn dotted(address: Ipv4Addr) -> Self {
        let (text, len) = dotted(address.octets());
        let mut key = [0; MAX_READABLE_LEN + 1];
        key[..MAX_DOTTED_LEN].copy_from_slice(&text);
        // `dotted` puts a dot after each octet, also the last.
        key[len - 1] = 0;
        key[MAX_READABLE_LEN] = len as u8 - 1;
        Self(key)
    }

    fn masked(address: IpAddr, v4: u8, v6: u8) -> Self {
        let mut text = TextBuf::default();
        let written = match address {
            IpAddr::V4(address) => {
                let bits = v4.min(32);
                let mask = u32::MAX.checked_shl(u32::from(32 - bits)).unwrap_or(0);
                let network = Ipv4Addr::from(u32::from(address) & mask);
                fmt::Write::write_fmt(&mut text, format_args!("{network}/{bits}"))
            }
            IpAddr::V6(address) => {
                let bits = v6.min(128);
                let network = address::masked(address, bits);
                let suffix = if bits == 64 { "" } else { "/" };
                let written = fmt::Write::write_fmt(&mut text, format_args!("{network}{suffix}"));
                match suffix {
                    "" => written,
                    _ => written
                        .and_then(|()| fmt::Write::write_fmt(&mut text, format_args!("{bits}"))),
                }
            }
        };
        debug_assert!(written.is_ok());
        let text = text.as_bytes();
        Self::readable(text).unwrap_or_else(|| Self::hash("network", text))
    }

    /// A key of several keys. Different parts, or the same parts grouped differently, never make the same key.
    pub fn tuple<K: Borrow<Key>>(parts: impl IntoIterator<Item = K>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tollgate key tuple");
        let (mut text, mut len, mut fits, mut count) = ([0; MAX_READABLE_LEN], 0, true, 0);
        for part in parts {
            let part = part.borrow().as_bytes();
            hasher.update(&[part.len() as u8]);
            hasher.update(part);
            let separator = usize::from(count > 0);
            count += 1;
            let end = len + separator + part.len();
            // A nested tuple is hashed: as text its parts would look like those of the outer one.
            fits = fits && end <= MAX_READABLE_LEN && !part.contains(&TUPLE_SEPARATOR);
            if fits {
                text[len..len + separator].fill(TUPLE_SEPARATOR);
                text[len + separator..end].copy_from_slice(part);
                len = end;
            }
        }
        // A tuple of one part is hashed too: as text it would look like the part itself.
        match (fits && count > 1).then(|| Self::readable(&text[..len])) {
            Some(Some(key)) => key,
            _ => Self::hashed(&hasher.finalize()),
        }
    }

    /// The key that all requests share under [`extract::global`](crate::extract::global).
    pub const fn global() -> Self {
        Self::single_char(b'*')
    }

    /// The key that requests without a key share under [`MissingKey::Shared`](crate::extract::MissingKey::Shared). No text makes it.
    pub const fn missing() -> Self {
        Self::single_char(b'?')
    }

    /// A key that no text makes.
    const fn single_char(char: u8) -> Self {
        let mut key = [0; MAX_READABLE_LEN + 1];
        key[0] = char;
        key[MAX_READABLE_LEN] = 1;
        Self(key)
    }

    /// A different key for each call, in any process.
    pub(crate) fn unique() -> Self {
        static PROCESS_ID: OnceLock<u64> = OnceLock::new();
        static CALL_SEQ: AtomicU64 = AtomicU64::new(0);
        let process = PROCESS_ID.get_or_init(|| random_u64().wrapping_add(process::id().into()));
        let mut text = TextBuf::default();
        let call = CALL_SEQ.fetch_add(1, Ordering::Relaxed);
        // 11 base64 digits for 64 bits.
        for number in [*process, call] {
            for digit in 0..11 {
                let digit = (number >> (6 * digit)) as usize & 63;
                text.push(ALPHABET[digit]);
            }
        }
        Self::readable(text.as_bytes()).unwrap_or_else(|| Self::hash("unique", text.as_bytes()))
    }

    /// The key with this hash, given as text without the [marker](HASH_MARKER).
    pub(crate) fn from_hash(hash: &str) -> Option<Self> {
        let fits = hash.len() == HASH_CHARS && hash.bytes().all(|c| ALPHABET.contains(&c));
        let mut text = [HASH_MARKER; 1 + HASH_CHARS];
        text.get_mut(1..)
            .filter(|_| fits)?
            .copy_from_slice(hash.as_bytes());
        Self::readable(&text)
    }

    /// The key that is `text` in the store; `None` if no key is.
    pub(crate) fn parse_stored(text: &[u8]) -> Option<Self> {
        let is_part = |part: &[u8]| match part {
            [b'*' | b'?'] => true,
            [HASH_MARKER, hash @ ..] => {
                hash.len() == HASH_CHARS && hash.iter().all(|c| ALPHABET.contains(c))
            }
            [UUID_MARKER, ..] => uuid::text(part).is_some(),
            part => !part.is_empty() && part.iter().all(is_plain),
        };
        let mut parts = text.split(|byte| *byte == TUPLE_SEPARATOR);
        Self::readable(text).filter(|_| parts.all(is_part))
    }

    /// The key's text in the store: readable text, `#` and a hash of 20 characters, or `~` and the 22 characters of a UUID, which
    /// [`Display`](fmt::Display) shows in its usual form.
    pub fn as_str(&self) -> &str {
        // Only ASCII is ever written.
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Whether it is a hash, or a tuple with one.
    #[cfg(any(test, feature = "admin", feature = "config"))]
    pub(crate) fn has_hash(&self) -> bool {
        // Only a hash has the marker.
        self.as_bytes().contains(&HASH_MARKER)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0[..usize::from(self.0[MAX_READABLE_LEN])]
    }

    /// Its bytes as numbers, which are faster to hash.
    #[inline]
    pub(crate) fn words(&self) -> (u64, u64, u64) {
        let word = |start: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.0[start..start + 8]);
            u64::from_ne_bytes(word)
        };
        (word(0), word(8), word(16))
    }

    fn readable(text: &[u8]) -> Option<Self> {
        let mut key = [0; MAX_READABLE_LEN + 1];
        key[..MAX_READABLE_LEN]
            .get_mut(..text.len())?
            .copy_from_slice(text);
        key[MAX_READABLE_LEN] = text.len() as u8;
        Some(Self(key))
    }

    fn hash(kind: &str, bytes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(kind.as_bytes()).update(&[0]).update(bytes);
        Self::hashed(&hasher.finalize())
    }

    fn hashed(hash: &blake3::Hash) -> Self {
        let mut key = [0; MAX_READABLE_LEN + 1];
        key[0] = HASH_MARKER;
        key[1..=HASH_CHARS].copy_from_slice(&hash_text(hash));
        key[MAX_READABLE_LEN] = 1 + HASH_CHARS as u8;
        Self(key)
    }
}

/// Hashes all bytes at once, without their number, which is fixed.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match uuid::text(self.as_bytes()) {
            Some(uuid) => f.pad(str::from_utf8(&uuid).unwrap_or_default()),
            None => f.pad(self.as_str()),
        }
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<&String> for Key {
    fn from(text: &String) -> Self {
        Self::new(text)
    }
}

/// A key of the number's decimal digits.
impl From<u64> for Key {
    fn from(number: u64) -> Self {
        Self::new(itoa::Buffer::new().format(number))
    }
}

impl From<IpAddr> for Key {
    fn from(address: IpAddr) -> Self {
        Self::ip(address)
    }
}

/// Whether a character may be in a readable key: none that a store or a log could take for a delimiter, a quote or a hash tag
/// (a brace would choose a cluster slot).
fn is_plain(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@' | b':' | b'/')
}

/// The URL-safe base64 alphabet of RFC 4648.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The first 120 bits of a hash, in the URL-safe base64 alphabet of RFC 4648.
fn hash_text(hash: &blake3::Hash) -> [u8; HASH_CHARS] {
    let mut text = [0; HASH_CHARS];
    for (out, bytes) in text
        .chunks_exact_mut(4)
        .zip(hash.as_bytes().chunks_exact(3))
    {
        let bits = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        for (i, out) in out.iter_mut().enumerate() {
            *out = ALPHABET[(bits >> (18 - 6 * i) & 63) as usize];
        }
    }
    text
}
