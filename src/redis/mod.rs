//! The store on Redis, which counts for any number of processes: [`RedisStore`].

// A request's way through it:
//
// 1. `RedisStore::execute` admits by a lease of this process (`lease`), or looks into the rejection cache (`rejection_cache`), then
//    hands the operation to the worker pool (`worker::pool`), or to `cross_slot` if the keys of a cluster's request are in several
//    slots.
// 2. The worker (`worker`) of the caller's runtime queues it as a pending request (`request`), and sends what has gathered
//    as one batch (`batch`): one call of the script (`script`).
// 3. `worker::dispatch` follows redirects of a cluster (`cluster`) and decodes the reply. `error_class` says what is done
//    about an error, the circuit breaker (`breaker`) when to stop calling.
// 4. The response slot of each request wakes its waiter. Refunds that could not be sent are kept (`pending_refunds`).
//
// The permits of requests in flight are renewed by `keep_alive`.
//
// What all workers share is in `state`, connections are in `connection`, the names of keys in `key_names`.

use std::{fmt, sync::Arc, time::Duration};

use self::{
    keep_alive::PermitRegistry,
    key_names::KeyNames,
    lease::{LeaseDecision, Leases},
    overrides::RedisOverrides,
    rejection_cache::CacheKey,
    request::{
        Followers, OnResponse, Recorder, Retry,
        limit::RedisLimit,
        op::{CounterOps, OwnedCounterOp},
    },
    script::StrategyScript,
    state::StoreState,
    worker::pool::WorkerPool,
};
use crate::{
    error::{InvalidValue, StoreError},
    key::Key,
    observe::{Observer, StoreStats},
    store::{
        Completion, CounterOp, FlushFuture, KeepAlive, LimitHandle, Op, OpResult, Store,
        StoreAdmin, StoreResponse,
    },
    strategy::{LuaScript, Rule},
    sync::write,
};

mod admin;
mod batch;
mod blocks;
pub(crate) mod breaker;
mod builder;
mod cluster;
mod config;
pub(crate) mod connection;
pub(crate) mod cross_slot;
pub(crate) mod error_class;
pub(crate) mod health;
mod keep_alive;
pub(crate) mod key_names;
mod lease;
mod overrides;
pub(crate) mod pending_refunds;
pub(crate) mod rejection_cache;
pub(crate) mod request;
mod script;
mod state;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "fuzz targets reach it"))]
pub(crate) mod testing;
pub(crate) mod topology;
pub(crate) mod worker;

pub use builder::RedisStoreBuilder;
/// The connection pool of [`RedisStore`], in the version that this crate uses.
pub use deadpool_redis;

/// A store on Redis 6.2 or newer, exact for any number of processes, which counts by the server's clock. Clones share
/// connections and caches.
///
/// In each tokio runtime, [workers](RedisStoreBuilder::connections) send all requests, each over a connection of its own, which comes from the
/// application's [deadpool-redis](deadpool_redis) pool if there is one: requests that arrive while a worker's
/// last batches are in flight are sent as the next batch, in one script call of up to 128 keys, with equal requests merged.
/// Nothing is connected or spawned before the first request, so an application starts while Redis is down.
///
/// Rejections are cached: a key that Redis rejected is [rejected in process](RedisStoreBuilder::rejection_cache_staleness),
/// without a round trip, until its `Retry-After` has passed.
///
/// Every request has a [timeout](RedisStoreBuilder::timeout), 100 ms by default, and one more if the server answers a probe
/// meanwhile. When it passes, or the server fails, the request is handled as [`on_store_error`](crate::limiter::LimiterBuilder::on_store_error) says. A request that timed out may have been
/// charged: at most its own cost, until its period ends. After three failed calls a circuit breaker opens, and the server is
/// not called until it responds to a [probe](RedisStoreBuilder::circuit_breaker_threshold).
///
/// It needs a tokio runtime: a call that is awaited outside of one returns [`StoreError::NoRuntime`].
/// [`Check::blocking`](crate::limiter::Check::blocking) needs none. Dropping a request's future cancels it: a charge that was made nevertheless is refunded.
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

