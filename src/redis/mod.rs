//! The store on Redis, which counts for any number of processes: [`RedisStore`].

// A request's way through it:
//
// 1. `RedisStore::execute` admits by a lease of this process (`lease`), or looks into the rejection cache (`rejection_cache`), then
//    pushes the operation to the IO thread (`io`), or one for each slot if the keys of a cluster's request are in several
//    (`cross_slot`).
// 2. The IO thread takes it out of an inbox as a pending request (`request`), sends what has gathered as one batch (`batch`), one call
//    of the script (`script`), and fills the response slot of each request.
//
// The permits of requests in flight are renewed by `keep_alive`. The names of keys are in `key_names`.

use std::{fmt, sync::Arc, time::Duration};

use self::{
    io::Io,
    keep_alive::PermitRegistry,
    key_names::KeyNames,
    lease::{LeaseDecision, Leases, ResponseRecorder},
    overrides::RedisOverrides,
    rejection_cache::CacheKey,
    request::{
        Followers, Retry,
        limit::RedisLimit,
        op::{CounterOps, OwnedCounterOp},
    },
    script::StrategyScript,
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
    sync::{lock, write},
};

mod admin;
mod batch;
mod blocks;
mod builder;
mod config;
mod cross_slot;
pub(crate) mod error_class;
pub(crate) mod hash_tags;
pub(crate) mod health;
pub(crate) mod io;
mod keep_alive;
pub(crate) mod key_names;
mod lease;
mod overrides;
pub(crate) mod rejection_cache;
pub(crate) mod request;
mod script;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "fuzz targets reach it"))]
pub(crate) mod testing;

pub use builder::RedisStoreBuilder;
/// The connection pool of [`RedisStore`], in the version that this crate uses.
pub use deadpool_redis;

/// A store on Redis 6.2 or newer, exact for any number of processes, which counts by the server's clock. Clones share
/// connections and caches.
///
/// One thread of the process, `tollgate`, does the IO of all stores: handlers that block the threads of the application delay no reply.
/// Requests that arrive while a batch is in flight are sent as the next one, in one script call of up to 128 keys, with equal requests
/// merged. The first request or health check starts the thread and connects, so an
/// application starts while Redis is down, and forks before that.
///
/// Rejections are cached: a key that Redis rejected is [rejected in process](RedisStoreBuilder::rejection_cache_staleness),
/// without a round trip, until its `Retry-After` has passed.
///
/// A request without a reply within the [timeout](RedisStoreBuilder::timeout), 100 ms by default, is handled as
/// [`on_store_error`](crate::limiter::LimiterBuilder::on_store_error) says; it may have been charged. After three failures in a row a
/// circuit breaker opens, and requests are handled so at once. [Operations](crate::operations) has the details.
///
/// It needs no tokio runtime. Dropping a request's future cancels it: a charge that was made nevertheless is refunded.
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
    io: Arc<Io>,
    leases: Arc<Leases>,
    permits: Arc<PermitRegistry>,
    /// `None` if they are switched off.
    overrides: Option<Arc<RedisOverrides>>,
    /// The settings that are compared with those of a document.
    #[cfg(feature = "config")]
    settings: builder::settings::StoreSettings,
}

/// Ends the IO.
impl Drop for Inner {
    fn drop(&mut self) {
        self.io.close();
    }
}

impl RedisStore {
    /// The settings that are compared with those of a document.
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
        recorder: Option<Box<ResponseRecorder>>,
    ) -> StoreResponse {
        let io = &self.inner.io;
        if let Some(result) = self.find_cached(op, counters) {
            return StoreResponse::Ready(Ok(result));
        }
        let counters = match self.owned(counters) {
            Ok(counters) => counters,
            Err(error) => return StoreResponse::Ready(Err(error)),
        };
        if io.spans_slots(counters.iter().map(|counter| &counter.key)) {
            return cross_slot::execute(io, op, counters);
        }
        let deadline = io.deadline();
        let token = io
            .rejection_cache
            .token(op, counters.iter().map(OwnedCounterOp::cache_key));
        let followers = Followers {
            cache_token: token,
            recorder,
            ..Followers::default()
        };
        io.execute(op, counters, deadline, followers, Retry::IfUnread)
    }

    /// The cached rejection of a request.
    fn find_cached(&self, op: Op, counters: &[CounterOp<'_>]) -> Option<OpResult> {
        let cache = &self.inner.io.rejection_cache;
        cache.get(op, counters.iter().map(cache_key))
    }

    /// Starts polling the version of the overrides, with the first request.
    #[inline]
    fn poll_overrides(&self) {
        if let Some(overrides) = &self.inner.overrides
            && !overrides.is_polled()
        {
            overrides.poll(&self.inner.io);
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

/// How often a flush checks whether it is done. A notification would cost each refund and settlement a lock.
const FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// The script of a rule. Fails if the rule has none.
fn script_of(rule: &dyn Rule) -> Result<LuaScript, InvalidValue> {
    let Some(script) = rule.script() else {
        return Err(InvalidValue::new(
            format!("{rule:?}, which counts in process only"),
            "a strategy with a half for Redis, or a MemoryStore",
        ));
    };
    // `RedisLimit::capacity` is the first parameter.
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
        let io = &self.inner.io;
        let mut scripts = write(&io.scripts);
        let names = KeyNames::new(io.prefix(), io.tags().cloned(), &*rule, policy);
        let script_index = scripts.number(StrategyScript::from(&script));
        let context = RedisLimit::new(names, script_index, &*rule, &script, Arc::downgrade(io));
        let limit = LimitHandle::new(policy, rule, context);
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
            None => self.execute_without_lease(op, counters, recorder.map(Box::new)),
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
            self.inner.io.find_open_breaker(keys).map(Err)
        });
        let due = due.or_else(|| match &result {
            None => recorder?.lease_of_one(counters),
            Some(_) => None,
        });
        if let Some(due) = due {
            due.send();
        }
        result
    }

    fn keep_alive(&self, counters: &[CounterOp<'_>]) -> Option<KeepAlive> {
        let counters = self.owned(counters).ok()?;
        Some(KeepAlive::new(self.inner.permits.add(counters)))
    }

    fn shard(&self, key: &Key) -> usize {
        self.inner.io.tag_of(key)
    }

    fn flush(&self) -> FlushFuture {
        let (io, leases) = (self.inner.io.clone(), self.inner.leases.clone());
        Box::pin(async move {
            leases.release_all();
            // What becomes of a lease that is requested is queued before that is settled.
            while leases.is_unsettled() || io.adjustments.queued() > 0 {
                tokio::time::sleep(FLUSH_INTERVAL).await;
            }
        })
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner.io.observers.add(observer);
    }

    fn stats(&self) -> StoreStats {
        let (io, leases) = (&self.inner.io, &self.inner.leases);
        let adjustments = &io.adjustments;
        StoreStats {
            rejection_cache_entries: Some(io.rejection_cache.len()),
            nodes: lock(&io.nodes).clone(),
            queued_refunds: adjustments.queued() as u64,
            dropped_refunds: adjustments.dropped(),
            unconfirmed_refunds: adjustments.unconfirmed(),
            leases: leases.stats(),
            ..StoreStats::default()
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
        let io = &self.inner.io;
        if io.spans_slots(counters.iter().map(|counter| &counter.key)) {
            return cross_slot::execute_detached(io, op, counters);
        }
        io.execute_detached(op, counters, completion);
    }

    fn admin(&self) -> Option<&dyn StoreAdmin> {
        Some(self)
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
            .field("io", &self.inner.io)
            .finish_non_exhaustive()
    }
}
