//! How many different clients or keys there were, in bounded memory.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use tollgate::Key;

/// The most keys that are remembered. Up to so many, numbers are exact.
const MAX_KEYS: usize = 1 << 18;

/// The number of different keys, and of those that were rejected at least once: exact up to [`MAX_KEYS`] keys, and above that
/// estimated by a sample, of the keys whose hashes end with `level` zeros.
#[derive(Debug)]
pub(in crate::replay) struct Distinct {
    max_keys: usize,
    level: u32,
    /// The hashes of the keys in the sample, and whether each was rejected.
    sample: HashMap<u64, bool>,
}

impl Distinct {
    pub(super) fn new() -> Self {
        Self::with_max(MAX_KEYS)
    }

    fn with_max(max_keys: usize) -> Self {
        Self {
            max_keys,
            level: 0,
            sample: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, key: &Key, is_rejected: bool) {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        if hash.trailing_zeros() < self.level {
            return;
        }
        *self.sample.entry(hash).or_default() |= is_rejected;
        while self.sample.len() > self.max_keys {
            self.level += 1;
            let level = self.level;
            self.sample.retain(|hash, _| hash.trailing_zeros() >= level);
        }
    }

    /// The number of different keys.
    pub(in crate::replay) fn seen(&self) -> u64 {
        (self.sample.len() as u64) << self.level
    }

    /// The number of different keys that were rejected at least once.
    pub(in crate::replay) fn rejected(&self) -> u64 {
        let rejected = self.sample.values().filter(|rejected| **rejected);
        (rejected.count() as u64) << self.level
    }

    pub(in crate::replay) fn is_exact(&self) -> bool {
        self.level == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_up_to_the_bound_and_close_above() {
        let mut distinct = Distinct::with_max(1_000);
        for _ in 0..2 {
            for number in 0..1_000_u64 {
                distinct.add(&Key::from(number), number % 4 == 0);
            }
        }
        assert_eq!((distinct.seen(), distinct.rejected()), (1_000, 250));
        assert!(distinct.is_exact());

        for number in 0..20_000_u64 {
            distinct.add(&Key::from(number), number % 4 == 0);
        }
        assert!(!distinct.is_exact());
        assert!(
            (18_000..22_000).contains(&distinct.seen()),
            "{}",
            distinct.seen()
        );
        let rejected = distinct.rejected();
        assert!((4_250..5_750).contains(&rejected), "{rejected}");
    }
}
