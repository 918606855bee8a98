//! Overrides as they are stored: the names of the two keys, a field for each policy and key, and a value.

use std::sync::Arc;

use crate::{
    clock::Timestamp,
    key::Key,
    redis::{hash_tags::HashTags, key_names},
    store::overrides::{Override, OverrideLimit},
};

/// The format of values. One that a later version writes is not read.
const FORMAT: &str = "1";

/// The names of the keys, which are in one slot of a cluster.
#[derive(Debug)]
pub(super) struct OverrideKeys {
    /// A hash: the overrides by field.
    pub(super) overrides: String,
    /// A text that each change replaces by another one.
    pub(super) version: String,
}

impl OverrideKeys {
    pub(super) fn new(prefix: &str, tags: Option<&HashTags>) -> Self {
        let name = |part| key_names::store_key(prefix, tags, OVERRIDES_TAG, part);
        Self {
            overrides: name("overrides"),
            version: name("overrides:version"),
        }
    }
}

/// The hash tag of the keys, on a cluster.
pub(super) const OVERRIDES_TAG: usize = 0;

/// The field of a policy and a key: the key's text in the store, which has no space, and the policy's name.
pub(super) fn field(policy: &str, key: &Key) -> String {
    format!("{} {policy}", key.as_str())
}

/// The policy and the key of a field; `None` if it is foreign.
pub(super) fn parse_field(field: &[u8]) -> Option<(Arc<str>, Key)> {
    let (key, policy) = str::from_utf8(field).ok()?.split_once(' ')?;
    Some((policy.into(), Key::parse_stored(key.as_bytes())?))
}

/// The value of an override: the format, the end in microseconds or `-`, and the limit in the first line, `set_by` in the second,
/// and then the note.
pub(super) fn value(setting: &Override) -> String {
    let end = match setting.ends_at() {
        Some(end) => end.as_micros().to_string(),
        None => "-".to_owned(),
    };
    let set_by = setting.set_by.as_deref().unwrap_or_default();
    let set_by = set_by.replace('\n', " ");
    let note = setting.note.as_deref().unwrap_or_default();
    format!("{FORMAT} {end} {}\n{set_by}\n{note}", setting.limit)
}

/// The override of a value; `None` if it is foreign, or of a later version.
pub(super) fn parse_value(value: &[u8]) -> Option<Override> {
    let mut lines = str::from_utf8(value).ok()?.splitn(3, '\n');
    let mut first = lines.next()?.splitn(3, ' ');
    if first.next()? != FORMAT {
        return None;
    }
    let end = match first.next()? {
        "-" => None,
        micros => Some(Timestamp::from_micros(micros.parse().ok()?).to_system_time()),
    };
    let limit = match first.next()? {
        "exempt" => OverrideLimit::Exempt,
        quota => OverrideLimit::Quota(quota.parse().ok()?),
    };
    let mut text = || lines.next().filter(|text| !text.is_empty());
    let (set_by, note) = (text().map(str::to_owned), text().map(str::to_owned));
    Some(Override {
        limit,
        until: end,
        note,
        set_by,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::quota::Quota;

    #[test]
    fn what_is_stored_is_read_back_and_other_bytes_are_not() {
        let until = SystemTime::UNIX_EPOCH + Duration::from_micros(1_800_000_000_123_456);
        let quotas = ["10/s burst 20", "5000/day", "3/500ms", "8 concurrent"];
        let quotas = quotas.map(|quota| quota.parse::<Quota>().expect(quota));
        let settings = quotas.into_iter().map(Override::quota);
        for setting in settings.chain([Override::exempt()]) {
            for setting in [
                setting.clone(),
                setting.clone().note("two\nlines").set_by("operator"),
                setting.until(until).note("a note"),
            ] {
                assert_eq!(parse_value(value(&setting).as_bytes()), Some(setting));
            }
        }
        for foreign in [
            "",
            "1",
            "1 - ",
            "1 - 5",
            "2 - 5/s\n\n",
            "1 x 5/s\n\n",
            "\u{e9}",
        ] {
            assert_eq!(parse_value(foreign.as_bytes()), None, "{foreign:?}");
        }
        for policy in ["api", "a policy with spaces", "a:b"] {
            let uuid = Key::new("550e8400-e29b-41d4-a716-446655440000");
            let tuple = Key::tuple([Key::new("a"), Key::new("b")]);
            for key in [
                Key::new("alice"),
                Key::secret("x"),
                Key::global(),
                uuid,
                tuple,
            ] {
                let field = field(policy, &key);
                assert_eq!(parse_field(field.as_bytes()), Some((policy.into(), key)));
            }
        }
        for foreign in ["", "alice", "a{b api", "\u{e9} api"] {
            assert_eq!(parse_field(foreign.as_bytes()), None, "{foreign:?}");
        }
    }
}
