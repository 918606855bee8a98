//! The keys of this process that have leases, and what is counted of them.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::sync::Notify;

use super::{
    demand::HotKeyDetector,
    grant::DueLease,
    held_lease::{ClockReading, LeaseRequest, Unspent},
    leased_key::LeasedKey,
    refund_schedule::RefundSchedule,
};
use crate::{
    clock::Timestamp,
    observe::LeaseStats,
    redis::{
        io::Io,
        request::{Recorder, op::CounterOps},
    },
    store::{CounterMode, CounterOp, LimitHandle, Op, OpResult},
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
    key_id: u64,
    requested_at: Timestamp,
}

impl Recorder for ResponseRecorder {
    #[cold]
    fn record(&self, result: &OpResult) {
        self.record_at(ClockReading::read().monotonic, result);
    }
}

impl ResponseRecorder {
    pub(super) fn record_at(&self, now: Timestamp, result: &OpResult) {
        self.leases.with_key(self.hash, self.key_id, |key| {
            key.record_response(self.requested_at, result, now);
        });
    }

    /// The lease of one request's units, for a request that is not sent, if the key has none that is requested.
    #[cold]
    pub(in crate::redis) fn lease_of_one(self, counters: &[CounterOp<'_>]) -> Option<DueLease> {
        let lease = |key: &mut LeasedKey| key.lease_of_one(counters, ClockReading::read());
        let request = self.leases.with_key(self.hash, self.key_id, lease)??;
        Some(DueLease {
            leases: self.leases,
            hash: self.hash,
            request,
        })
    }
}

/// Shards of the keys, each under a lock of its own.
const SHARDS: usize = 16;

/// The most keys of a shard: 4,096 in all.
const MAX_SHARD_KEYS: usize = 256;

/// How often a full shard is searched for idle keys.
pub(super) const EVICTION_INTERVAL: Duration = Duration::from_millis(100);

/// The leases of a store in this process.
pub(in crate::redis) struct Leases {
    pub(super) io: Weak<Io>,
    /// Whether a limit with leases was registered.
    pub(super) is_used: AtomicBool,
    pub(super) hot_keys: HotKeyDetector,
    /// The ID of the next key.
    pub(super) next_id: AtomicU64,
    pub(super) hasher: DefaultHashBuilder,
    pub(super) shards: [CachePadded<Mutex<Shard>>; SHARDS],
    /// The keys in all shards.
    pub(super) keys: AtomicUsize,
    pub(super) refund_schedule: RefundSchedule,
    /// Refunds without a response, and those that are about to be sent.
    pub(super) unsettled: AtomicU64,
    /// Notified when the request of a lease has failed, or a refund or lease is settled.
    pub(super) settled: Notify,
    pub(super) totals: Totals,
}

#[derive(Default)]
pub(super) struct Shard {
    pub(super) keys: HashTable<LeasedKey>,
    /// The spent units of keys that were removed.
    spent: Vec<LeaseStats>,
    /// When it was last searched for idle keys while it was full.
    last_eviction: Option<Timestamp>,
}

impl Leases {
    pub(in crate::redis) fn new(io: Weak<Io>) -> Arc<Self> {
        Arc::new(Self {
            io,
            is_used: AtomicBool::new(false),
            hot_keys: HotKeyDetector::new(),
            next_id: AtomicU64::new(0),
            hasher: DefaultHashBuilder::default(),
            shards: std::array::from_fn(|_| CachePadded::default()),
            keys: AtomicUsize::new(0),
            refund_schedule: RefundSchedule::default(),
            unsettled: AtomicU64::new(0),
            settled: Notify::new(),
            totals: Totals::default(),
        })
    }

