//! Caches rejections: a request that the store rejected is rejected in process, without a call, until its wait has passed.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicIsize, AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;

use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    store::{CounterMode, CounterResult, DecisionSource, LimitHandle, Op, OpResult, Units},
    strategy::{RetryAfter, Snapshot},
    sync::{CachePadded, lock},
};

pub(crate) use self::epoch::Epoch;

pub(crate) mod epoch;
#[cfg(test)]
mod tests;

/// Shards, each under a lock of its own.
const SHARDS: usize = 16;

/// Invalidation counters of this process. Keys that share a counter invalidate each other's entries, which
/// costs a call.
const INVALIDATION_COUNTERS: usize = 8_192;

/// Cached rejections.
///
/// An entry is one request: the keys of all of its policies, and the store's result for each. It answers requests for
/// the same keys under the same rules, at the same costs or larger ones, as long as
///
/// - its wait has not passed, and
/// - this process has not refunded, reset or charged past the quota one of its keys since: the cache counts these for
///   each policy and key, whatever the caller's quota is, and
/// - it is no older than `max_staleness`. It may be older while every request for its keys is rejected, whatever it costs, and
///   the store's [epoch](Epoch), read within `max_staleness`, is unchanged: then nothing has changed that could admit it.
///
/// Of policies that charge rejections, only the rejections by a ban are cached, until it expires: they charge nothing.
///
/// So a wait reported from the cache is what the store reported at most `max_staleness` ago, or would report now.
pub(crate) struct RejectionCache {
    max_staleness: Duration,
    clock: Arc<dyn Clock>,
    hasher: DefaultHashBuilder,
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    /// Capacity of each shard.
    capacity: usize,
    len: AtomicIsize,
    /// The invalidation counters, by the hash of policy and key.
    invalidations: Box<[AtomicU64]>,
    epoch: Epoch,
}

/// The state of the cache when a request arrived. Its rejection is cached with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheToken {
    /// Zero if none was read.
    epoch: u64,
    /// The sum of the keys' invalidation counters. They only grow: an equal sum means that each is equal.
    invalidations: u64,
}

/// The hash that finds a request's entry, and the invalidations of its keys so far, by which it is still valid or not.
struct CacheSlot {
    hash: u64,
    invalidations: u64,
}

