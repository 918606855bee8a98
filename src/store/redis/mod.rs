//! Counting on Redis, for any number of processes.

use std::{
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Handle;

use self::{
    batch::RedisLimit,
    breaker::Breaker,
    key_names::KeyNames,
    pending_refunds::PendingRefunds,
    rejection_cache::{CacheKey, RejectionCache, epoch_key::EpochKey},
    request::op::{CounterOps, OwnedCounterOp},
    script::{Script, ScriptRegistry, StrategyScript},
    topology::Topology,
    worker::pool::WorkerPool,
};
use super::{
    CallersFuture, CounterOp, FlushFuture, HealthFuture, LimitHandle, Op, Store, StoreResponse,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    error::{ConfigError, InvalidValue, StoreError},
    key::Key,
    log::Seldom,
    strategy::Rule,
};

mod batch;
pub(crate) mod breaker;
mod builder;
mod cluster;
mod config;
pub(crate) mod connection;
pub(crate) mod cross_slot;
pub(crate) mod error_class;
pub(crate) mod hash_tags;
pub(crate) mod health;
pub(crate) mod key_names;
pub(crate) mod limit;
pub(crate) mod pending_refunds;
pub(crate) mod rejection_cache;
pub(crate) mod request;
mod script;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "fuzz targets reach it"))]
pub(crate) mod testing;
pub(crate) mod topology;
pub(crate) mod worker;

pub use builder::RedisStoreBuilder;

/// Counts on Redis 6.2 or newer, exactly, for any number of processes, by the server's clock.
///
/// Connections come from a [deadpool-redis](deadpool_redis) pool. One of them in each runtime, the lane, carries all
/// requests: on each trip it takes along, in one script call, what arrived while its last trip was under way, and equal
/// questions as one; when so many wait that they are worth a call of their own, they go at once. Nothing is connected or
/// spawned before the first request, so an application starts while Redis is down.
///
/// A request that is known to be rejected is [rejected in process](RedisStoreBuilder::rejection_cache_staleness), until its wait has passed.
///
/// Every question has a [timeout](RedisStoreBuilder::timeout). When it passes, or the server is at fault, the limiter
/// answers as [`on_store_error`](crate::LimiterBuilder::on_store_error) says. A question that timed out may have been
/// charged: at most one request's cost, gone with its period. A server that is dead is not asked again until it answers a
/// [probe](RedisStoreBuilder::circuit_breaker_threshold).
///
/// ```no_run
/// use tollgate::{Limiter, Policy, Quota, RedisStore};
///
/// let limiter = Limiter::builder()
///     .store(RedisStore::open("redis://127.0.0.1:6379")?)
///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
///     .build()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<StoreState>,
    workers: Arc<WorkerPool>,
}

/// What the lanes share.
#[derive(Debug)]
pub(crate) struct StoreState {
    /// Equal for stores that were opened alike.
    id: u64,
    topology: Topology,
    prefix: String,
    scripts: RwLock<ScriptRegistry>,
    deadline: Duration,
    /// One for each hash tag: one, but on a cluster, whose masters don't die together.
    breakers: Box<[Arc<Breaker>]>,
    pending_refunds: PendingRefunds,
    rejection_cache: RejectionCache,
    /// None on a cluster.
    epoch: Option<EpochKey>,
    /// How far the server's clock is ahead of this machine's, in microseconds.
    ahead: AtomicI64,
    /// Logs that a breaker opened: on a cluster there is one for each hash tag.
    opened: Seldom,
    closed: Seldom,
}

impl StoreState {
    /// About what the server's clock shows.
    fn server_time(&self) -> Timestamp {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Timestamp::from_micros(SystemClock.now().as_micros().saturating_add(ahead))
    }

