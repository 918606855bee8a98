//! Keys as texts: read from requests, and shown in answers.

use std::net::IpAddr;

use super::{api::KeyText, http::problem::Failure};
use crate::{extract::KeyExtractor, key::Key, policy::Policy};

/// Stands before the hash of a key.
const HASH: &str = "hash:";

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

/// The text of a key in answers and in the log: readable text, or `hash:` and 20 characters. In a tuple, both may occur.
pub(super) fn shown(key: &Key) -> String {
    // Only a hash has the marker.
    key.as_str().replace(MARKER, HASH)
}

/// The key that a text stands for under a policy.
pub(super) fn read(policy: &Policy, text: &KeyText) -> Option<Key> {
    let extractor = policy.extractor();
    match text {
        KeyText::One(text) => as_shown(extractor, text)
            .or_else(|| extractor.key_from_text(&[text]))
            .or_else(|| as_shown_by_parts(extractor, text))
            .or_else(|| by_code(extractor, text)),
        KeyText::Parts(texts) => {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            extractor.key_from_text(&texts)
        }
    }
}

/// [`read`], or the problem of a text that the policy's key is not made of.
pub(super) fn require(policy: &Policy, text: &KeyText) -> Result<Key, Failure> {
    read(policy, text).ok_or_else(|| {
        let name = policy.name();
        let key = policy.extractor().config_text();
        let key = key.map_or_else(String::new, |key| format!(", which counts by {key}"));
        // Without the text, which may be a credential in the wrong place.
        Failure::bad_request(format!(
            "the key's text does not stand for a key of policy {name:?}{key}: give what a request has there, several texts for several \
             parts, or the key as answers show it"
        ))
    })
}

/// A hash, the key of all requests, or that of those without a key.
fn as_shown(extractor: &dyn KeyExtractor, text: &str) -> Option<Key> {
    if let Some(key) = with_hash(text) {
        return Some(key);
    }
    let fixed = extractor.fixed_key();
    let fixed = fixed.filter(|fixed| fixed.as_str() == text);
    fixed.or_else(|| (text == Key::missing().as_str()).then(Key::missing))
}

/// A hash, or a tuple with one.
fn with_hash(text: &str) -> Option<Key> {
    if !text.contains('+') {
        return Key::from_hash(text.strip_prefix(HASH)?);
    }
    let parts = text.split('+').map(|part| match part.strip_prefix(HASH) {
        Some(hash) => Key::from_hash(hash),
        None => Some(Key::new(part)),
    });
    let key = Key::tuple(parts.collect::<Option<Vec<_>>>()?);
    (text.contains(HASH) && shown(&key) == text).then_some(key)
}

/// A network, or a tuple.
fn as_shown_by_parts(extractor: &dyn KeyExtractor, text: &str) -> Option<Key> {
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
    let is_key = is_code(extractor) && !text.is_empty() && !text.starts_with(HASH);
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
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{extract, quota::Quota};

    fn policy(extractor: impl KeyExtractor) -> Policy {
        Policy::new("p", Quota::requests(1).per_second()).key(extractor)
    }

    #[track_caller]
    fn is_read_back(policy: &Policy, key: Key) {
        let text = KeyText::One(shown(&key));
        assert_eq!(read(policy, &text), Some(key), "{policy:?}: {text:?}");
    }

    #[test]
    fn a_key_is_read_back_from_the_text_that_shows_it() {
        let address = IpAddr::from(Ipv4Addr::new(192, 0, 2, 7));
        let api_key = policy(extract::header("x-api-key"));
        is_read_back(&api_key, Key::secret("sk_1"));
        is_read_back(&policy(extract::peer()), Key::ip(address));
        let six: IpAddr = "2001:db8::7".parse().expect("an address");
        is_read_back(&policy(extract::peer()), Key::ip(six));
        is_read_back(&policy(extract::peer()), Key::missing());
        let network = policy(extract::peer().ipv4_prefix(24));
        is_read_back(&network, Key::network(address, 24, 64));
        is_read_back(&policy(extract::global()), Key::global());
        is_read_back(&policy(extract::from_fn(|_| None)), Key::new("alice"));
        is_read_back(&policy(extract::from_fn(|_| None)), Key::secret("alice"));
        let both = policy((extract::peer(), extract::method()));
        is_read_back(&both, Key::tuple([Key::ip(address), Key::new("GET")]));
        let either = policy(extract::header("x-api-key").or_else(extract::peer()));
        is_read_back(&either, Key::tuple([Key::new("2"), Key::ip(address)]));
        is_read_back(&either, Key::tuple([Key::new("1"), Key::secret("sk_1")]));
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
        ] {
            assert_eq!(read(&by_address, &text.into()), None, "{text}");
        }
        let for_all = policy(extract::global());
        assert_eq!(read(&for_all, &"alice".into()), None);
        let both = policy((extract::peer(), extract::method()));
        assert_eq!(read(&both, &"192.0.2.7".into()), None);
    }

    #[test]
    fn built_in_extractors_are_not_taken_for_code() {
        fn code(extractor: impl KeyExtractor) -> bool {
            is_code(&extractor)
        }
        assert!(!code(extract::peer()) && !code(extract::client_ip()) && !code(extract::bearer()));
        assert!(
            !code(extract::header("x"))
                && !code(extract::query("x"))
                && !code(extract::cookie("x"))
        );
        assert!(!code(extract::host()) && !code(extract::path()));
        assert!(
            !code(extract::method()) && !code(extract::matched_path()) && !code(extract::global())
        );
        assert!(!code(extract::grpc_service()) && !code(extract::grpc_method()));
        assert!(!code((extract::peer(), extract::path())));
        assert!(!code(extract::header("x").or_else(extract::peer())));
        assert!(!code(extract::header("x").or_same(extract::bearer())));
        assert!(code(extract::from_fn(|_| None)));
    }
}
