//! The names of keys in Redis.

use smallvec::SmallVec;

use super::hash_tags::HashTags;
use crate::{
    error::ConfigError,
    key::Key,
    strategy::{Rule, built_in},
};

/// The longest prefix.
const MAX_PREFIX_BYTES: usize = 16;

/// The prefix of a policy's keys: the store's prefix, the state format and the policy's name. The caller's key follows
/// as it is. `tg:g3:burst:192.0.2.1` is the key `192.0.2.1` of policy `burst`, counted by GCRA; `tg:g3:burst:#` and 20
/// characters is a hashed key, and `tg:g3:burst:~` and 22 characters a UUID.
///
/// Bytes of a policy's name other than `A-Z a-z 0-9 . _ -` are written as `%` and two hexadecimal digits. So neither the
/// state format nor the name holds a colon, and no part of a prefix has the form of a state format: a key can be parsed
/// in one way only, whatever prefixes and policies share a server.
///
/// On a cluster the key's hash tag follows the store's prefix: `tg:{a7}g3:burst:192.0.2.1`. No other brace gets into a
/// name.
#[derive(Debug)]
pub(crate) struct KeyNames {
    prefix: Box<str>,
    tags: Option<HashTags>,
    /// The state format and the policy.
    policy_prefix: Box<str>,
}

pub(crate) fn check_prefix(prefix: &str) -> Result<(), ConfigError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":._-".contains(&byte);
    let ends = prefix.is_empty() || prefix.ends_with(':');
    let fits = prefix.len() <= MAX_PREFIX_BYTES && prefix.bytes().all(plain);
    if ends && fits && !prefix.split(':').any(built_in::is_state_format) {
        return Ok(());
    }
    Err(ConfigError::new(
        format!("the prefix {prefix:?}"),
        format!(
            "empty, or at most {MAX_PREFIX_BYTES} of A-Z a-z 0-9 : . _ - with a colon at the end, and between colons no \
             lowercase letter with a digit, which is the form of a state format"
        ),
    ))
}

impl KeyNames {
    pub(crate) fn new(prefix: &str, tags: Option<HashTags>, rule: &dyn Rule, policy: &str) -> Self {
        let mut policy_prefix = format!("{}:", rule.info().state_format);
        for byte in policy.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                    policy_prefix.push(char::from(byte));
                }
                _ => policy_prefix += &format!("%{byte:02X}"),
            }
        }
        policy_prefix.push(':');
        Self {
            prefix: prefix.into(),
            tags,
            policy_prefix: policy_prefix.into(),
        }
    }

    /// The name of a policy's key.
    pub(crate) fn of(&self, key: &Key) -> String {
        let mut name = KeyBuf::default();
        String::from_utf8_lossy(self.write(key, &mut name)).into_owned()
    }

    /// The key in the name of one of the policy's keys; `None` for other names.
    pub(crate) fn parse(&self, name: &[u8]) -> Option<Key> {
        let mut rest = name.strip_prefix(self.prefix.as_bytes())?;
        if self.tags.is_some() {
            let [b'{', _, _, b'}', untagged @ ..] = rest else {
                return None;
            };
            rest = untagged;
        }
        let key = Key::parse_stored(rest.strip_prefix(self.policy_prefix.as_bytes())?)?;
        // Also the hash tag is that of the key.
        (self.of(&key).as_bytes() == name).then_some(key)
    }

    /// Writes the name of a policy's key into `name`.
    pub(crate) fn write<'a>(&self, key: &Key, name: &'a mut KeyBuf) -> &'a [u8] {
        name.clear();
        name.extend_from_slice(self.prefix.as_bytes());
        if let Some(tags) = &self.tags {
            let [first, second] = tags.text(tags.of(key));
            name.extend_from_slice(&[b'{', first, second, b'}']);
        }
        name.extend_from_slice(self.policy_prefix.as_bytes());
        name.extend_from_slice(key.as_bytes());
        name
    }
}

/// The pattern of a `SCAN` that finds all keys of these policies of one store, and few others; `None` without policies.
pub(crate) fn scan_pattern(policies: &[&KeyNames]) -> Option<String> {
    let (first, others) = policies.split_first()?;
    let mut common = &*first.policy_prefix;
    for other in others {
        let same = common.bytes().zip(other.policy_prefix.bytes());
        common = &common[..same.take_while(|(a, b)| a == b).count()];
    }
    // None of its characters but these stars is special in a pattern: see `check_prefix`.
    let tag = if first.tags.is_some() { "{*}" } else { "" };
    Some(format!("{}{tag}{common}*", first.prefix))
}

/// A name for a probe, on the server of a hash tag's keys, that no policy's key has.
pub(crate) fn probe_key(prefix: &str, tags: Option<&HashTags>, tag: usize) -> String {
    store_key(prefix, tags, tag, "probe")
}

/// The name of a key of the store itself, with this hash tag on a cluster. No policy's key has it: theirs have a state format before
/// any `#`.
pub(crate) fn store_key(prefix: &str, tags: Option<&HashTags>, tag: usize, name: &str) -> String {
    let tag = tags.map_or_else(String::new, |tags| {
        format!("{{{}}}", String::from_utf8_lossy(&tags.text(tag)))
    });
    format!("{prefix}{tag}#{name}")
}

