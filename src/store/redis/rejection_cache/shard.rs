//! One shard of the cache: its entries, and their eviction.

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    key::Key,
    store::{CounterMode, LimitHandle, Units},
    strategy::Snapshot,
};

/// Entries sampled for eviction: the one that ends first is removed.
const SAMPLE: usize = 8;

/// The part of a counter op that its cached rejection depends on.
#[derive(Clone, Copy)]
pub(crate) struct CacheKey<'a> {
    pub(crate) limit: &'a LimitHandle,
    pub(crate) key: &'a Key,
    pub(crate) units: Units,
    pub(crate) mode: CounterMode,
}

impl CacheKey<'_> {
    /// Whether a rejection may charge something. A block list counts zero units of each.
    pub(super) fn counts_rejections(self) -> bool {
        !matches!(self.mode, CounterMode::Charge | CounterMode::Check) && !self.units.is_zero()
    }
}

#[derive(Default)]
pub(crate) struct Shard {
    entries: Vec<CachedRejection>,
    /// Positions of the entries, by the hash of their keys.
    index: HashTable<u32>,
    /// Where the search for expired entries continues.
    eviction_cursor: usize,
}

/// A request that the store rejected.
pub(crate) struct CachedRejection {
    pub(crate) hash: u64,
    pub(crate) counters: SmallVec<[CachedCounter; 1]>,
    /// When the store decided, on the store's clock.
    pub(crate) decided_at: Timestamp,
    /// On the cache's clock, as are the following.
    pub(crate) requested_at: Timestamp,
    pub(crate) received_at: Timestamp,
    /// When its wait has passed.
    pub(crate) expires_at: Timestamp,
    /// Until when every request for its keys is rejected, whatever it costs.
    pub(crate) rejects_all_until: Timestamp,
    /// The cache's state when the request arrived.
    pub(crate) epoch: u64,
    pub(crate) invalidations: u64,
}

/// One policy of a cached rejection.
pub(crate) struct CachedCounter {
    pub(crate) limit: u64,
    pub(crate) key: Key,
    pub(crate) units: Units,
    pub(crate) snapshot: Snapshot,
    /// Whether the snapshot determines the wait of a request of another cost.
    pub(crate) any_cost: bool,
}

impl CachedRejection {
    fn is_of<'a>(&self, hash: u64, counters: impl Iterator<Item = CacheKey<'a>> + Clone) -> bool {
        let same = |(counter, own): (CacheKey<'_>, &CachedCounter)| {
            own.limit == counter.limit.id() && own.key == *counter.key
        };
        self.hash == hash
            && self.counters.len() == counters.clone().count()
            && counters.zip(&self.counters).all(same)
    }

    /// Whether its wait has passed. A clock that stepped back extends none.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        now < self.requested_at || self.expires_at <= now
    }

    /// Whether it determines the wait of a request of these costs: one of a smaller cost may be admitted.
    pub(crate) fn covers<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) -> bool {
        self.counters.iter().zip(counters).all(|(own, counter)| {
            let is_more = own.any_cost && !own.units.is_zero() && own.units < counter.units;
            own.units == counter.units || is_more
        })
    }
}

impl Shard {
    pub(crate) fn find<'a>(
        &self,
        hash: u64,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<&CachedRejection> {
        let is_of = |position: &u32| self.entries[*position as usize].is_of(hash, counters.clone());
        let position = *self.index.find(hash, is_of)?;
        self.entries.get(position as usize)
    }

    /// Removes the entry of these counters; returns whether there was one.
    pub(crate) fn remove<'a>(
        &mut self,
        hash: u64,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> bool {
        let is_of = |position: &u32| self.entries[*position as usize].is_of(hash, counters.clone());
        let Ok(found) = self.index.find_entry(hash, is_of) else {
            return false;
        };
        let (position, _) = found.remove();
        self.close_gap(position);
        true
    }

    /// Adds an entry in place of the one for the same counters, and evicts expired ones or, at `capacity` entries, the
    /// one that ends first; returns the change in number.
    pub(crate) fn add<'a>(
        &mut self,
        rejection: CachedRejection,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
        now: Timestamp,
        capacity: usize,
    ) -> isize {
        let hash = rejection.hash;
        let replaced = self.remove(hash, counters);
        let evicted = self.evict(now, capacity);
        let position = self.entries.len() as u32;
        self.entries.push(rejection);
        let entries = &self.entries;
        let rehash = |position: &u32| entries[*position as usize].hash;
        self.index.insert_unique(hash, position, rehash);
        1 - isize::from(replaced) - evicted
    }

    fn evict(&mut self, now: Timestamp, capacity: usize) -> isize {
        let before = self.entries.len();
        let mut soonest = None;
        for _ in 0..SAMPLE.min(before) {
            self.eviction_cursor = if self.eviction_cursor + 1 < self.entries.len() {
                self.eviction_cursor + 1
            } else {
                0
            };
            let Some(rejection) = self.entries.get(self.eviction_cursor) else {
                break;
            };
            if rejection.expires_at <= now {
                self.remove_at(self.eviction_cursor);
                soonest = None;
            } else if soonest.is_none_or(|(expires_at, _)| rejection.expires_at < expires_at) {
                soonest = Some((rejection.expires_at, self.eviction_cursor));
            }
        }
        if let Some((_, position)) = soonest.filter(|_| self.entries.len() >= capacity) {
            self.remove_at(position);
        }
        (before - self.entries.len()) as isize
    }

    fn remove_at(&mut self, position: usize) {
        let hash = self.entries[position].hash;
        if let Ok(found) = self.index.find_entry(hash, |at| *at as usize == position) {
            found.remove();
        }
        self.close_gap(position as u32);
    }

    /// Removes an entry, and moves the last one into its place.
    fn close_gap(&mut self, position: u32) {
        self.entries.swap_remove(position as usize);
        let last = self.entries.len() as u32;
        if let Some(moved) = self.entries.get(position as usize)
            && let Some(at) = self.index.find_mut(moved.hash, |at| *at == last)
        {
            *at = position;
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        debug_assert_eq!(self.entries.len(), self.index.len());
        self.entries.len()
    }
}
