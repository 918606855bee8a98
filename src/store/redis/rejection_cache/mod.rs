//! Caches rejections: a request that the store rejected is rejected in process, without a call, until its wait has passed.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicIsize, AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;

use self::shard::{CachedCounter, CachedRejection, Shard};
pub(crate) use self::{epoch::Epoch, shard::CacheKey};
use crate::{
    clock::{Clock, Timestamp},
    store::{CounterMode, CounterResult, DecisionSource, Op, OpResult, Units},
    strategy::RetryAfter,
    sync::CachePadded,
};

pub(crate) mod epoch;
mod shard;
#[cfg(test)]
mod tests;

/// Shards, each under a lock of its own.
const SHARDS: usize = 16;

/// Counters of invalidations by this process. Keys that share a counter invalidate each other's entries, which
/// costs a call.
const COUNTERS: usize = 8_192;

/// Cached rejections.
///
/// An entry is one request: the keys of all of its policies, and the store's result for each. It answers requests for
/// the same keys under the same rules, at the same costs or larger ones, as long as
///
/// - its wait has not passed, and
/// - this process has not refunded, reset or charged past the quota one of its keys since: the cache counts these for
///   each policy and key, whatever the caller's quota is, and
/// - it is no older than `bound`. It may be older while every request for its keys is rejected, whatever it costs, and
///   the store's [epoch](Epoch), read within the bound, is unchanged: then nothing has changed the keys.
///
/// Where rejections are charged, only those by a ban are cached, until it ends: they charge nothing.
///
/// So a wait reported from the cache is what the store reported at most `bound` ago, or would report now.
pub(crate) struct RejectionCache {
    bound: Duration,
    clock: Arc<dyn Clock>,
    hasher: DefaultHashBuilder,
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    /// Capacity of each shard.
    most: usize,
    len: AtomicIsize,
    /// Invalidations by this process, by the hash of policy and key.
    changes: Box<[AtomicU64]>,
    epoch: Epoch,
}

/// The state of the cache when a request arrived. Its rejection is cached with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheToken {
    /// Zero if none was read.
    epoch: u64,
    /// The sum of the keys' invalidation counters. They only grow: an equal sum means that each is equal.
    changes: u64,
}

/// Finds a request's entry, and tells whether it still holds.
struct CacheSlot {
    hash: u64,
    changes: u64,
}