    fn update_clock_offset(&self, at: Timestamp) {
        let ahead = at.as_micros().saturating_sub(SystemClock.now().as_micros());
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// The breaker of the server that has the keys of a hash tag.
    fn breaker(&self, tag: usize) -> &Arc<Breaker> {
        &self.breakers[tag % self.breakers.len()]
    }

    /// Has the epoch read, if it's due: cached rejections that are older than the bound hold as long as it is the same.
    fn refresh_rejection_epoch(self: &Arc<Self>) {
        if self.epoch.is_none() || self.breakers.iter().all(|breaker| breaker.is_open()) {
            return;
        }
        let Some(read) = self.rejection_cache.start_epoch_read() else {
            return;
        };
        let reading = EpochReadGuard(self.clone());
        if let Ok(handle) = Handle::try_current() {
            drop(handle.spawn(async move {
                let shared = &reading.0;
                let Some(key) = &shared.epoch else {
                    return;
                };
                let epoch = tokio::time::timeout(shared.deadline, key.read(&shared.topology));
                if let Ok(Ok(Some((epoch, time)))) = epoch.await {
                    shared.rejection_cache.note_epoch(&epoch, time, read);
                }
            }));
        }
    }

    fn script(&self) -> Arc<Script> {
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        scripts.current()
    }
}

/// That the epoch is being read: until it is known, it could not be had, or its runtime has ended.
struct EpochReadGuard(Arc<StoreState>);

impl Drop for EpochReadGuard {
    fn drop(&mut self) {
        self.0.rejection_cache.epoch().finish_read();
    }
}

impl RedisStore {
    /// A store on the server that `url` names, such as `redis://user:password@host:6379/0`.
    ///
    /// # Errors
    ///
    /// If the URL isn't one. Nothing is connected yet.
    pub fn open(url: impl Into<String>) -> Result<Self, ConfigError> {
        Self::builder().url(url).build()
    }

    /// A store on a pool that the application already has. The lanes hold at most a quarter of its connections, so it
    /// has to have two at least.
    ///
    /// Set TCP_NODELAY in the pool's manager (`deadpool_redis::Manager::new_with_config`); a store that makes its own
    /// pool does.
    ///
    /// # Errors
    ///
    /// If the pool has fewer than two connections.
    pub fn from_pool(pool: deadpool_redis::Pool) -> Result<Self, ConfigError> {
        Self::builder().pool(pool).build()
    }

    /// A store on a pool of its own, made from deadpool's configuration.
    ///
    /// # Errors
    ///
    /// If there is a mistake in the configuration.
    pub fn from_config(config: deadpool_redis::Config) -> Result<Self, ConfigError> {
        Self::builder().config(config).build()
    }

    /// A store on a Redis Cluster, which is found by any of the nodes that `urls` name. What it promises is with the
    /// [builder's method](RedisStoreBuilder::cluster).
    ///
    /// # Errors
    ///
    /// If there is no URL, or one that isn't one. Nothing is connected yet.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, ConfigError> {
        Self::builder().cluster(urls).build()
    }