/// A buffer for a key's name, which is ASCII.
pub(crate) type KeyBuf = SmallVec<[u8; 64]>;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::strategy::{Gcra, Strategy, Terms};

    fn names(tags: Option<HashTags>, prefix: &str, policy: &str) -> KeyNames {
        KeyNames::new(prefix, tags, &*rule(), policy)
    }

    fn rule() -> std::sync::Arc<dyn Rule> {
        Gcra.bind(&"1/s".parse().expect("a quota"), &Terms::default())
            .expect("a rule")
    }

    fn keys() -> Vec<Key> {
        let tuple = Key::tuple([Key::new("tenant"), Key::new("user")]);
        let special = Key::tuple([Key::global(), Key::missing()]);
        let long = Key::new("x".repeat(1_000));
        let others = [Key::secret("token"), Key::global(), Key::missing()];
        let texts = [
            "192.0.2.1",
            "b:c",
            "{a}",
            "}{",
            "%7B\\",
            "550e8400-e29b-41d4-a716-446655440000",
        ];
        let keys = texts.map(Key::new).into_iter().chain(others);
        keys.chain([tuple, special, long]).collect()
    }

    /// The policy can be read in each name, the key can be parsed back, and on a cluster the key alone decides on the slot.
    #[test]
    fn names_of_policies_and_keys() {
        let format = rule().info().state_format;
        let tags = HashTags::new(128).expect("tags");
        for (policy, shown) in [
            ("burst", "burst"),
            ("a policy with spaces", "a%20policy%20with%20spaces"),
            ("{slot}", "%7Bslot%7D"),
            ("100%:daily", "100%25%3Adaily"),
        ] {
            for key in keys() {
                let name = names(None, "tg:", policy).of(&key);
                assert_eq!(name, format!("tg:{format}:{shown}:{}", key.as_str()));
                let tag = tags.text(tags.of(&key));
                let tag = format!("{{{}}}", String::from_utf8_lossy(&tag));
                let tagged = names(Some(tags.clone()), "tg:", policy).of(&key);
                assert!(tagged.starts_with(&format!("tg:{tag}")), "{tagged}");
                assert_eq!(tagged.matches(['{', '}']).count(), 2, "{tagged}");
                for tags in [None, Some(tags.clone())] {
                    let own = names(tags.clone(), "tg:", policy);
                    assert_eq!(own.parse(own.of(&key).as_bytes()), Some(key));
                    let other = names(tags, "tg:", "another").of(&key);
                    assert_eq!(own.parse(other.as_bytes()), None, "{other}");
                }
            }
        }
        let own = names(None, "tg:", "p");
        for foreign in ["", "a b", "#abc", "a#", "a+", "\u{e9}", "{a}", "~abc"] {
            let name = format!("tg:{format}:p:{foreign}");
            assert_eq!(own.parse(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn prefixes_policies_and_keys_that_differ_have_names_that_differ() {
        let tag = rule().info().state_format;
        let mut seen = HashMap::new();
        let prefixes = ["", ":", "a:", "tg:", "a:tg:", "aa:", "g:2:"].map(str::to_owned);
        let taken = [format!("{tag}:"), format!("a:{tag}:"), "f1:".to_owned()];
        for prefix in prefixes.iter().chain(&taken) {
            if check_prefix(prefix).is_err() {
                continue;
            }
            for policy in ["a", "a:b", "a:b:c", "ab", "a+b", "a%3Ab", tag] {
                for key in ["b:c", "c", "b", "b:c:d", "a:c", "0123456789012345678901234"] {
                    let whose = (prefix, policy, key);
                    let name = names(None, prefix, policy).of(&Key::new(key));
                    let other = seen.insert(name, whose);
                    assert_eq!(other, None, "{whose:?}");
                }
            }
        }
    }

    #[test]
    fn a_pattern_covers_the_policies_and_has_no_other_special_characters() {
        let format = rule().info().state_format;
        let tags = HashTags::new(128).ok();
        for (tags, policies, pattern) in [
            (None, &[][..], None),
            (None, &["p*[q]"], Some(format!("tg:{format}:p%2A%5Bq%5D:*"))),
            (None, &["abuse", "abc"], Some(format!("tg:{format}:ab*"))),
            (tags, &["p", "q"], Some(format!("tg:{{*}}{format}:*"))),
        ] {
            let names = policies.iter().map(|p| names(tags.clone(), "tg:", p));
            let names: Vec<_> = names.collect();
            assert_eq!(scan_pattern(&names.iter().collect::<Vec<_>>()), pattern);
        }
    }

    #[test]
    fn a_prefix_is_empty_or_ends_with_a_colon_and_is_no_state_format() {
        for prefix in ["", "tg:", "my-app:", "a:b:", "eu.west_1:api:", "G2:", ":"] {
            assert!(check_prefix(prefix).is_ok(), "{prefix}");
        }
        for prefix in [
            "tg",
            "{a}:",
            "a b:",
            "é:",
            "seventeen-bytes-:",
            "a:g2:",
            "z9:",
            "g2:a:",
            &format!("{}:", rule().info().state_format),
        ] {
            let error = check_prefix(prefix).expect_err(prefix);
            assert!(error.expected().contains("a colon at the end"), "{error}");
        }
    }
}
