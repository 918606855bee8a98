//! One shard: its part of the entries, and the bound on them.

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    key::Key,
    store::{CounterMode, LimitHandle, Units},
    strategy::Snapshot,
};

/// One of so many makes room for another: the one that ends first.
const SAMPLE: usize = 8;

/// One line of a question, as far as it matters here.
#[derive(Clone, Copy)]
pub(crate) struct CacheKey<'a> {
    pub(crate) limit: &'a LimitHandle,
    pub(crate) key: &'a Key,
    pub(crate) units: Units,
    pub(crate) mode: CounterMode,
}

impl CacheKey<'_> {
    /// Whether a rejection may charge something under this line.
    pub(super) fn counts_rejections(self) -> bool {
        !matches!(self.mode, CounterMode::Charge | CounterMode::Check)
    }
}

#[derive(Default)]
pub(crate) struct Shard {
    rejection_cache: Vec<CachedRejection>,
    /// Which of them is of which keys.
    places: HashTable<u32>,
    /// Where those that are over are looked for, a few at a time.
    hand: usize,
}

/// A request that the store rejected.
pub(crate) struct CachedRejection {
    pub(crate) hash: u64,
    pub(crate) counters: SmallVec<[CachedCounter; 1]>,
    /// When it was judged, on the store's clock.
    pub(crate) judged: Timestamp,
    /// On the cache's clock, as all that follows.
    pub(crate) asked: Timestamp,
    pub(crate) answered: Timestamp,
    /// When its wait has passed.
    pub(crate) until: Timestamp,
    /// Until when every request for its keys is rejected, whatever it costs.
    pub(crate) firm_until: Timestamp,
    /// What was known when it was asked.
    pub(crate) epoch: u64,
    pub(crate) changes: u64,
}

/// One policy of it.
pub(crate) struct CachedCounter {
    pub(crate) limit: u64,
    pub(crate) key: Key,
    pub(crate) units: Units,
    pub(crate) snapshot: Snapshot,
    /// Whether that says what a request of another cost waits for.
    pub(crate) any_cost: bool,
}

impl CachedRejection {
    fn is_of<'a>(&self, hash: u64, counters: impl Iterator<Item = CacheKey<'a>> + Clone) -> bool {
        let same = |(line, own): (CacheKey<'_>, &CachedCounter)| {
            own.limit == line.limit.number() && own.key == *line.key
        };
        self.hash == hash
            && self.counters.len() == counters.clone().count()
            && counters.zip(&self.counters).all(same)
    }

    /// Whether its wait has passed. A clock that stepped back makes none longer.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        now < self.asked || self.until <= now
    }

    /// Whether it says what a request of these costs waits for: one that costs less may be admitted.
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

    /// Forgets the entry of these lines; returns whether there was one.
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

    /// Adds an entry in place of the one of the same lines, and forgets others that are over or, if there are `most`, would
    /// be soonest; returns how many more there are than before.
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

    /// Takes a denial out of the row, and puts the last one in its place.
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