    /// A store on the master that sentinels know by `name`, wherever it is. What it promises is with the
    /// [builder's method](RedisStoreBuilder::sentinel).
    ///
    /// # Errors
    ///
    /// If there is no URL, or one that isn't one. Nothing is connected yet.
    pub fn sentinel(
        name: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, ConfigError> {
        Self::builder().sentinel(name, urls).build()
    }

    /// Starts to build a store.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// The lines, as they wait in a lane.
    fn own(&self, counters: &[CounterOp<'_>]) -> Result<CounterOps, StoreError> {
        let elsewhere = |line: &CounterOp<'_>| line.limit.context::<RedisLimit>().is_none();
        match counters {
            counters if counters.iter().any(elsewhere) => Err(StoreError::Unsupported(
                "a limit that another store registered",
            )),
            [line] => Ok([OwnedCounterOp::of(line)].into()),
            counters => Ok(counters.iter().map(OwnedCounterOp::of).collect()),
        }
    }
}

/// How often a flush looks whether it is done, and sends again what could not be sent.
const FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// Who is in a list, behind its header. A list that is over may be there for its last millisecond.
const CALLERS: &str = "
    if redis.call('PTTL', KEYS[1]) == 0 then
        return {}
    end
    return redis.call('LRANGE', KEYS[1], 1, -1)
";

impl Store for RedisStore {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        let Some(script) = rule.script() else {
            return Err(InvalidValue::new(
                format!("{rule:?}, which counts in process alone"),
                "a strategy with a half for Redis, or a MemoryStore",
            ));
        };
        let scripts = &self.inner.shared.scripts;
        let mut scripts = scripts.write().unwrap_or_else(PoisonError::into_inner);
        let tags = self.inner.shared.topology.tags().cloned();
        let names = KeyNames::new(&self.inner.shared.prefix, tags, &*rule, policy);
        let half = scripts.number(StrategyScript::from(&script));
        let workers = Arc::downgrade(&self.inner.workers);
        let known = RedisLimit::new(names, half, &*rule, &script, workers);
        Ok(LimitHandle::new(policy, rule, known))
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        let shared = &self.inner.shared;
        if let Some(answer) = shared.rejection_cache.find(op, counters.iter().map(asked)) {
            shared.refresh_rejection_epoch();
            return StoreResponse::Ready(Ok(answer));
        }
        let counters = match self.own(counters) {
            Ok(counters) => counters,
            Err(error) => return StoreResponse::Ready(Err(error)),
        };
        let workers = &self.inner.workers;
        if cross_slot::spans_slots(workers, &counters) {
            return cross_slot::ask(workers, op, counters);
        }
        let deadline = workers.deadline();
        let mark = shared
            .rejection_cache
            .mark(op, counters.iter().map(OwnedCounterOp::cache_key));
        match workers.execute(op, counters, deadline, mark) {
            Ok(awaited) => StoreResponse::Pending(awaited.into()),
            Err(error) => StoreResponse::Ready(Err(error)),
        }
    }

    fn shard(&self, key: &Key) -> usize {
        self.inner.workers.tags().map_or(0, |tags| tags.of(key))
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        let rule = limit.rule();
        let name = limit
            .context::<RedisLimit>()
            .filter(|_| rule.records_caller() && rule.permit_ttl().is_none())
            .map(|known| known.names.of(key));
        let shared = self.inner.shared.clone();
        let tag = shared.topology.tag_of(key);
        Box::pin(async move {
            let Some(name) = name else {
                return Ok(Vec::new());
            };
            let mut range = redis::cmd("EVAL");
            range.arg(CALLERS).arg(1).arg(name);
            shared.breaker(tag).check()?;
            if Handle::try_current().is_err() {
                return Err(StoreError::NoRuntime("callers waits for the server"));
            }
            let list = shared.topology.run::<Vec<Vec<u8>>>(tag, &range);
            let list = tokio::time::timeout(shared.deadline, list).await;
            let list = list.map_err(|_| StoreError::Timeout)??;
            Ok(list.iter().filter_map(|by| Key::from_books(by)).collect())
        })
    }

    fn health_check(&self, limits: &[LimitHandle]) -> HealthFuture {
        let (store, limits) = (self.clone(), limits.to_vec());
        Box::pin(async move {
            let report = store.look(&limits).await;
            report.with_dropped_refunds(store.inner.shared.pending_refunds.dropped())
        })
    }

    fn id(&self) -> Option<u64> {
        Some(self.inner.shared.id)
    }

    fn flush(&self) -> FlushFuture {
        let shared = self.inner.shared.clone();
        Box::pin(async move {
            while shared.pending_refunds.queued() > 0 {
                for tag in shared.pending_refunds.tags() {
                    // A server that is probed is sent it when it answers.
                    if !shared.breaker(tag).is_open() {
                        shared.pending_refunds.send(tag);
                    }
                }
                tokio::time::sleep(FLUSH_INTERVAL).await;
            }
        })
    }

    fn queued(&self) -> u64 {
        self.inner.shared.pending_refunds.queued() as u64
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        let Ok(counters) = self.own(counters) else {
            return;
        };
        let workers = &self.inner.workers;
        for part in cross_slot::parts(workers, counters) {
            workers.execute_detached(op, part.counters);
        }
    }
}

fn asked<'a>(line: &'a CounterOp<'_>) -> CacheKey<'a> {
    CacheKey {
        limit: line.limit,
        key: &line.key,
        units: line.units,
        mode: line.mode,
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.inner.shared.prefix)
            .field("deadline", &self.inner.shared.deadline)
            .field("lanes", &self.inner.workers.per_runtime())
            .field("servers", &self.inner.shared.topology)
            .finish()
    }
}
