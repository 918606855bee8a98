//! The keys of this process that have leases, and what is counted of them.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{
    demand::HotKeyDetector,
    grant::DueLease,
    held_lease::{ClockReading, Unspent},
    leased_key::{LeasedKey, is_same},
};
use crate::{
    clock::Timestamp,
    observe::LeaseStats,
    redis::{
        io::Io,
        request::op::{CounterOps, OwnedCounterOp},
    },
    store::{CounterMode, CounterOp, Op, OpResult},
    sync::{CachePadded, lock},
};

/// A decision on a request, and what is to be done about the leases of its key.
#[derive(Default)]
pub(in crate::redis) struct LeaseDecision {
    /// `None` if the store decides.
    pub(in crate::redis) result: Option<OpResult>,
    pub(in crate::redis) due: Option<DueLease>,
    /// Gets the store's response.
    pub(in crate::redis) recorder: Option<ResponseRecorder>,
}

/// Records the store's response to a request that the leases of its key did not decide.
#[derive(Debug)]
pub(in crate::redis) struct ResponseRecorder {
    leases: Arc<Leases>,
    hash: u64,
    requested_at: Timestamp,
}

impl ResponseRecorder {
    #[cold]
    pub(in crate::redis) fn record(&self, result: &OpResult) {
        self.record_at(ClockReading::read().monotonic, result);
    }

    pub(super) fn record_at(&self, now: Timestamp, result: &OpResult) {
        if let Some(key) = self.leases.shard(self.hash).key(self.hash) {
            key.record_response(self.requested_at, result, now);
        }
    }

    /// The lease of one request's units, for a request that is not sent, if the key has none that is requested.
    #[cold]
    pub(in crate::redis) fn lease_of_one(self, counters: &[CounterOp<'_>]) -> Option<DueLease> {
        let mut shard = self.leases.shard(self.hash);
        let key = shard.key(self.hash)?;
        let request = key.lease_of_one(counters, ClockReading::read())?;
        Some(DueLease::new(&self.leases, request))
    }
}

/// Shards of the keys, each under a lock of its own.
const SHARDS: usize = 16;

/// The most keys of a shard: 4,096 in all.
const MAX_SHARD_KEYS: usize = 256;

/// How often a full shard is searched for idle keys.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);

/// The leases of a store in this process.
pub(in crate::redis) struct Leases {
    pub(super) io: Arc<Io>,
    hasher: DefaultHashBuilder,
    pub(super) shards: [CachePadded<Mutex<Shard>>; SHARDS],
    /// Leases that are requested, and units that are about to be refunded.
    pub(super) unsettled: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Shard {
    /// No two of them have the same hash.
    pub(super) keys: HashTable<LeasedKey>,
    hot_keys: HotKeyDetector,
    /// The units of its keys, except those that a key has spent.
    pub(super) totals: Totals,
    /// When it was last searched for idle keys while it was full.
    last_eviction: Option<Timestamp>,
}

impl Leases {
    pub(in crate::redis) fn new(io: Arc<Io>) -> Arc<Self> {
        Arc::new(Self {
            io,
            hasher: DefaultHashBuilder::default(),
            shards: std::array::from_fn(|_| CachePadded::default()),
            unsettled: AtomicUsize::new(0),
        })
    }

    /// Decides a request by units that are held for it.
    #[inline]
    pub(in crate::redis) fn decide(
        self: &Arc<Self>,
        op: Op,
        counters: &[CounterOp<'_>],
    ) -> LeaseDecision {
        if op == Op::Acquire(1) && is_leasable(counters) {
            self.decide_by(counters, ClockReading::read)
        } else {
            LeaseDecision::default()
        }
    }

    /// Decides a request by the time of `clock`.
    #[inline(never)]
    pub(super) fn decide_by(
        self: &Arc<Self>,
        counters: &[CounterOp<'_>],
        clock: impl Fn() -> ClockReading,
    ) -> LeaseDecision {
        let hash = self.hash(counters);
        let mut shard = self.shard(hash);
        let key = shard.keys.find_mut(hash, |key| key.matches(hash, counters));
        // Under the lock, so that no thread spends a unit late because it waited for the lock.
        let now = clock();
        let Some(key) = key else {
            if shard.hot_keys.record(hash, now.monotonic) {
                self.add(&mut shard, hash, counters, now.monotonic);
            }
            return LeaseDecision::default();
        };
        let (result, request) = key.decide(counters, now);
        let due = request.map(|request| DueLease::new(self, request));
        drop(shard);
        let recorder = result.is_none().then(|| ResponseRecorder {
            leases: self.clone(),
            hash,
            requested_at: now.monotonic,
        });
        LeaseDecision {
            result,
            due,
            recorder,
        }
    }

    /// Adds a hot key, if its shard has room.
    #[cold]
    fn add(&self, shard: &mut Shard, hash: u64, counters: &[CounterOp<'_>], now: Timestamp) {
        let keys = counters.iter().map(|counter| &counter.key);
        if self.io.spans_slots(keys) || shard.key(hash).is_some() {
            return;
        }
        if shard.keys.len() >= MAX_SHARD_KEYS {
            shard.evict(now);
        }
        if shard.keys.len() < MAX_SHARD_KEYS {
            let key = LeasedKey::new(hash, counters, now);
            shard.keys.insert_unique(hash, key, |key| key.hash);
        }
    }

    /// Ends leases when a key is reset or banned; lifting a ban changes no lease.
    pub(in crate::redis) fn invalidate_on(self: &Arc<Self>, op: Op, counters: &[CounterOp<'_>]) {
        for counter in counters {
            let is_ban = counter.limit.info().counts_rejections;
            match op {
                Op::Reset if !is_ban => self.reset(counter, counters),
                Op::Adjust if is_ban && counter.receipt.is_none() => {
                    let banned = self.take(|key| key.has_counter(counter), LeasedKey::release);
                    banned.into_iter().for_each(|unspent| self.refund(unspent));
                }
                _ => {}
            }
        }
    }

    /// Ends the leases of a counter, one of those that are reset.
    fn reset(self: &Arc<Self>, counter: &CounterOp<'_>, counters: &[CounterOp<'_>]) {
        for unspent in self.take(|key| key.has_counter(counter), LeasedKey::discard_for_reset) {
            let is_reset = |own: &OwnedCounterOp| counters.iter().any(|reset| is_same(own, reset));
            let (reset, others): (CounterOps, CounterOps) =
                unspent.counters.into_iter().partition(is_reset);
            // It may have been done: a refund could take units that were charged after it.
            let mut shard = self.shard(unspent.hash);
            shard
                .totals
                .add(units_of(&reset), |stats| &mut stats.lapsed);
            drop(shard);
            self.refund(Unspent {
                hash: unspent.hash,
                counters: others,
            });
        }
    }

    /// Refunds all units that are held. Those of leases that are requested are refunded when they come.
    pub(in crate::redis) fn release_all(self: &Arc<Self>) {
        let unspent = self.take(|_| true, LeasedKey::release);
        unspent.into_iter().for_each(|unspent| self.refund(unspent));
    }

    /// Whether leases are requested, or units are about to be refunded.
    pub(in crate::redis) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) > 0
    }

    /// Takes the leases of some keys, which request none for a while.
    fn take(
        &self,
        is_taken: impl Fn(&LeasedKey) -> bool,
        take: impl Fn(&mut LeasedKey) -> Vec<Unspent>,
    ) -> Vec<Unspent> {
        let now = ClockReading::read().monotonic;
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            for key in shard.keys.iter_mut().filter(|key| is_taken(key)) {
                key.pause(now);
                taken.append(&mut take(key));
            }
        }
        taken
    }

