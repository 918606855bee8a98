//! The in-process store.

use std::{fmt, future::ready, num::NonZeroUsize, sync::Arc};

use smallvec::SmallVec;

use self::shards::Shards;
use super::{
    BlockedKeysFuture, CallersFuture, Completion, CounterMode, CounterOp, CounterResult, KeepAlive,
    LimitHandle, Op, OpResult, OverrideFuture, Store, StoreAdmin, StoreResponse,
    overrides::{MAX_OVERRIDES, Override, OverrideTable},
};
use crate::{
    clock::{Clock, SystemClock, Timestamp, wall_offset_us},
    error::{InvalidValue, StoreError, overrides::OverrideError},
    key::Key,
    observe::StoreStats,
    strategy::{ErasedLocalRule, Rule},
};

mod shards;

/// A store in the memory of the process, exact under any number of threads. Clones share their counts.
///
/// Keys are spread over shards, each with its own lock. A key whose quota is full again is removed when other keys are charged;
/// there is no background thread.
///
/// It counts by a monotonic clock, which begins with the wall clock's time when the process first reads it: a step of the wall
/// clock neither refills nor withholds a quota. [Calendar windows](crate::CalendarWindow) follow the wall clock.
///
/// # When it is full
///
/// It holds at most [`max_keys`](MemoryStoreBuilder::max_keys), and a policy may use all the room that others leave. When that
/// many are in use, keys are **evicted** for a new one, and their next request finds a full quota. They are taken from policies with
/// more than an equal share, the largest first, and else from the policy of the new key. Those that have used the least of their
/// quota go first:
///
/// - **Another policy's keys** evict none of a policy that has no more than an equal share: `max_keys` divided by the number of
///   policies with keys. If keys that are never evicted take more than their policy's share, the others have equal shares of the
///   rest.
/// - **A policy's own keys** are evicted an eighth at a time. So an exhausted key stays, however many keys a client makes up,
///   unless it exhausts seven eighths of the policy's keys too. Under a quota of one request, one request exhausts a key.
/// - **Bans** outlast all counts of rejections under their policy; of bans, the one that ends first is evicted.
/// - **Permits** that are held and keys that are [blocked by hand](crate::Limiter::block) are never evicted; those whose
///   block was only [prolonged](crate::Limiter::prolong_block) may be, the one that ends first before others. If they fill the store,
///   there is no room for new keys of any policy: count permits by keys that clients can't make up, or in a store of their own.
/// - **A key without room**, since nothing can be evicted for it, is a [`StoreError::Full`](crate::StoreError::Full): the request
///   is handled as [`OnStoreError`](crate::OnStoreError) says. A rejection that a [ban](crate::Ban) can't count stays a
///   rejection.
///
/// Keys are compared by the share of their quota that is in use, or under [`Gcra`](crate::Gcra) and
/// [`TokenBucket`](crate::TokenBucket) by the time until it is full again: of a policy's quotas with different times to refill, the
/// slower count as used more. This holds within each shard. A store of fewer than 2,048 keys has one shard, a larger one up to 64 of at
/// least 1,024 keys, to which keys are assigned by their hash, so that shares differ from shard to shard by a few percent.
///
/// [`dropped`](MemoryStore::dropped) counts evictions; if it isn't zero, allow more keys, or choose keys that clients can't make
/// up.
///
/// ```
/// use std::num::NonZeroUsize;
/// use tollgate::{Key, Limiter, MemoryStore, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStore::builder().max_keys(NonZeroUsize::MIN.saturating_add(999_999)).build();
/// let limiter = Limiter::builder()
///     .store(store)
///     .policy(Policy::new("logins", Quota::requests(1).per_minute()))
///     .build()?;
/// assert!(limiter.check(Key::new("alice")).await.is_admitted());
/// assert!(!limiter.check(Key::new("alice")).await.is_admitted());
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shards: Arc<Shards>,
    overrides: Arc<OverrideTable>,
}

impl MemoryStore {
    /// The number of keys that are stored now. Some may have their full quota again and not be removed yet.
    pub fn keys(&self) -> usize {
        self.shards.len()
    }

    /// The number of keys that the store holds at most.
    #[cfg(feature = "config")]
    pub(crate) fn max_keys(&self) -> std::num::NonZeroUsize {
        self.shards.max_keys
    }

    /// The number of keys with units in use that were evicted since the store was built.
    pub fn dropped(&self) -> u64 {
        self.shards.dropped()
    }

    /// Whether it is a clone of `other`.
    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shards, &other.shards)
    }

    #[inline]
    fn run(&self, op: Op, counters: &[CounterOp<'_>]) -> Result<OpResult, StoreError> {
        if let (Op::Acquire(times), [counter]) = (op, counters)
            && counter.mode == CounterMode::Charge
            && !counter.limit.info().records_caller
            && let Some((at, admitted, snapshot)) =
                self.shards
                    .try_charge_existing(counter.limit, &counter.key, times, counter.units)
        {
            let counter = CounterResult::new(counter.units.of(admitted), snapshot);
            let counters = SmallVec::from_buf([counter]);
            return Ok(OpResult::of(at, admitted, counters));
        }
        self.shards.execute(op, counters)
    }
}

