//! Names of policies, under which counts are stored.

/// The longest name that a policy may have.
const MAX_NAME_BYTES: usize = 64;

/// The hexadecimal digits of the hash in a name that would be too long: 128 bits.
const HASH_DIGITS: usize = 32;

/// What a limit is counted under: its domain, the keys and values down to its rule, and its own name if it is not its rule's first. The
/// quota is no part of it, so that a change of the quota keeps the counts.
///
/// The [name](Self::policy_name) is different for different paths: `shop/user/plan=free`, in which each byte of a text that is no letter,
/// digit or one of `-._*:@` is escaped as `%2F`. Of a longer name the first 31 bytes stand before `~` and 128 bits of a hash.
#[derive(Clone, Debug)]
pub(super) struct PolicyPath {
    /// The name, up to one byte more than a name may have.
    start: String,
    /// The hash of all parts.
    hash: blake3::Hash,
}

impl PolicyPath {
    /// The path of a domain.
    pub(super) fn domain(domain: &str) -> Self {
        let empty = Self {
            start: String::new(),
            hash: blake3::hash(b""),
        };
        empty.with("", domain)
    }

    /// The path of a rule below this one; without a value, of the rule for every value.
    #[must_use]
    pub(super) fn rule(&self, key: &str, value: Option<&str>) -> Self {
        let rule = self.with("/", key);
        match value {
            Some(value) => rule.with("=", value),
            None => rule,
        }
    }

    /// The path of a limit of this rule by its name. The first limit of a rule has the path of the rule.
    #[must_use]
    pub(super) fn limit(&self, name: &str) -> Self {
        self.with("#", name)
    }

    /// The name of the policy that counts.
    pub(super) fn policy_name(&self) -> String {
        if self.start.len() <= MAX_NAME_BYTES {
            return self.start.clone();
        }
        let hash = self.hash.to_hex();
        let (start, digits) = (
            self.start.get(..MAX_NAME_BYTES - HASH_DIGITS - 1),
            hash.get(..HASH_DIGITS),
        );
        format!(
            "{}~{}",
            start.unwrap_or_default(),
            digits.unwrap_or_default()
        )
    }

    /// The path with one more part.
    fn with(&self, separator: &str, text: &str) -> Self {
        let mut start = format!("{}{separator}", self.start);
        for byte in text.bytes() {
            if start.len() > MAX_NAME_BYTES {
                break;
            }
            match byte {
                b'-' | b'.' | b'_' | b'*' | b':' | b'@' => start.push(char::from(byte)),
                _ if byte.is_ascii_alphanumeric() => start.push(char::from(byte)),
                _ => start.push_str(&format!("%{byte:02X}")),
            }
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.hash.as_bytes());
        hasher.update(separator.as_bytes());
        hasher.update(text.as_bytes());
        Self {
            start,
            hash: hasher.finalize(),
        }
    }
}