/// What the clones of a store share, and the limits that it has registered refer to.
struct Inner {
    shared: Arc<StoreState>,
    workers: Arc<WorkerPool>,
    leases: Arc<Leases>,
    permits: Arc<PermitRegistry>,
    /// `None` if they are switched off.
    overrides: Option<Arc<RedisOverrides>>,
    /// Compared with those of a document that is put in force.
    #[cfg(feature = "config")]
    settings: builder::settings::StoreSettings,
}

impl RedisStore {
    /// The settings by which the store is compared with that of a document.
    #[cfg(feature = "config")]
    pub(crate) fn settings(&self) -> &builder::settings::StoreSettings {
        &self.inner.settings
    }

    /// Whether it is a clone of `other`.
    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Executes an operation by the rejection cache, or else by the server.
    fn execute_without_lease(
        &self,
        op: Op,
        counters: &[CounterOp<'_>],
        recorder: Option<Box<dyn Recorder>>,
    ) -> StoreResponse {
        let shared = &self.inner.shared;
        if let Some(result) = self.find_cached(op, counters) {
            return StoreResponse::Ready(Ok(result));
        }
        let counters = match self.owned(counters) {
            Ok(counters) => counters,
            Err(error) => return StoreResponse::Ready(Err(error)),
        };
        let workers = &self.inner.workers;
        if workers.spans_slots(counters.iter().map(|counter| &counter.key)) {
            return cross_slot::execute(&self.inner, op, counters);
        }
        let deadline = workers.deadline();
        let token = shared
            .rejection_cache
            .token(op, counters.iter().map(OwnedCounterOp::cache_key));
        let followers = Followers {
            cache_token: token,
            recorder,
            ..Followers::default()
        };
        match workers.execute(op, counters, deadline, followers, Retry::IfUnread) {
            Ok(response) => StoreResponse::Pending(response.into()),
            Err(error) => StoreResponse::Ready(Err(error)),
        }
    }

    /// The cached rejection of a request.
    fn find_cached(&self, op: Op, counters: &[CounterOp<'_>]) -> Option<OpResult> {
        let shared = &self.inner.shared;
        let cache = &shared.rejection_cache;
        cache.get(op, counters.iter().map(cache_key))
    }

    /// Has the version of the overrides polled from the first request on.
    #[inline]
    fn poll_overrides(&self) {
        if let Some(overrides) = &self.inner.overrides
            && !overrides.is_polled()
        {
            overrides.poll(&self.inner.shared);
        }
    }

    /// The counter operations, owned.
    fn owned(&self, counters: &[CounterOp<'_>]) -> Result<CounterOps, StoreError> {
        let is_foreign = |counter: &CounterOp<'_>| counter.limit.context::<RedisLimit>().is_none();
        match counters {
            counters if counters.iter().any(is_foreign) => Err(StoreError::Unsupported(
                "a limit registered by another store",
            )),
            [counter] => Ok([OwnedCounterOp::of(counter)].into()),
            counters => Ok(counters.iter().map(OwnedCounterOp::of).collect()),
        }
    }
}

/// How often a flush retries what could not be sent, and checks whether it is done. A notification of the end would cost each
/// refund and settlement a lock, and make a flush shorter by one interval at most.
const FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// The half of a rule that counts on Redis.
fn script_of(rule: &dyn Rule) -> Result<LuaScript, InvalidValue> {
    let Some(script) = rule.script() else {
        return Err(InvalidValue::new(
            format!("{rule:?}, which counts in process only"),
            "a strategy with a half for Redis, or a MemoryStore",
        ));
    };
    // `RedisLimit::capacity` reads it there.
    let capacity = script.params.first().map(|first| u64::try_from(*first));
    let expected = rule.info().capacity;
    if capacity != Some(Ok(expected)) {
        return Err(InvalidValue::new(
            format!("{rule:?} with the script parameters {:?}", script.params),
            format!("its capacity, {expected}, as the first parameter"),
        ));
    }
    Ok(script)
}

impl Store for RedisStore {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        let script = script_of(&*rule)?;
        let mut scripts = write(&self.inner.shared.scripts);
        let tags = self.inner.shared.topology.tags().cloned();
        let names = KeyNames::new(&self.inner.shared.prefix, tags, &*rule, policy);
        let script_index = scripts.number(StrategyScript::from(&script));
        let store = Arc::downgrade(&self.inner);
        let context = RedisLimit::new(names, script_index, &*rule, &script, store);
        let limit = LimitHandle::new(policy, rule, context);
        self.inner.leases.record_limit(&limit);
        if let Some(ttl) = limit.info().permit_ttl {
            self.inner.permits.shorten_ttl(ttl);
        }
        Ok(limit)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        self.poll_overrides();
        self.inner.leases.invalidate_on(op, counters);
        let LeaseDecision {
            result,
            due,
            recorder,
        } = self.inner.leases.decide(op, counters);
        let response = match result {
            Some(result) => StoreResponse::Ready(Ok(result)),
            None => {
                let recorder = recorder.map(|recorder| Box::new(recorder) as Box<dyn Recorder>);
                self.execute_without_lease(op, counters, recorder)
            }
        };
        if let Some(due) = due {
            due.send();
        }
        response
    }

    fn execute_now(
        &self,
        op: Op,
        counters: &[CounterOp<'_>],
    ) -> Option<Result<OpResult, StoreError>> {
        if !matches!(op, Op::Acquire(_)) {
            return None;
        }
        self.poll_overrides();
        let LeaseDecision {
            result,
            due,
            recorder,
        } = self.inner.leases.decide(op, counters);
        let result = result.or_else(|| self.find_cached(op, counters));
        let result = result.map(Ok).or_else(|| {
            let keys = counters.iter().map(|counter| &counter.key);
            self.inner.workers.find_open_breaker(keys).map(Err)
        });
        let due = due.or_else(|| match &result {
            None => recorder?.lease_of_one(counters),
            Some(_) => None,
        });
        if let Some(due) = due {
            due.send_in_background();
        }
        result
    }

    fn keep_alive(&self, counters: &[CounterOp<'_>]) -> Option<KeepAlive> {
        let counters = self.owned(counters).ok()?;
        Some(KeepAlive::new(self.inner.permits.add(counters)))
    }

    fn shard(&self, key: &Key) -> usize {
        self.inner.workers.tags().map_or(0, |tags| tags.of(key))
    }

    fn flush(&self) -> FlushFuture {
        let (shared, leases) = (self.inner.shared.clone(), self.inner.leases.clone());
        Box::pin(async move {
            leases.refund_all().await;
            while shared.pending_refunds.queued() > 0 {
                shared.resend_refunds();
                tokio::time::sleep(FLUSH_INTERVAL).await;
            }
        })
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner.shared.observers.add(observer);
    }

    fn stats(&self) -> StoreStats {
        let stats = self.inner.shared.stats();
        StoreStats {
            leases: self.inner.leases.stats(),
            queued_refunds: stats.queued_refunds + self.inner.leases.unsettled(),
            ..stats
        }
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>) {
        self.inner.leases.invalidate_on(op, counters);
        let counters = match self.owned(counters) {
            Ok(counters) => counters,
            Err(error) => {
                if let Some(completion) = completion {
                    completion.complete(Err(error));
                }
                return;
            }
        };
        let workers = &self.inner.workers;
        let parts = cross_slot::parts(workers, counters.into_iter().enumerate());
        let on_response = completion.filter(|_| parts.len() == 1);
        let mut on_response = on_response.map(|completion| Box::new(completion) as _);
        for part in parts {
            workers.execute_detached(op, part.counters, on_response.take());
        }
    }

    fn admin(&self) -> Option<&dyn StoreAdmin> {
        Some(self)
    }
}

impl OnResponse for Completion {
    fn on_response(self: Box<Self>, response: Result<OpResult, StoreError>) {
        self.complete(response);
    }
}

fn cache_key<'a>(counter: &'a CounterOp<'_>) -> CacheKey<'a> {
    CacheKey {
        limit: counter.limit,
        key: &counter.key,
        units: counter.units,
        mode: counter.mode,
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.inner.shared.prefix)
            .field("timeout", &self.inner.shared.timeout)
            .field("workers_per_runtime", &self.inner.workers.per_runtime())
            .field("topology", &self.inner.shared.topology)
            .finish()
    }
}