/// Permits that a request holds. Dropping it lets them expire.
struct Held {
    shards: Arc<Shards>,
    /// The limit, key and caller of each.
    permits: SmallVec<[(LimitHandle, Key, Key); 1]>,
}

impl Held {
    fn new(shards: &Arc<Shards>, counters: &[CounterOp<'_>]) -> Self {
        let permits = counters.iter();
        let permits = permits.map(|permit| (permit.limit.clone(), permit.key, permit.caller));
        let held = Self {
            shards: shards.clone(),
            permits: permits.collect(),
        };
        held.set(true);
        held
    }

    fn set(&self, is_held: bool) {
        for (limit, key, caller) in &self.permits {
            self.shards.hold(limit, key, caller, is_held);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// The half of a rule that counts in process.
pub(crate) fn local_rule(rule: &dyn Rule) -> Result<ErasedLocalRule<'_>, InvalidValue> {
    rule.local_rule().ok_or_else(|| {
        InvalidValue::new(
            format!("{rule:?}, which counts on Redis only"),
            "a strategy with an in-process half, or a RedisStore",
        )
    })
}

impl Store for MemoryStore {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        let table = self.shards.table(policy, &*rule)?;
        Ok(LimitHandle::new(policy, rule, table))
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        StoreResponse::Ready(self.run(op, counters))
    }

    fn execute_now(
        &self,
        op: Op,
        counters: &[CounterOp<'_>],
    ) -> Option<Result<OpResult, StoreError>> {
        Some(self.run(op, counters))
    }

    fn keep_alive(&self, counters: &[CounterOp<'_>]) -> Option<KeepAlive> {
        Some(KeepAlive::new(Held::new(&self.shards, counters)))
    }

    fn wall(&self, at: Timestamp) -> Timestamp {
        at.shifted(wall_offset_us(&*self.shards.clock))
    }

    fn stats(&self) -> StoreStats {
        StoreStats {
            memory_keys: Some(self.keys() as u64),
            memory_evictions: Some(self.dropped()),
            ..StoreStats::default()
        }
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>) {
        let result = self.run(op, counters);
        if let Err(error) = &result {
            self.shards.log_uncounted(error);
        }
        if let Some(completion) = completion {
            completion.complete(result);
        }
    }

    fn admin(&self) -> Option<&dyn StoreAdmin> {
        Some(self)
    }
}

impl StoreAdmin for MemoryStore {
    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        let callers = self.shards.recorded_callers(limit, key);
        Box::pin(ready(Ok(callers.unwrap_or_default())))
    }

    fn blocked_keys(&self, limits: &[LimitHandle], max: usize) -> BlockedKeysFuture {
        Box::pin(ready(self.shards.blocked_keys(limits, max)))
    }

    fn overrides(&self) -> Option<&OverrideTable> {
        Some(&self.overrides)
    }

    fn set_override(&self, policy: &str, key: &Key, setting: Option<Override>) -> OverrideFuture {
        let table = &self.overrides;
        let changed = match setting {
            None => Ok(table.remove(policy, key)),
            Some(setting) if setting.has_ended(table.now()) => Err(OverrideError::Ended),
            Some(setting) => {
                let has_room = || table.get(policy, key).is_some() || table.len() < MAX_OVERRIDES;
                if !has_room() {
                    table.remove_ended();
                }
                if has_room() {
                    Ok(table.set(policy, *key, setting))
                } else {
                    Err(OverrideError::TooMany { max: MAX_OVERRIDES })
                }
            }
        };
        Box::pin(ready(changed))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("clock", &self.shards.clock)
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}

/// The keys that a store holds by default.
pub(crate) const DEFAULT_MAX_KEYS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999_999);

/// Builds a [`MemoryStore`].
#[derive(Debug)]
#[must_use]
pub struct MemoryStoreBuilder {
    max_keys: NonZeroUsize,
    clock: Arc<dyn Clock>,
}

impl MemoryStore {
    /// A store with the defaults of [`builder`](MemoryStore::builder).
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder of a store.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::default()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for MemoryStoreBuilder {
    fn default() -> Self {
        Self {
            max_keys: DEFAULT_MAX_KEYS,
            clock: Arc::new(SystemClock),
        }
    }
}

impl MemoryStoreBuilder {
    /// Sets the number of keys that the store holds at most, of all policies together, and at least as many as a request has
    /// policies. Default: 1,000,000, which take about 100 MB. [`MemoryStore`] says which keys are evicted when it is full.
    pub fn max_keys(mut self, keys: NonZeroUsize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets the clock that the store counts by. Default: [`SystemClock`].
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the store.
    pub fn build(self) -> MemoryStore {
        let overrides = OverrideTable::by(self.clock.clone());
        let shards = Shards::new(self.clock, self.max_keys);
        MemoryStore {
            shards: Arc::new(shards),
            overrides: Arc::new(overrides),
        }
    }
}
