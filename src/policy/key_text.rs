//! Keys as texts for operators.

use std::net::IpAddr;

use super::Policy;
use crate::{extract::KeyExtractor, key::Key};

/// Stands before the hash of a key.
const HASH: &str = "hash:";

/// Stands before a key's text in the store, or before a UUID.
const STORED: &str = "key:";

/// Stands before the hash in the key itself.
const MARKER: char = '#';

/// The texts of built-in extractors that look like names.
const BUILT_IN_KEYS: [&str; 9] = [
    "peer",
    "client_ip",
    "bearer",
    "host",
    "path",
    "method",
    "matched_path",
    "grpc_service",
    "grpc_method",
];

impl Policy {
    /// The key that a text stands for: a key as [`key_text`](Self::key_text) shows it, or what a request has.
    pub(crate) fn parse_key(&self, text: &str) -> Option<Key> {
        if text.starts_with(STORED) {
            return stored_key(text);
        }
        if let Some(tuple) = tuple_with_hash(text) {
            return Some(tuple);
        }
        if let Some(hash) = text.strip_prefix(HASH) {
            return Key::from_hash(hash);
        }
        let extractor = self.extractor();
        shared(extractor, text)
            .or_else(|| extractor.key_from_text(&[text]))
            .or_else(|| by_parts(extractor, text))
            .or_else(|| by_code(extractor, text))
    }

    /// The text of a key, which [`parse_key`](Self::parse_key) reads: readable text, or `hash:` and 20 characters. In a tuple,
    /// both may occur. A key that this text does not stand for is `key:` and its text in the store, or the UUID.
    pub(crate) fn key_text(&self, key: &Key) -> String {
        let text = short_text(key);
        match self.parse_key(&text) == Some(*key) {
            true => text,
            false => stored_text(key),
        }
    }
}

/// The text of a key of no known policy, for reading alone.
pub(crate) fn short_text(key: &Key) -> String {
    // Only a hash has the marker.
    key.to_string().replace(MARKER, HASH)
}

/// The text of a caller that a charge has recorded: what a policy that counts by callers reads. One that looks like a hash or a
/// stored key, and is neither, is shown as it is in the store.
#[cfg(feature = "admin")]
pub(crate) fn caller_text(key: &Key) -> String {
    match [HASH, STORED]
        .iter()
        .any(|sign| key.as_str().starts_with(sign))
    {
        true => stored_text(key),
        false => short_text(key),
    }
}

/// The key that a text stands for under every policy.
pub(crate) fn stored_key(text: &str) -> Option<Key> {
    let stored = text.strip_prefix(STORED)?.as_bytes();
    Key::parse_stored(stored).or_else(|| Key::uuid(stored))
}

/// The text that stands for the key under every policy.
pub(crate) fn stored_text(key: &Key) -> String {
    format!("{STORED}{key}")
}

/// A tuple of hashes and readable keys.
fn tuple_with_hash(text: &str) -> Option<Key> {
    if !text.contains('+') || !text.contains(HASH) {
        return None;
    }
    let parts = text.split('+').map(|part| match part.strip_prefix(HASH) {
        Some(hash) => Key::from_hash(hash),
        None => Some(Key::new(part)),
    });
    let key = Key::tuple(parts.collect::<Option<Vec<_>>>()?);
    (short_text(&key) == text).then_some(key)
}

/// The key of all requests, or that of those without a key.
fn shared(extractor: &dyn KeyExtractor, text: &str) -> Option<Key> {
    let fixed = extractor.fixed_key();
    let fixed = fixed.filter(|fixed| fixed.to_string() == text);
    fixed.or_else(|| (text == Key::missing().as_str()).then(Key::missing))
}

/// A network, or a tuple.
fn by_parts(extractor: &dyn KeyExtractor, text: &str) -> Option<Key> {
    let network = || {
        let (address, _) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        extractor.key_from_text(&[&address.to_string()])
    };
    let tuple = || {
        let texts: Vec<&str> = text.split('+').collect();
        extractor.key_from_text(&texts)
    };
    let is_shown = |key: &Key| key.as_str() == text;
    network()
        .filter(is_shown)
        .or_else(|| tuple().filter(is_shown))
}

/// The key that code of the application most likely makes of a text.
fn by_code(extractor: &dyn KeyExtractor, text: &str) -> Option<Key> {
    let is_key = is_code(extractor) && !text.is_empty();
    is_key.then(|| Key::new(text))
}

