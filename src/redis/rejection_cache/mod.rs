//! Caches rejections: a request that the store rejected is rejected in process, without a call, until its wait has passed, for
//! a second at most by default.

use std::{
    fmt,
    hash::BuildHasher,
    mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};
use smallvec::SmallVec;

use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    store::{CounterMode, CounterResult, DecisionSource, LimitHandle, Op, OpResult, Units},
    strategy::{RetryAfter, Snapshot},
    sync::{CachePadded, lock},
};

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
/// - its wait has not passed,
/// - it is no older than `max_staleness`, and
/// - this process has not refunded, reset or charged past the quota one of its keys since: the cache counts these for
///   each policy and key, whatever the caller's quota is.
///
/// Of policies that charge rejections, only the rejections by a ban are cached, until it expires: they charge nothing.
pub(crate) struct RejectionCache {
    max_staleness: Duration,
    clock: Arc<dyn Clock>,
    hasher: DefaultHashBuilder,
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    /// Capacity of each of a shard's two tables.
    table_capacity: usize,
    len: AtomicUsize,
    /// The invalidation counters, by the hash of policy and key.
    invalidations: Box<[AtomicU64]>,
}

/// The sum of the invalidation counters of a request's keys when it arrived. They only grow: an equal sum means that each is
/// equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CacheToken(u64);

impl RejectionCache {
    /// Holds about `capacity` entries, each for at most `max_staleness`. Zero disables the cache.
    pub(crate) fn new(max_staleness: Duration, capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            max_staleness,
            clock,
            hasher: DefaultHashBuilder::default(),
            shards: Default::default(),
            table_capacity: capacity.div_ceil(2 * SHARDS),
            len: AtomicUsize::new(0),
            invalidations: (0..INVALIDATION_COUNTERS)
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    /// The cached rejection of a request.
    pub(crate) fn get<'a>(
        &self,
        op: Op,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<OpResult> {
        if self.len.load(Ordering::Relaxed) == 0 || !self.is_cacheable(op, counters.clone()) {
            return None;
        }
        let (hash, token) = self.slot(counters.clone());
        let now = self.clock.now();
        let shard = self.lock(hash);
        let rejection = shard.find(hash, counters.clone())?;
        if !rejection.holds(now) || rejection.token != token || !rejection.covers(counters) {
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

    /// The token of a request that arrives now; `None` if its rejection is not to be cached.
    pub(crate) fn token<'a>(
        &self,
        op: Op,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<CacheToken> {
        self.is_cacheable(op, counters.clone())
            .then(|| self.slot(counters).1)
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
        token: CacheToken,
        age: Duration,
    ) {
        let received_at = self.clock.now();
        let charges_nothing = !counters.clone().any(CacheKey::counts_rejections);
        let results = counters.clone().zip(&result.counters);
        let waits = results.clone().filter_map(|(counter, counter_result)| {
            // A ban rejects a key whatever is counted: a block list counts no units.
            let is_ban = counter.mode == CounterMode::CountRejections;
            let units = if is_ban { Units::ONE } else { counter.units };
            // A permit may be released at any moment.
            if counter.mode.is_shadow()
                || counter.limit.info().permit_ttl.is_some()
                || !(charges_nothing || is_ban)
            {
                return None;
            }
            let status = counter
                .limit
                .status(&counter_result.snapshot, result.at, units);
            match status.retry_after {
                RetryAfter::In(wait) => Some(wait),
                _ => None,
            }
        });
        let Some(wait) = waits.max() else {
            return;
        };
        let cached = results.map(|(counter, counter_result)| CachedCounter {
            limit: counter.limit.id(),
            any_cost: counter.limit.info().snapshot_ignores_cost,
            key: *counter.key,
            units: counter.units,
            snapshot: counter_result.snapshot,
        });
        let (hash, _) = self.slot(counters.clone());
        let rejection = CachedRejection {
            hash,
            counters: cached.collect(),
            decided_at: result.at,
            received_at,
            expires_at: received_at - age + wait.min(self.max_staleness),
            token,
        };
        let mut shard = self.lock(hash);
        let before = shard.len();
        if shard.recent.len() >= self.table_capacity
            || received_at.since(shard.recent_since) >= self.max_staleness
        {
            shard.older = mem::take(&mut shard.recent);
            shard.recent_since = received_at;
        }
        shard.insert(rejection, counters);
        // Under the lock: a shard's entries are added to the sum before they are subtracted.
        self.len.fetch_add(shard.len(), Ordering::Relaxed);
        self.len.fetch_sub(before, Ordering::Relaxed);
    }

    /// Invalidates the entries of all requests for these keys, under every quota, and those of requests in flight.
    pub(crate) fn invalidate<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) {
        for counter in counters {
            self.invalidations(self.hash(&counter))
                .fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The hash that finds a request's entry, and its token.
    fn slot<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) -> (u64, CacheToken) {
        counters.fold((0, CacheToken(0)), |(hash, CacheToken(sum)), counter| {
            let own = self.hash(&counter);
            let invalidations = self.invalidations(own).load(Ordering::Acquire);
            (
                hash.rotate_left(5) ^ own,
                CacheToken(sum.wrapping_add(invalidations)),
            )
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
        self.len.load(Ordering::Relaxed) as u64
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

/// Entries, which are dropped by age.
#[derive(Default)]
struct Shard {
    recent: HashTable<CachedRejection>,
    /// The entries that were `recent` until that table was full, or its entries may have been over.
    older: HashTable<CachedRejection>,
    recent_since: Timestamp,
}

/// A request that the store rejected.
struct CachedRejection {
    hash: u64,
    counters: SmallVec<[CachedCounter; 1]>,
    /// When the store decided, on the store's clock.
    decided_at: Timestamp,
    /// On the cache's clock, as the following.
    received_at: Timestamp,
    /// When its wait has passed, or it is too old.
    expires_at: Timestamp,
    token: CacheToken,
}

/// One policy of a cached rejection.
struct CachedCounter {
    limit: u64,
    key: Key,
    units: Units,
    snapshot: Snapshot,
    /// Whether the snapshot determines the wait of a request of another cost.
    any_cost: bool,
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

    /// Whether its wait has not passed. A clock that stepped back extends none.
    fn holds(&self, now: Timestamp) -> bool {
        self.received_at <= now && now < self.expires_at
    }

    /// Whether it determines the wait of a request of these costs: one of a smaller cost may be admitted.
    fn covers<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) -> bool {
        self.counters.iter().zip(counters).all(|(own, counter)| {
            let is_more = own.any_cost && !own.units.is_zero() && own.units < counter.units;
            own.units == counter.units || is_more
        })
    }
}

impl Shard {
    fn len(&self) -> usize {
        self.recent.len() + self.older.len()
    }

    fn find<'a>(
        &self,
        hash: u64,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<&CachedRejection> {
        let is_same = |entry: &CachedRejection| entry.is_of(hash, counters.clone());
        let found = self.recent.find(hash, is_same);
        found.or_else(|| self.older.find(hash, is_same))
    }

    /// Adds an entry in place of the one for the same counters.
    fn insert<'a>(
        &mut self,
        rejection: CachedRejection,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) {
        let hash = rejection.hash;
        let is_same = |entry: &CachedRejection| entry.is_of(hash, counters.clone());
        match self.recent.entry(hash, is_same, |entry| entry.hash) {
            Entry::Occupied(mut entry) => *entry.get_mut() = rejection,
            Entry::Vacant(entry) => drop(entry.insert(rejection)),
        }
    }
}
