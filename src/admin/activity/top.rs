//! The keys with the most rejections, in bounded memory.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::key::Key;

/// Counts the rejections of the keys with the most of them, by the Space-Saving algorithm (Metwally, Agrawal, El Abbadi: Efficient
/// Computation of Frequent and Top-k Elements in Data Streams, 2005).
///
/// It holds `capacity` keys at most, of about 100 bytes each. A key that it does not hold takes the place of the one with the
/// fewest, and goes on from its count. So a count is never too low, and at most `at_most_over` too high; that is at most the total
/// divided by the capacity, and each key with more rejections than that is held.
#[derive(Debug)]
pub(super) struct TopKeys {
    capacity: usize,
    total: u64,
    keys: Vec<TopKey>,
    /// The indices of the keys.
    indices: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// No key has fewer rejections.
    fewest: u64,
    /// Where to look for the next key with the fewest rejections: there is none before.
    next: usize,
}

/// A key, and how often it was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopKey {
    pub(super) key: Key,
    pub(super) tally: Tally,
}

/// How often a key was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) rejected: u64,
    /// The most by which `rejected` is too high.
    pub(super) at_most_over: u64,
}

impl TopKeys {
    /// Holds at least one key.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            total: 0,
            keys: Vec::new(),
            indices: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            fewest: 0,
            next: 0,
        }
    }

    /// Counts rejections of a key.
    pub(super) fn add(&mut self, key: Key, rejections: u64) {
        self.total = self.total.saturating_add(rejections);
        let hash = self.hasher.hash_one(key);
        let is_same = |index: &usize| self.keys[*index].key == key;
        if let Some(index) = self.indices.find(hash, is_same) {
            let tally = &mut self.keys[*index].tally;
            tally.rejected = tally.rejected.saturating_add(rejections);
            return;
        }
        let added = |at_most_over: u64| TopKey {
            key,
            tally: Tally {
                rejected: at_most_over.saturating_add(rejections),
                at_most_over,
            },
        };
        let index = if self.keys.len() < self.capacity {
            self.keys.push(added(0));
            self.keys.len() - 1
        } else {
            let index = self.index_of_fewest();
            let removed = std::mem::replace(&mut self.keys[index], added(self.fewest));
            let hash = self.hasher.hash_one(removed.key);
            if let Ok(entry) = self.indices.find_entry(hash, |other| *other == index) {
                entry.remove();
            }
            index
        };
        let hash_of = |index: &usize| self.hasher.hash_one(self.keys[*index].key);
        self.indices.insert_unique(hash, index, hash_of);
    }

    /// The index of a key with the fewest rejections, whose place another takes. All keys are looked at once for many that are
    /// replaced: a stream of keys that come once each leaves all with one number.
    fn index_of_fewest(&mut self) -> usize {
        let mut rest = self.keys.iter().skip(self.next);
        let index = match rest.position(|key| key.tally.rejected == self.fewest) {
            Some(index) => self.next + index,
            None => {
                let keys = self.keys.iter().enumerate();
                let fewest = keys.min_by_key(|(_, key)| key.tally.rejected);
                let (index, fewest) =
                    fewest.map_or((0, 0), |(index, key)| (index, key.tally.rejected));
                self.fewest = fewest;
                index
            }
        };
        self.next = index + 1;
        index
    }

    /// The exact number of rejections of all keys.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The keys with the most rejections, at most `n`.
    pub(super) fn top(&self, n: usize) -> Vec<TopKey> {
        let mut top = self.keys.clone();
        // The order is the same each time.
        top.sort_by_key(|top| (std::cmp::Reverse(top.tally.rejected), top.key));
        top.truncate(n);
        top
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap as Exact;

    use proptest::prelude::*;

    use super::*;

    /// Keys of which the first are much more frequent: the index is a power of a uniform number.
    fn skewed_stream() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let stream = |(keys, skew): (u64, i32)| {
            let key = (0.0..1.0_f64).prop_map(move |u| (u.powi(skew) * keys as f64) as u64);
            prop::collection::vec((key, 1..4_u64), 1..3_000)
        };
        (1..400_u64, 1..8).prop_flat_map(stream)
    }

    proptest! {
        #[test]
        fn a_count_is_never_too_low_and_too_high_by_its_error_at_most(
            stream in skewed_stream(),
            capacity in 1..120_usize,
        ) {
            let (mut top, mut exact) = (TopKeys::new(capacity), Exact::<Key, u64>::new());
            for (key, rejections) in stream {
                let key = Key::from(key);
                top.add(key, rejections);
                *exact.entry(key).or_default() += rejections;
            }
            let total: u64 = exact.values().sum();
            prop_assert_eq!(top.total(), total);
            let held = top.top(usize::MAX);
            prop_assert!(held.len() <= capacity);
            prop_assert_eq!(held.len(), exact.len().min(capacity));
            let bound = total / capacity as u64;
            for TopKey { key, tally } in &held {
                let exact = exact[key];
                prop_assert!(tally.rejected >= exact && tally.rejected - tally.at_most_over <= exact);
                prop_assert!(tally.at_most_over <= bound);
            }
            for (key, exact) in exact {
                prop_assert!(exact <= bound || held.iter().any(|top| top.key == key));
            }
            prop_assert!(held.is_sorted_by_key(|top| std::cmp::Reverse(top.tally.rejected)));
        }
    }

    #[test]
    fn a_million_keys_take_no_more_memory_than_eleven_kilobytes() {
        let mut top = TopKeys::new(100);
        for key in 0..1_000_000_u64 {
            top.add(Key::from(key), 1);
        }
        let keys = top.keys.capacity() * size_of::<TopKey>();
        let allocated = keys + top.indices.allocation_size();
        assert!(
            top.keys.len() == 100 && allocated < 11_000,
            "{allocated} bytes"
        );
    }
}