    /// The units of leases by policy, in this process.
    pub(in crate::redis) fn stats(&self) -> Vec<LeaseStats> {
        let mut all = Totals::default();
        for shard in &self.shards {
            let shard = lock(shard);
            for own in &shard.totals.0 {
                let stats = all.of_policy(&own.policy);
                stats.granted += own.granted;
                stats.spent += own.spent;
                stats.refunded += own.refunded;
                stats.lapsed += own.lapsed;
            }
            shard.keys.iter().for_each(|key| all.add_spent(key));
        }
        for stats in &mut all.0 {
            let ended = stats.spent + stats.refunded + stats.lapsed;
            stats.held = stats.granted.saturating_sub(ended);
        }
        all.0
    }

    fn hash(&self, counters: &[CounterOp<'_>]) -> u64 {
        let hashes = counters.iter().map(|counter| {
            let caller = counter
                .limit
                .info()
                .records_caller
                .then_some(&counter.caller);
            self.hasher
                .hash_one((counter.limit.id(), &counter.key, caller))
        });
        hashes.fold(0, |all, hash| all.rotate_left(5) ^ hash)
    }

    /// The shard of keys with this hash.
    pub(super) fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 40) as usize % SHARDS])
    }
}

impl Shard {
    /// The key with this hash.
    pub(super) fn key(&mut self, hash: u64) -> Option<&mut LeasedKey> {
        self.keys.find_mut(hash, |key| key.hash == hash)
    }

    /// Removes idle keys, at most once in an interval.
    fn evict(&mut self, now: Timestamp) {
        let last = self.last_eviction;
        if last.is_some_and(|last| now.since(last) < EVICTION_INTERVAL) {
            return;
        }
        self.last_eviction = Some(now);
        let totals = &mut self.totals;
        self.keys.retain(|key| {
            let is_idle = key.is_idle(now);
            if is_idle {
                totals.add_spent(key);
            }
            !is_idle
        });
    }
}

/// Whether a lease can decide a request: each counter charges under a limit with leases, or is a ban.
fn is_leasable(counters: &[CounterOp<'_>]) -> bool {
    let mut charges = false;
    for counter in counters {
        match counter.mode {
            CounterMode::Charge if counter.limit.info().lease.is_some() => {
                charges |= !counter.units.is_zero();
            }
            CounterMode::CountRejections => {}
            _ => return false,
        }
    }
    charges
}

/// The units of each counter.
pub(super) fn units_of(
    counters: &CounterOps,
) -> impl Iterator<Item = (&OwnedCounterOp, u64)> + Clone {
    counters.iter().map(|own| (own, own.units.get()))
}

/// The units of leases by policy. What is held is what has not become anything else.
#[derive(Debug, Default)]
pub(super) struct Totals(Vec<LeaseStats>);

impl Totals {
    /// Adds the units of some counters to one total of their policies.
    pub(super) fn add<'a>(
        &mut self,
        units: impl IntoIterator<Item = (&'a OwnedCounterOp, u64)>,
        total: fn(&mut LeaseStats) -> &mut u64,
    ) {
        for (counter, units) in units.into_iter().filter(|(_, units)| *units > 0) {
            let total = total(self.of_policy(counter.limit.policy()));
            *total = total.saturating_add(units);
        }
    }

    fn add_spent(&mut self, key: &LeasedKey) {
        self.add(key.spent(), |stats| &mut stats.spent);
    }

    /// The units of a policy, which are added if there are none.
    fn of_policy(&mut self, policy: &str) -> &mut LeaseStats {
        let all = &mut self.0;
        let index = all.iter().position(|stats| &*stats.policy == policy);
        let index = index.unwrap_or_else(|| {
            all.push(LeaseStats::new(Arc::from(policy)));
            all.len() - 1
        });
        &mut all[index]
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").finish_non_exhaustive()
    }
}
