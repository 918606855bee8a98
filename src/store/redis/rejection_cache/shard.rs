//! One shard of the cache: its entries, and their bound.

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

/// What the cache needs to know of a counter operation.
#[derive(Clone, Copy)]
pub(crate) struct CacheKey<'a> {
    pub(crate) limit: &'a LimitHandle,
    pub(crate) key: &'a Key,
    pub(crate) units: Units,
    pub(crate) mode: CounterMode,
}

impl CacheKey<'_> {
    /// Whether a rejection may charge something in this mode.
    pub(super) fn counts_rejections(self) -> bool {
        !matches!(self.mode, CounterMode::Charge | CounterMode::Check)
    }
}

#[derive(Default)]
pub(crate) struct Shard {
    rejection_cache: Vec<CachedRejection>,
    /// Positions of the entries, by the hash of their keys.
    places: HashTable<u32>,
    /// Where the search for expired entries continues.
    hand: usize,
}

/// A request that the store rejected.
pub(crate) struct CachedRejection {
    pub(crate) hash: u64,
    pub(crate) counters: SmallVec<[CachedCounter; 1]>,
    /// When the store decided, on the store's clock.
    pub(crate) judged: Timestamp,
    /// On the cache's clock, as are the following.
    pub(crate) asked: Timestamp,
    pub(crate) answered: Timestamp,
    /// When its wait has passed.
    pub(crate) until: Timestamp,
    /// Until when every request for its keys is rejected, whatever it costs.
    pub(crate) firm_until: Timestamp,
    /// The cache's state when the request arrived.
    pub(crate) epoch: u64,
    pub(crate) changes: u64,
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
        let same = |(line, own): (CacheKey<'_>, &CachedCounter)| {
            own.limit == line.limit.id() && own.key == *line.key
        };
        self.hash == hash
            && self.counters.len() == counters.clone().count()
            && counters.zip(&self.counters).all(same)
    }

    /// Whether its wait has passed. A clock that stepped back extends none.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        now < self.asked || self.until <= now
    }

    /// Whether it determines the wait of a request of these costs: one of a smaller cost may be admitted.
    pub(crate) fn covers<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) -> bool {
        self.counters.iter().zip(counters).all(|(own, line)| {
            let is_more = own.any_cost && !own.units.is_zero() && own.units < line.units;
            own.units == line.units || is_more
        })
    }
}

impl Shard {
    pub(crate) fn find<'a>(
        &self,
        hash: u64,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<&CachedRejection> {
        let is_of =
            |place: &u32| self.rejection_cache[*place as usize].is_of(hash, counters.clone());
        let place = *self.places.find(hash, is_of)?;
        self.rejection_cache.get(place as usize)
    }

    /// Removes the entry of these counters; returns whether there was one.
    pub(crate) fn remove<'a>(
        &mut self,
        hash: u64,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> bool {
        let is_of =
            |place: &u32| self.rejection_cache[*place as usize].is_of(hash, counters.clone());
        let Ok(found) = self.places.find_entry(hash, is_of) else {
            return false;
        };
        let (place, _) = found.remove();
        self.close_gap(place);
        true
    }

    /// Adds an entry in place of the one for the same counters, and evicts expired ones or, at `most` entries, the
    /// one that ends first; returns the change in number.
    pub(crate) fn add<'a>(
        &mut self,
        denial: CachedRejection,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
        now: Timestamp,
        most: usize,
    ) -> isize {
        let of = denial.hash;
        let replaced = self.remove(of, counters);
        let forgotten = self.make_room(now, most);
        let place = self.rejection_cache.len() as u32;
        self.rejection_cache.push(denial);
        let rejection_cache = &self.rejection_cache;
        let hash = |place: &u32| rejection_cache[*place as usize].hash;
        self.places.insert_unique(of, place, hash);
        1 - isize::from(replaced) - forgotten
    }

    fn make_room(&mut self, now: Timestamp, most: usize) -> isize {
        let before = self.rejection_cache.len();
        let mut soonest = None;
        for _ in 0..SAMPLE.min(before) {
            self.hand = if self.hand + 1 < self.rejection_cache.len() {
                self.hand + 1
            } else {
                0
            };
            let Some(denial) = self.rejection_cache.get(self.hand) else {
                break;
            };
            if denial.until <= now {
                self.drop_at(self.hand);
                soonest = None;
            } else if soonest.is_none_or(|(until, _)| denial.until < until) {
                soonest = Some((denial.until, self.hand));
            }
        }
        if let Some((_, place)) = soonest.filter(|_| self.rejection_cache.len() >= most) {
            self.drop_at(place);
        }
        (before - self.rejection_cache.len()) as isize
    }

    fn drop_at(&mut self, place: usize) {
        let hash = self.rejection_cache[place].hash;
        if let Ok(found) = self.places.find_entry(hash, |at| *at as usize == place) {
            found.remove();
        }
        self.close_gap(place as u32);
    }

    /// Removes an entry, and moves the last one into its place.
    fn close_gap(&mut self, place: u32) {
        self.rejection_cache.swap_remove(place as usize);
        let last = self.rejection_cache.len() as u32;
        if let Some(moved) = self.rejection_cache.get(place as usize)
            && let Some(at) = self.places.find_mut(moved.hash, |at| *at == last)
        {
            *at = place;
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        debug_assert_eq!(self.rejection_cache.len(), self.places.len());
        self.rejection_cache.len()
    }
}