impl RejectionCache {
    /// Holds about `most` entries, each for at most `bound` after a change elsewhere. A bound of zero disables the
    /// cache.
    pub(crate) fn new(bound: Duration, most: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            bound,
            clock,
            hasher: DefaultHashBuilder::default(),
            shards: Default::default(),
            most: most.div_ceil(SHARDS),
            len: AtomicIsize::new(0),
            changes: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            epoch: Epoch::default(),
        }
    }

    /// The cached rejection of a request.
    pub(crate) fn find<'a>(
        &self,
        ask: Op,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<OpResult> {
        if self.len.load(Ordering::Relaxed) <= 0 || !self.concerns(ask, counters.clone()) {
            return None;
        }
        let now = self.clock.now();
        let CacheSlot { hash, changes } = self.place(counters.clone());
        let mut shard = self.lock(hash);
        let denial = shard.find(hash, counters.clone())?;
        if denial.is_over(now) || denial.changes != changes {
            self.count(-isize::from(shard.remove(hash, counters)));
            return None;
        }
        if !denial.covers(counters) || !self.believes(denial, now) {
            return None;
        }
        let counters = denial.counters.iter();
        Some(OpResult {
            admitted: 0,
            at: denial.judged,
            age: now.since(denial.answered),
            admitted_after: 0,
            source: DecisionSource::RejectionCache,
            counters: counters
                .map(|line| CounterResult::new(0, line.snapshot))
                .collect(),
        })
    }

    /// Whether nothing can have changed it since, but within the bound.
    fn believes(&self, denial: &CachedRejection, now: Timestamp) -> bool {
        now.since(denial.asked) < self.bound
            || now < denial.firm_until && self.epoch.holds(denial.epoch, now, self.bound)
    }

    /// The token of a request that arrives now; `None` if its rejection is not to be cached.
    pub(crate) fn mark<'a>(
        &self,
        ask: Op,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
    ) -> Option<CacheToken> {
        self.concerns(ask, counters.clone()).then(|| CacheToken {
            epoch: self.epoch.number(),
            changes: self.place(counters).changes,
        })
    }

    /// A rejection that charges something is not cached, except by a ban, which charges nothing then. Several
    /// requests at once may be rejected in part, and shadows are evaluated for each.
    fn concerns<'a>(&self, ask: Op, counters: impl Iterator<Item = CacheKey<'a>>) -> bool {
        if ask != Op::Acquire(1) || self.bound.is_zero() {
            return false;
        }
        let (mut counts, mut bans) = (false, false);
        for line in counters {
            match line.mode {
                CounterMode::Charge | CounterMode::Check => {}
                CounterMode::ChargeRejectedToo => counts = true,
                CounterMode::CountRejections => bans = true,
                CounterMode::Shadow { .. } => return false,
            }
        }
        bans || !counts
    }

    /// Caches the rejection of a request that arrived `age` ago.
    pub(crate) fn note<'a>(
        &self,
        counters: impl Iterator<Item = CacheKey<'a>> + Clone,
        answer: &OpResult,
        mark: &CacheToken,
        age: Duration,
    ) {
        let answered = self.clock.now();
        let asked = answered - age;
        let (mut wait, mut firm) = (None, Duration::MAX);
        let plain = !counters.clone().any(CacheKey::counts_rejections);
        for (line, judged) in counters.clone().zip(&answer.counters) {
            let (limit, rule) = (line.limit, line.limit.rule());
            let retry = |units| limit.status(&judged.snapshot, answer.at, units).retry_after;
            if line.units.is_zero() {
                continue;
            }
            // A permit may be released at any moment.
            let own = match retry(line.units) {
                RetryAfter::In(own) if rule.permit_ttl().is_none() => Some(own),
                _ => None,
            };
            // Until then every cost is rejected.
            let any = match own {
                Some(_) if line.units == Units::ONE => own,
                Some(_) if rule.snapshot_ignores_cost() => match retry(Units::ONE) {
                    RetryAfter::In(any) => Some(any),
                    _ => None,
                },
                _ => None,
            };
            if plain || line.mode == CounterMode::CountRejections {
                wait = wait.max(own);
            }
            firm = firm.min(any.unwrap_or_default());
        }
        let Some(wait) = wait else {
            return;
        };
        let denied = counters.clone().zip(&answer.counters);
        let denied = denied.map(|(line, judged)| CachedCounter {
            limit: line.limit.id(),
            any_cost: line.limit.rule().snapshot_ignores_cost(),
            key: *line.key,
            units: line.units,
            snapshot: judged.snapshot,
        });
        let hash = self.place(counters.clone()).hash;
        let denial = CachedRejection {
            hash,
            counters: denied.collect(),
            judged: answer.at,
            asked,
            answered,
            until: asked + wait,
            firm_until: asked + firm,
            epoch: mark.epoch,
            changes: mark.changes,
        };
        let more = self.lock(hash).add(denial, counters, answered, self.most);
        self.count(more);
    }

    /// Invalidates the entries of all requests for these keys, under every quota, and those of requests in flight.
    pub(crate) fn end<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) {
        for line in counters {
            self.counter(self.hash(&line))
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
        self.epoch.start_read(now, self.bound / 2).then_some(now)
    }

    /// Stores the epoch that was requested at `read`, when the server's clock showed `time`.
    pub(crate) fn note_epoch(&self, epoch: &str, time: Timestamp, read: Timestamp) {
        self.epoch.note(epoch, time, read, self.bound);
    }

    pub(crate) fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    fn place<'a>(&self, counters: impl Iterator<Item = CacheKey<'a>>) -> CacheSlot {
        let none = CacheSlot {
            hash: 0,
            changes: 0,
        };
        counters.fold(none, |CacheSlot { hash, changes }, line| {
            let own = self.hash(&line);
            let of_line = self.counter(own).load(Ordering::Acquire);
            CacheSlot {
                hash: hash.rotate_left(5) ^ own,
                changes: changes.wrapping_add(of_line),
            }
        })
    }

    /// A hash of the policy and the key: the quota, and with it the limit, may differ between requests.
    fn hash(&self, line: &CacheKey<'_>) -> u64 {
        self.hasher.hash_one((line.limit.policy(), line.key))
    }

    fn counter(&self, hash: u64) -> &AtomicU64 {
        &self.changes[hash as usize % COUNTERS]
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[(hash >> 40) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, more: isize) {
        if more != 0 {
            self.len.fetch_add(more, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for RejectionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denials")
            .field("bound", &self.bound)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