    /// Records a limit that was registered.
    pub(in crate::redis) fn record_limit(&self, limit: &LimitHandle) {
        if limit.info().lease.is_some() {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Decides a request by units that are held for it.
    #[inline]
    pub(in crate::redis) fn decide(
        self: &Arc<Self>,
        op: Op,
        counters: &[CounterOp<'_>],
    ) -> LeaseDecision {
        if !self.is_used.load(Ordering::Relaxed) {
            return LeaseDecision::default();
        }
        self.decide_leased(op, counters)
    }

    #[inline(never)]
    fn decide_leased(self: &Arc<Self>, op: Op, counters: &[CounterOp<'_>]) -> LeaseDecision {
        if op != Op::Acquire(1) || !is_leasable(counters) {
            return LeaseDecision::default();
        }
        self.decide_by(counters, ClockReading::read)
    }

    /// Decides a request by the time of `clock`.
    pub(super) fn decide_by(
        self: &Arc<Self>,
        counters: &[CounterOp<'_>],
        clock: impl Fn() -> ClockReading,
    ) -> LeaseDecision {
        let hash = self.hash(counters);
        if self.keys.load(Ordering::Relaxed) > 0
            && let Some(decision) = self.decide_by_key(hash, counters, &clock)
        {
            return decision;
        }
        let now = clock().monotonic;
        if self.hot_keys.record(hash, now) {
            self.add(hash, counters, now);
        }
        LeaseDecision::default()
    }

    /// Decides a request by its key; `None` if the key has no leases.
    #[inline]
    fn decide_by_key(
        self: &Arc<Self>,
        hash: u64,
        counters: &[CounterOp<'_>],
        clock: impl Fn() -> ClockReading,
    ) -> Option<LeaseDecision> {
        let mut shard = self.shard(hash);
        let key = shard
            .keys
            .find_mut(hash, |key| key.matches(hash, counters))?;
        // Under the lock, so that no thread spends a unit late because it waited for the lock.
        let now = clock();
        let (result, request) = key.decide(counters, now);
        let key_id = key.id;
        drop(shard);
        let recorder = result.is_none().then(|| ResponseRecorder {
            leases: self.clone(),
            hash,
            key_id,
            requested_at: now.monotonic,
        });
        let due = request.map(|request| DueLease {
            leases: self.clone(),
            hash,
            request,
        });
        Some(LeaseDecision {
            result,
            due,
            recorder,
        })
    }

    /// Adds a hot key, if its shard has room.
    #[cold]
    fn add(&self, hash: u64, counters: &[CounterOp<'_>], now: Timestamp) {
        let io = self.io.upgrade();
        let keys = counters.iter().map(|counter| &counter.key);
        if io.is_none_or(|io| io.spans_slots(keys)) {
            return;
        }
        let mut shard = self.shard(hash);
        if shard
            .keys
            .find(hash, |key| key.matches(hash, counters))
            .is_some()
        {
            return;
        }
        if shard.keys.len() >= MAX_SHARD_KEYS {
            self.evict(&mut shard, now);
        }
        if shard.keys.len() < MAX_SHARD_KEYS {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let key = LeasedKey::new((id, hash), counters, now);
            shard.keys.insert_unique(hash, key, |key| key.hash);
            self.keys.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes idle keys of a full shard.
    pub(super) fn evict(&self, shard: &mut Shard, now: Timestamp) {
        let last = shard.last_eviction;
        if last.is_some_and(|last| now.since(last) < EVICTION_INTERVAL) {
            return;
        }
        shard.last_eviction = Some(now);
        let Shard { keys, spent, .. } = shard;
        let before = keys.len();
        keys.retain(|key| {
            let is_idle = key.is_idle(now);
            if is_idle {
                add_units(spent, key);
            }
            !is_idle
        });
        self.keys.fetch_sub(before - keys.len(), Ordering::Relaxed);
    }

    /// Takes the leases of some keys.
    pub(super) fn reclaim(
        &self,
        mut is_taken: impl FnMut(&LeasedKey) -> bool,
        take: impl Fn(&mut LeasedKey) -> Vec<Unspent>,
    ) -> Vec<Unspent> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            for key in shard.keys.iter_mut().filter(|key| is_taken(key)) {
                taken.append(&mut take(key));
            }
        }
        taken
    }

    /// Whether a lease has no response yet that was requested at this moment or before.
    pub(super) fn awaits_requested_by(&self, moment: Timestamp) -> bool {
        let waits = |shard: &CachePadded<Mutex<Shard>>| {
            let keys = &lock(shard).keys;
            keys.iter().any(|key| key.awaits_requested_by(moment))
        };
        self.shards.iter().any(waits)
    }

    /// The number of refunds without a response, and of those that are about to be sent.
    pub(in crate::redis) fn unsettled(&self) -> u64 {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// The units of leases by policy, in this process. None of the counts ever falls, but that of held ones.
    pub(in crate::redis) fn stats(&self) -> Vec<LeaseStats> {
        let mut stats = self.totals.stats();
        for shard in &self.shards {
            let shard = lock(shard);
            for removed in &shard.spent {
                let stats = stats_of_policy(&mut stats, &removed.policy);
                stats.spent = stats.spent.saturating_add(removed.spent);
            }
            for key in &shard.keys {
                add_units(&mut stats, key);
            }
        }
        stats
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

    /// Calls `f` with the key of this ID, under its lock, if it is there.
    pub(super) fn with_key<T>(
        &self,
        hash: u64,
        key_id: u64,
        f: impl FnOnce(&mut LeasedKey) -> T,
    ) -> Option<T> {
        let mut shard = self.shard(hash);
        let mut keys = shard.keys.iter_hash_mut(hash);
        keys.find(|key| key.id == key_id).map(f)
    }

    /// The shard of keys with this hash.
    pub(super) fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(hash >> 40) as usize % SHARDS])
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

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// The units that were leased since the store was built, except spent ones and those that a [`LeasedKey`] holds.
#[derive(Debug, Default)]
pub(super) struct Totals(Mutex<Vec<LeaseStats>>);

impl Totals {
    /// Adds units that were charged for a lease.
    pub(super) fn grant(&self, request: &LeaseRequest, result: &OpResult) {
        self.add(
            &request.counters,
            Some(result),
            |stats| [&mut stats.granted],
        );
    }

    /// Adds units that were charged for a lease, and are neither spent nor refunded.
    pub(super) fn lapse_charge(&self, request: &LeaseRequest, result: &OpResult) {
        self.add(&request.counters, Some(result), |stats| [&mut stats.lapsed]);
    }

    /// Adds the units of a lease that may have been charged, and has no response.
    pub(super) fn lose(&self, request: &LeaseRequest) {
        self.add(&request.counters, None, |stats| {
            [&mut stats.granted, &mut stats.lapsed]
        });
    }

    /// Adds units that were held and are not refunded.
    pub(super) fn lapse(&self, unspent: &Unspent) {
        self.add(&unspent.counters, None, |stats| [&mut stats.lapsed]);
    }

    /// Adds units whose refund is sent. They are held until it has a result.
    pub(super) fn begin_refund(&self, unspent: &Unspent) {
        self.add(&unspent.counters, None, |stats| [&mut stats.held]);
    }

    /// Adds units whose refund was sent, refunded as far as its result says.
    pub(super) fn refund(&self, unspent: &Unspent, result: Option<&OpResult>) {
        let mut all = self.all();
        for (index, counter) in unspent.counters.iter().enumerate() {
            let refunded = result.and_then(|result| result.counters.get(index));
            let refunded = refunded.map_or(0, |counter| counter.units);
            let (stats, units) = (
                stats_of_policy(&mut all, counter.limit.policy()),
                counter.units.get(),
            );
            stats.held = stats.held.saturating_sub(units);
            let lapsed = units.saturating_sub(refunded);
            stats.refunded = stats.refunded.saturating_add(refunded);
            stats.lapsed = stats.lapsed.saturating_add(lapsed);
        }
    }

    /// Adds the units of each counter, or those that were charged for it, to some totals of its policy.
    fn add<const N: usize>(
        &self,
        counters: &CounterOps,
        charged: Option<&OpResult>,
        totals: impl Fn(&mut LeaseStats) -> [&mut u64; N],
    ) {
        let mut all = self.all();
        for (index, counter) in counters.iter().enumerate() {
            let charged =
                charged.map(|result| result.counters.get(index).map_or(0, |own| own.units));
            let units = charged.unwrap_or(counter.units.get());
            if units > 0 {
                for total in totals(stats_of_policy(&mut all, counter.limit.policy())) {
                    *total = total.saturating_add(units);
                }
            }
        }
    }

    pub(super) fn stats(&self) -> Vec<LeaseStats> {
        self.all().clone()
    }

    fn all(&self) -> MutexGuard<'_, Vec<LeaseStats>> {
        lock(&self.0)
    }
}

/// Adds the units that a key holds and has spent.
pub(super) fn add_units(all: &mut Vec<LeaseStats>, key: &LeasedKey) {
    for (counter, units) in key
        .units()
        .filter(|(counter, _)| counter.limit.info().lease.is_some())
    {
        let stats = stats_of_policy(all, counter.limit.policy());
        let held = units.held.saturating_add(units.ended);
        stats.held = stats.held.saturating_add(held);
        stats.spent = stats.spent.saturating_add(units.spent);
    }
}

/// The units of a policy, which are added if there are none.
pub(super) fn stats_of_policy<'a>(
    all: &'a mut Vec<LeaseStats>,
    policy: &str,
) -> &'a mut LeaseStats {
    let index = all.iter().position(|stats| &*stats.policy == policy);
    let index = index.unwrap_or_else(|| {
        all.push(LeaseStats::new(Arc::from(policy)));
        all.len() - 1
    });
    &mut all[index]
}