/// Whether code of the application makes the keys.
fn is_code(extractor: &dyn KeyExtractor) -> bool {
    if extractor.fixed_key().is_some() {
        return false;
    }
    let Some(text) = extractor.config_text() else {
        return true;
    };
    // The name that it was registered by. Tuples and alternatives have signs in theirs.
    let is_name = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    is_name && !BUILT_IN_KEYS.contains(&&*text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{extract, quota::Quota};

    fn policy(extractor: impl KeyExtractor) -> Policy {
        Policy::new("p", Quota::requests(1).per_second()).key(extractor)
    }

    /// A policy of each kind of extractor.
    fn policies() -> [Policy; 9] {
        [
            policy(extract::global()),
            policy(extract::peer()),
            policy(extract::peer().ipv4_prefix(24)),
            policy(extract::header("x-api-key")),
            policy(extract::header("x-tenant")),
            policy(extract::from_fn(|_| None)),
            policy((extract::peer(), extract::method())),
            policy((extract::header("x-tenant"), extract::header("x-api-key"))),
            policy(extract::header("x-api-key").or_else(extract::peer())),
        ]
    }

    fn keys() -> impl Strategy<Value = Key> {
        let digits = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
        let texts = prop_oneof![
            digits,
            digits.prop_map(|text| text.to_ascii_uppercase()),
            "[a-c0-9:/+#~*?. -]{1,24}",
            // What looks like another form.
            "(hash|key):[A-Za-z0-9_-]{20}",
            "(key:)?[#~][A-Za-z0-9_-]{20,22}",
            digits.prop_map(|text| format!("key:{text}")),
        ]
        .boxed();
        let part = prop_oneof![
            texts.clone().prop_map(Key::new),
            texts.prop_map(Key::secret),
            (any::<[u8; 4]>(), prop_oneof![Just(32), 0..=32u8])
                .prop_map(|(octets, bits)| Key::network(octets.into(), bits, 64)),
            any::<[u8; 16]>().prop_map(|octets| Key::ip(octets.into())),
            (any::<[u8; 16]>(), 0..=128u8).prop_map(|(octets, bits)| Key::network(
                octets.into(),
                24,
                bits
            )),
            Just(Key::global()),
            Just(Key::missing()),
        ]
        .boxed();
        let parts = prop::collection::vec(part.clone(), 1..4).prop_map(Key::tuple);
        prop_oneof![3 => part, 1 => parts]
    }

    proptest! {
        #[test]
        fn every_key_is_read_back_from_the_text_that_shows_it(key in keys()) {
            for policy in policies() {
                let text = policy.key_text(&key);
                prop_assert_eq!(policy.parse_key(&text), Some(key), "{:?}: {}", policy, text);
                prop_assert_eq!(stored_key(&stored_text(&key)), Some(key));
            }
        }
    }

    #[test]
    fn a_key_is_shown_as_a_request_has_it_or_by_its_text_in_the_store() {
        let uuid = Key::new("550E8400-E29B-41D4-A716-446655440000");
        for extractor in [
            policy(extract::from_fn(|_| None)),
            policy(extract::header("x-tenant")),
        ] {
            assert_eq!(extractor.key_text(&uuid), uuid.to_string());
        }
        let by_address = policy(extract::peer());
        let by_api_key = policy(extract::header("x-api-key"));
        for key in [
            Key::new("mallory"),
            Key::new("key:mallory"),
            Key::global(),
            uuid,
            Key::tuple([Key::new("tenant-7"), Key::new("/ocr")]),
        ] {
            for policy in [&by_address, &by_api_key] {
                let text = policy.key_text(&key);
                assert_eq!(text, format!("key:{key}"));
                assert_eq!(policy.parse_key(&text), Some(key), "{policy:?}");
            }
        }
    }

    #[test]
    fn a_text_that_no_request_has_there_stands_for_no_key() {
        let by_address = policy(extract::peer());
        for text in [
            "alice",
            "192.0.2.300",
            "192.0.2.0/24",
            "",
            "*",
            "hash:short",
            "key:",
            "key:a key",
        ] {
            assert_eq!(by_address.parse_key(text), None, "{text}");
        }
        let for_all = policy(extract::global());
        assert_eq!(for_all.parse_key("alice"), None);
        let both = policy((extract::peer(), extract::method()));
        assert_eq!(both.parse_key("192.0.2.7"), None);
    }
}
