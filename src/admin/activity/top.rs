//! The keys with the most rejections, in bounded memory.

use hashbrown::HashMap;

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
    keys: HashMap<Key, Tally>,
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
            keys: HashMap::new(),
        }
    }

    /// Counts rejections of a key.
    pub(super) fn add(&mut self, key: Key, rejections: u64) {
        self.total = self.total.saturating_add(rejections);
        if let Some(tally) = self.keys.get_mut(&key) {
            tally.rejected = tally.rejected.saturating_add(rejections);
            return;
        }
        let fewest = match self.keys.len() < self.capacity {
            true => 0,
            false => self.take_fewest(),
        };
        let tally = Tally {
            rejected: fewest.saturating_add(rejections),
            at_most_over: fewest,
        };
        self.keys.insert(key, tally);
    }

    /// Removes the key with the fewest rejections, and returns their number.
    fn take_fewest(&mut self) -> u64 {
        let keys = self.keys.iter();
        let fewest = keys.min_by_key(|(_, tally)| tally.rejected);
        let Some((key, rejected)) = fewest.map(|(key, tally)| (*key, tally.rejected)) else {
            return 0;
        };
        self.keys.remove(&key);
        rejected
    }

    /// The exact number of rejections of all keys.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The keys with the most rejections, at most `n`.
    pub(super) fn top(&self, n: usize) -> Vec<TopKey> {
        let keys = self.keys.iter();
        let mut top: Vec<TopKey> = keys
            .map(|(key, tally)| TopKey {
                key: *key,
                tally: *tally,
            })
            .collect();
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
        let allocated = top.keys.allocation_size();
        assert!(
            top.keys.len() == 100 && allocated < 11_000,
            "{allocated} bytes"
        );
    }
}
