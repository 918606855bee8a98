//! The hash tags of a cluster's keys.

use std::{fmt, sync::Arc};

use crate::{error::ConfigError, key::Key};

/// How many slots every cluster has.
const SLOTS: usize = 16_384;

/// Upper bound of the tags that two characters of [`LETTERS`] can spread evenly.
const MAX_TAGS: usize = 1_024;

const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The tags, and the tag of each key.
///
/// A call may touch keys of one slot only, and random keys hardly ever share one. So keys carry one of few tags, by
/// their own hash: those with equal tags are in one slot, and share a call. The caller's key alone determines its tag,
/// under all policies. The slots of the tags are spaced evenly, and a cluster's masters serve ranges of slots, so each
/// master has its share of the tags.
#[derive(Clone)]
pub(crate) struct HashTags(Arc<[HashTag]>);

#[derive(Clone, Copy)]
struct HashTag {
    text: [u8; 2],
    slot: u16,
}

impl HashTags {
    pub(crate) fn new(len: usize) -> Result<Self, ConfigError> {
        if !len.is_power_of_two() || len > MAX_TAGS {
            return Err(ConfigError::new(
                format!("{len} hash tags"),
                format!("a power of two, at most {MAX_TAGS}"),
            ));
        }
        let mut tags = vec![None; len];
        for text in pairs() {
            let slot = slot(&text);
            let tag = &mut tags[usize::from(slot) * len / SLOTS];
            *tag = tag.or(Some(HashTag { text, slot }));
        }
        let tags: Option<Arc<[HashTag]>> = tags.into_iter().collect();
        // Always possible: a test tries all.
        let none = || ConfigError::new(format!("{len} hash tags"), "fewer");
        Ok(Self(tags.ok_or_else(none)?))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A key's tag. It is the same in all processes and versions.
    pub(crate) fn of(&self, key: &Key) -> usize {
        // FNV-1a with the upper half folded in, since its lowest bit alone is only a parity.
        let hash = key
            .as_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        ((hash >> 32) ^ hash) as usize % self.0.len()
    }

    /// The text between the braces.
    pub(crate) fn text(&self, tag: usize) -> [u8; 2] {
        self.0[tag % self.0.len()].text
    }

    /// The slot of the keys with a tag.
    pub(crate) fn slot(&self, tag: usize) -> u16 {
        self.0[tag % self.0.len()].slot
    }
}

impl fmt::Debug for HashTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HashTags").field(&self.len()).finish()
    }
}

/// All pairs of letters.
fn pairs() -> impl Iterator<Item = [u8; 2]> {
    let first = LETTERS.iter();
    first.flat_map(|first| LETTERS.iter().map(|second| [*first, *second]))
}

/// The slot of the text between braces: CRC-16/XMODEM.
fn slot(tag: &[u8]) -> u16 {
    let step = |crc: u16| match crc & 0x8000 {
        0 => crc << 1,
        _ => crc << 1 ^ 0x1021,
    };
    let crc = tag.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| step(crc))
    });
    crc % SLOTS as u16
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_slot_is_what_redis_says_it_is() {
        // CLUSTER KEYSLOT
        assert_eq!(slot(b"123456789"), 12_739);
        assert_eq!(slot(b"foo"), 12_182);
    }

    #[test]
    fn tags_differ_and_their_slots_lie_evenly_apart() {
        for many in (0..=10).map(|power| 1 << power) {
            let tags = HashTags::new(many).expect("tags");
            let texts: HashSet<_> = (0..many).map(|tag| tags.text(tag)).collect();
            assert_eq!(texts.len(), many);
            for tag in 0..many {
                assert_eq!(usize::from(tags.slot(tag)) * many / SLOTS, tag);
                assert_eq!(tags.slot(tag), slot(&tags.text(tag)));
            }
        }
    }

    #[test]
    fn neighbouring_keys_spread_over_all_tags() {
        let tags = HashTags::new(128).expect("tags");
        let mut count = [0; 128];
        for key in 0..12_800 {
            count[tags.of(&Key::new(format!("{key}")))] += 1;
        }
        assert!(
            count.iter().all(|many| (50..200).contains(many)),
            "{count:?}"
        );
    }

    #[test]
    fn a_key_keeps_its_tag_in_versions_to_come() {
        let tags = HashTags::new(1_024).expect("tags");
        assert_eq!(tags.of(&Key::new("192.0.2.1")), 225);
    }
}
