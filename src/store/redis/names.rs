//! What a key is called in Redis.

use smallvec::SmallVec;

use super::tags::Tags;
use crate::{
    error::ConfigError,
    key::{HASH_CHARS, Key, hash_text},
    strategy::Rule,
};

/// The longest name. Up to 31 bytes Redis keeps a name without a longer header.
const LONGEST: usize = 30;

/// The longest prefix that leaves room for a tag, a hash and a cluster's hash tag.
const LONGEST_PREFIX: usize = LONGEST - 2 - 1 - HASH_CHARS - 4;

/// What a policy's keys begin with: the prefix, the strategy's tag, and the policy's name where it's short and harmless.
/// `tg:g2:burst:192.0.2.1` is the key `192.0.2.1` of policy `burst`, counted by GCRA. Where that would be too long or
/// not harmless, the policy and the key are hashed together: `tg:g2#` and 20 characters.
///
/// On a cluster the key's hash tag stands behind the prefix: `tg:{a7}g2:burst:192.0.2.1`. No other brace gets into a name.
#[derive(Debug)]
pub(super) struct Names {
    prefix: Box<str>,
    tags: Option<Tags>,
    head: Option<Box<str>>,
    hashed_head: Box<str>,
    policy: Box<str>,
}

pub(super) fn check_prefix(prefix: &str) -> Result<(), ConfigError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":._-".contains(&byte);
    if prefix.len() > LONGEST_PREFIX || !prefix.bytes().all(plain) {
        return Err(ConfigError::new(
            format!("the prefix {prefix:?}"),
            format!("at most {LONGEST_PREFIX} of A-Z a-z 0-9 : . _ -"),
        ));
    }
    Ok(())
}

impl Names {
    pub(super) fn new(prefix: &str, tags: Option<Tags>, rule: &dyn Rule, policy: &str) -> Self {
        let tag = rule.tag();
        // A colon would make policy "a" with key "b:c" and policy "a:b" with key "c" one.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        Self {
            prefix: prefix.into(),
            tags,
            head: policy
                .bytes()
                .all(plain)
                .then(|| format!("{tag}:{policy}:").into()),
            hashed_head: format!("{tag}#").into(),
            policy: policy.into(),
        }
    }

    /// The name of a policy's key.
    pub(super) fn of(&self, key: &Key) -> String {
        let mut name = Name::default();
        String::from_utf8_lossy(self.write(key, &mut name)).into_owned()
    }

    /// Writes the name of a policy's key in place of what `name` holds.
    pub(super) fn write<'a>(&self, key: &Key, name: &'a mut Name) -> &'a [u8] {
        name.clear();
        name.extend_from_slice(self.prefix.as_bytes());
        if let Some(tags) = &self.tags {
            let [first, second] = tags.text(tags.of(key));
            name.extend_from_slice(&[b'{', first, second, b'}']);
        }
        match &self.head {
            Some(head) if name.len() + head.len() + key.as_bytes().len() <= LONGEST => {
                name.extend_from_slice(head.as_bytes());
                name.extend_from_slice(key.as_bytes());
            }
            _ => {
                let mut hasher = blake3::Hasher::new();
                hasher
                    .update(&[self.policy.len() as u8])
                    .update(self.policy.as_bytes())
                    .update(key.as_bytes());
                name.extend_from_slice(self.hashed_head.as_bytes());
                name.extend_from_slice(&hash_text(&hasher.finalize()));
            }
        }
        name
    }
}

/// A name on a server of a hash tag's keys that no policy's key has: of those with a `#`, a strategy's tag stands before it.
pub(super) fn of_nobody(prefix: &str, tags: Option<&Tags>, tag: usize) -> String {
    let tag = tags.map_or_else(String::new, |tags| {
        format!("{{{}}}", String::from_utf8_lossy(&tags.text(tag)))
    });
    format!("{prefix}{tag}#probe")
}

/// A key's name in ASCII, no longer than [`LONGEST`].
pub(super) type Name = SmallVec<[u8; 32]>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Gcra, Strategy};
    use std::collections::HashSet;

    fn names(policy: &str) -> Names {
        names_on(None, "tg:", policy)
    }

    fn names_on(tags: Option<Tags>, prefix: &str, policy: &str) -> Names {
        let rule = Gcra.bind(&"1/s".parse().expect("a quota")).expect("a rule");
        Names::new(prefix, tags, &*rule, policy)
    }

    #[test]
    fn on_a_cluster_the_key_alone_decides_on_the_slot_and_no_name_is_longer() {
        let tags = Tags::new(128).expect("tags");
        for key in ["192.0.2.1", "{a}", "}{", "a-user-with-a-long-name", "a"] {
            let key = Key::new(key);
            let tag = tags.text(tags.of(&key));
            let tag = format!("{{{}}}", String::from_utf8_lossy(&tag));
            for policy in ["p", "burst", "{slot}", "a policy with spaces"] {
                for prefix in ["", "tg:", "ap:"] {
                    let name = names_on(Some(tags.clone()), prefix, policy).of(&key);
                    assert!(name.starts_with(&format!("{prefix}{tag}")), "{name}");
                    assert_eq!(name.matches(['{', '}']).count(), 2, "{name}");
                    assert!(name.len() <= LONGEST, "{name}");
                }
            }
        }
    }

    #[test]
    fn short_names_can_be_read_and_long_ones_are_hashed_to_at_most_thirty_bytes() {
        let burst = names("burst");
        assert_eq!(burst.of(&Key::new("192.0.2.1")), "tg:g2:burst:192.0.2.1");
        for (policy, key) in [
            ("burst", Key::secret("token")),
            ("burst", Key::new("a-user-with-a-long-name")),
            ("a policy with spaces", Key::new("a")),
            ("{slot}", Key::new("a")),
        ] {
            let name = names(policy).of(&key);
            assert!(name.starts_with("tg:g2#") && name.len() == 26, "{name}");
        }
    }

    #[test]
    fn no_brace_reaches_redis_however_it_is_smuggled() {
        for policy in ["p", "{p}", "p}{q"] {
            for text in ["{a}", "a{", "}", "{", "a\n{b}", ""] {
                let name = names(policy).of(&Key::new(text));
                assert!(
                    name.bytes()
                        .all(|b| b.is_ascii_graphic() && b != b'{' && b != b'}')
                );
            }
        }
    }

    #[test]
    fn policies_and_keys_that_differ_have_names_that_differ() {
        let mut seen = HashSet::new();
        for policy in ["a", "a:b", "a:b:c", "ab", "a+b"] {
            for key in ["b:c", "c", "b", "b:c:d", "0123456789012345678901234"] {
                assert!(
                    seen.insert(names(policy).of(&Key::new(key))),
                    "{policy} {key}"
                );
            }
        }
    }

    #[test]
    fn a_prefix_that_would_make_names_too_long_or_steer_a_slot_is_refused() {
        assert!(check_prefix("tg:").is_ok() && check_prefix("").is_ok());
        for prefix in ["toolong", "{a}", "a b", "é"] {
            assert!(check_prefix(prefix).is_err(), "{prefix}");
        }
    }
}