impl RejectionCache {
    /// Holds about `capacity` entries, each for at most `max_staleness` after a change elsewhere. Zero disables the cache.
    pub(crate) fn new(max_staleness: Duration, capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            max_staleness,
            clock,
            hasher: DefaultHashBuilder::default(),
            shards: Default::default(),
            capacity: capacity.div_ceil(SHARDS),
            len: AtomicIsize::new(0),
            invalidations: (0..INVALIDATION_COUNTERS)
                .map(|_| AtomicU64::new(0))
                .collect(),
            epoch: Epoch::default(),
        }
    }

    /// The cached rejection of a request.
    pub(crate) fn get<'a>(
        &self,
        op: Op,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<OpResult> {
        if self.len.load(Ordering::Relaxed) <= 0 || !self.is_cacheable(op, counters.clone()) {
            return None;
        }
        let now = self.clock.now();
        let CacheSlot {
            hash,
            invalidations,
        } = self.slot(counters.clone());
        let mut shard = self.lock(hash);
        let rejection = shard.find(hash, counters.clone())?;
        if rejection.is_over(now) || rejection.invalidations != invalidations {
            self.add_len(-isize::from(shard.remove(hash, counters)));
            return None;
        }
        if !rejection.covers(counters) || !self.is_fresh(rejection, now) {
            return None;
        }
        let counters = rejection.counters.iter();
        let counters = counters.map(|counter| CounterResult::new(0, counter.snapshot));
        Some(OpResult {
            age: now.since(rejection.received_at),
            source: DecisionSource::RejectionCache,
            ..OpResult::new(rejection.decided_at, 0, counters)
        })
    }

    /// Whether the store would still reject the request, or did so within `max_staleness`.
    fn is_fresh(&self, rejection: &CachedRejection, now: Timestamp) -> bool {
        now.since(rejection.requested_at) < self.max_staleness
            || now < rejection.rejects_all_until
                && self.epoch.holds(rejection.epoch, now, self.max_staleness)
    }

    /// The token of a request that arrives now; `None` if its rejection is not to be cached.
    pub(crate) fn token<'a>(
        &self,
        op: Op,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<CacheToken> {
        self.is_cacheable(op, counters.clone()).then(|| CacheToken {
            epoch: self.epoch.number(),
            invalidations: self.slot(counters).invalidations,
        })
    }

    /// A rejection that charges something is not cached, except by a ban, which charges nothing then. Several
    /// requests at once may be rejected in part.
    fn is_cacheable<'a>(&self, op: Op, counters: impl Iterator<Item = CacheKey<'a>>) -> bool {
        if op != Op::Acquire(1) || self.max_staleness.is_zero() {
            return false;
        }
        let (mut counts, mut bans) = (false, false);
        for counter in counters {
            match counter.mode {
                CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => {}
                CounterMode::ChargeRejectedToo => counts = true,
                CounterMode::CountRejections => bans = true,
            }
        }
        bans || !counts
    }

    /// Caches the rejection of a request that arrived `age` ago.
    pub(crate) fn insert<'a>(
        &self,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
        result: &OpResult,
        token: &CacheToken,
        age: Duration,
    ) {
        let received_at = self.clock.now();
        let requested_at = received_at - age;
        let (mut wait, mut rejects_all_for) = (None, Duration::MAX);
        let charges_nothing = !counters.clone().any(CacheKey::counts_rejections);
        let enforced = counters.clone().zip(&result.counters);
        for (counter, counter_result) in enforced.filter(|(counter, _)| !counter.mode.is_shadow()) {
            let (limit, info) = (counter.limit, counter.limit.info());
            let retry = |units| {
                limit
                    .status(&counter_result.snapshot, result.at, units)
                    .retry_after
            };
            // A ban rejects a key whatever is counted: a block list counts no units.
            let is_ban = counter.mode == CounterMode::CountRejections;
            let units = if is_ban { Units::ONE } else { counter.units };
            // A permit may be released at any moment.
            let own = match retry(units) {
                RetryAfter::In(own) if info.permit_ttl.is_none() => Some(own),
                _ => None,
            };
            if counter.units.is_zero() && own.is_none() {
                continue;
            }
            // Until then every cost is rejected.
            let any = match own {
                Some(_) if units == Units::ONE => own,
                Some(_) if info.snapshot_ignores_cost => match retry(Units::ONE) {
                    RetryAfter::In(any) => Some(any),
                    _ => None,
                },
                _ => None,
            };
            if charges_nothing || is_ban {
                wait = wait.max(own);
            }
            rejects_all_for = rejects_all_for.min(any.unwrap_or_default());
        }
        let Some(wait) = wait else {
            return;
        };
        let cached = counters.clone().zip(&result.counters);
        let cached = cached.map(|(counter, counter_result)| CachedCounter {
            limit: counter.limit.id(),
            any_cost: counter.limit.info().snapshot_ignores_cost,
            key: *counter.key,
            units: counter.units,
            snapshot: counter_result.snapshot,
        });
        let hash = self.slot(counters.clone()).hash;
        let rejection = CachedRejection {
            hash,
            counters: cached.collect(),
            decided_at: result.at,
            requested_at,
            received_at,
            expires_at: requested_at + wait,
            rejects_all_until: requested_at + rejects_all_for,
            epoch: token.epoch,
            invalidations: token.invalidations,
        };
        let more = self
            .lock(hash)
            .add(rejection, counters, received_at, self.capacity);
        self.add_len(more);
    }

    /// Invalidates the entries of all requests for these keys, under every quota, and those of requests in flight.
    pub(crate) fn invalidate<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) {
        for counter in counters {
            self.invalidations(self.hash(&counter))
                .fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether the store's epoch is to be read now, and the current time. The reader calls
    /// [`finish_read`](Epoch::finish_read).
    pub(crate) fn start_epoch_read(&self) -> Option<Timestamp> {
        if self.len.load(Ordering::Relaxed) <= 0 {
            return None;
        }
        let now = self.clock.now();
        // Early enough that no entry becomes doubtful meanwhile.
        self.epoch
            .start_read(now, self.max_staleness / 2)
            .then_some(now)
    }

    /// Stores the epoch that was requested at `read_at`, when the server's clock showed `time`.
    pub(crate) fn note_epoch(&self, epoch: &str, time: Timestamp, read_at: Timestamp) {
        self.epoch.note(epoch, time, read_at, self.max_staleness);
    }

    pub(crate) fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    fn slot<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) -> CacheSlot {
        let none = CacheSlot {
            hash: 0,
            invalidations: 0,
        };
        counters.fold(none, |slot, counter| {
            let own = self.hash(&counter);
            let invalidations = self.invalidations(own).load(Ordering::Acquire);
            CacheSlot {
                hash: slot.hash.rotate_left(5) ^ own,
                invalidations: slot.invalidations.wrapping_add(invalidations),
            }
        })
    }

    /// A hash of the policy and the key: the quota, and with it the limit, may differ between requests.
    fn hash(&self, counter: &CacheKey<'_>) -> u64 {
        self.hasher.hash_one((counter.limit.policy(), counter.key))
    }

    /// The invalidation counter of a policy and key, by their hash.
    fn invalidations(&self, hash: u64) -> &AtomicU64 {
        &self.invalidations[hash as usize % INVALIDATION_COUNTERS]
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 40) as usize % SHARDS])
    }

    /// The number of cached rejections, of which some may be over.
    pub(crate) fn len(&self) -> u64 {
        u64::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn add_len(&self, more: isize) {
        if more != 0 {
            self.len.fetch_add(more, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for RejectionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectionCache")
            .field("max_staleness", &self.max_staleness)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

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
    fn counts_rejections(self) -> bool {
        let counts = matches!(
            self.mode,
            CounterMode::ChargeRejectedToo | CounterMode::CountRejections
        );
        counts && !self.units.is_zero()
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
}
