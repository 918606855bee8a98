//! Keys as texts in requests and in answers.

use std::net::IpAddr;

use super::{api::KeyText, http::Failure};
use crate::{
    key::Key,
    limiter::Limiter,
    policy::{Policy, short_text},
};

/// The text of a key under the policy of that name, in answers and in the log.
pub(super) fn shown(limiter: &Limiter, policy: &str, key: &Key) -> String {
    let policy = limiter.policy(policy).and_then(|handle| handle.policy());
    policy.map_or_else(|_| short_text(key), |policy| policy.key_text(key))
}

/// The key that a text stands for under a policy.
pub(super) fn read(policy: &Policy, text: &KeyText) -> Option<Key> {
    match text {
        KeyText::One(text) => policy.parse_key(text),
        KeyText::Parts(texts) => {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            policy.extractor().key_from_text(&texts)
        }
    }
}

/// The hash of a text that is a credential for one of the policies: what stands for it under the others, whose keys are readable.
/// `None` for an address, which is no secret.
pub(super) fn hash_of_credential(text: &KeyText, keys: &[(String, Key)]) -> Option<String> {
    let secret = match text {
        KeyText::One(text) if text.parse::<IpAddr>().is_ok() => return None,
        KeyText::One(text) => Key::secret(text),
        // The same texts, of which one is a credential where their key is a hash.
        KeyText::Parts(_) => *keys.iter().map(|(_, key)| key).find(|key| key.has_hash())?,
    };
    let is_secret = keys.iter().any(|(_, key)| *key == secret);
    is_secret.then(|| short_text(&secret))
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
