//! The most rejected keys, in bounded memory.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use tollgate::Key;

/// The most keys that are counted at once. Up to so many, counts are exact.
const MAX_KEYS: usize = 65_536;

/// Counts the rejections of each key: exactly up to [`MAX_KEYS`] keys, and with the Space-Saving algorithm above, by which a new
/// key takes over the count of the one with the fewest rejections.
#[derive(Debug)]
pub(in crate::replay) struct RejectedKeys {
    max_keys: usize,
    indexes: HashMap<Key, usize>,
    keys: Vec<RejectedKey>,
    /// The counts and indexes of all keys, once there are as many as there may be.
    by_count: BTreeSet<(u64, usize)>,
}

/// The rejections of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::replay) struct RejectedKey {
    pub(in crate::replay) key: Key,
    pub(in crate::replay) count: u64,
    /// How many of the count may be those of other keys.
    pub(in crate::replay) at_most_over: u64,
    /// The first and the last counted rejection, in microseconds since the Unix epoch.
    pub(in crate::replay) first: i64,
    pub(in crate::replay) last: i64,
}

impl RejectedKeys {
    pub(super) fn new() -> Self {
        Self::with_max(MAX_KEYS)
    }

    fn with_max(max_keys: usize) -> Self {
        Self {
            max_keys,
            indexes: HashMap::new(),
            keys: Vec::new(),
            by_count: BTreeSet::new(),
        }
    }

    pub(super) fn add(&mut self, key: Key, at: i64) {
        let index = match self.indexes.get(&key) {
            Some(index) => *index,
            None => self.insert(key, at),
        };
        let counted = &mut self.keys[index];
        let was_ordered = self.by_count.remove(&(counted.count, index));
        counted.count += 1;
        counted.last = at;
        if was_ordered {
            self.by_count.insert((counted.count, index));
        }
    }

    /// Adds a key without rejections, in place of another if there are as many as there may be.
    fn insert(&mut self, key: Key, at: i64) -> usize {
        let new = |over| RejectedKey {
            key,
            count: over,
            at_most_over: over,
            first: at,
            last: at,
        };
        if self.keys.len() < self.max_keys {
            self.keys.push(new(0));
        } else if self.by_count.is_empty() {
            let counts = self.keys.iter().enumerate();
            self.by_count = counts.map(|(index, key)| (key.count, index)).collect();
        }
        let index = match self.by_count.first() {
            Some((count, index)) => {
                let replaced = std::mem::replace(&mut self.keys[*index], new(*count));
                self.indexes.remove(&replaced.key);
                *index
            }
            None => self.keys.len() - 1,
        };
        self.indexes.insert(key, index);
        index
    }

    /// Whether no key was replaced by another.
    pub(in crate::replay) fn is_exact(&self) -> bool {
        self.by_count.is_empty()
    }

    /// The keys with the most rejections; among equal ones, those that were rejected first.
    pub(in crate::replay) fn top(&self, count: usize) -> Vec<RejectedKey> {
        let mut keys = self.keys.clone();
        keys.sort_by_key(|key| (Reverse(key.count), key.first, key.key));
        keys.truncate(count);
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_up_to_the_bound_and_never_too_low_above() {
        let mut keys = RejectedKeys::with_max(8);
        let mut exact = HashMap::new();
        let mut random = 7_u64;
        for at in 0..10_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Skewed: a few keys have most of the rejections.
            let number = (random >> 33) % ((random >> 59) + 1);
            let key = Key::from(number);
            keys.add(key, at);
            *exact.entry(key).or_insert(0) += 1;
            let is_exact = exact.len() <= 8;
            assert_eq!(keys.is_exact(), is_exact);
            for counted in keys.top(8) {
                let count = exact[&counted.key];
                assert!(counted.count >= count && counted.count - counted.at_most_over <= count);
                assert!(!is_exact || counted.at_most_over == 0);
            }
        }
        assert_eq!(keys.keys.iter().map(|key| key.count).sum::<u64>(), 10_000);
        assert!(!keys.is_exact());
    }
}
