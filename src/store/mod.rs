//! Stores, which hold the counts, and the interface of a store of your own.
//!
//! [`MemoryStore`](crate::MemoryStore) counts in process. [`RedisStore`](crate::RedisStore) (feature `redis`) counts for any
//! number of processes. A store of your own implements [`Store`]: it [registers](Store::register) a limit for each policy, and
//! [executes](Store::execute) one [`Op`] for each request, on one [`CounterOp`] for each policy that applies.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

pub use self::op::Units;
use crate::{
    clock::Timestamp,
    error::{InvalidValue, StoreError},
    key::Key,
    observe::{Observer, StoreStats},
    strategy::Rule,
};

mod admin;
mod blocks;
pub(crate) mod fit;
mod handle;
pub(crate) mod health;
pub(crate) mod memory;
mod op;
pub(crate) mod overrides;
mod result;

pub use admin::{CallersFuture, HealthFuture, StoreAdmin};
pub use blocks::{BlockedKey, BlockedKeys, BlockedKeysFuture, Incomplete};
pub use handle::LimitHandle;
pub use op::{CounterMode, CounterOp, Op};
pub use overrides::{OverrideFuture, OverrideListFuture, OverrideTable};
pub(crate) use result::TOO_FEW_RESULTS;
pub use result::{CounterResult, OpResult};

pub use self::{
    health::{HealthIssue, HealthReport, HealthWarning},
    memory::MemoryStoreBuilder,
};
pub(crate) use crate::observe::DecisionSource;

/// The interface of a store, which holds the counts of a [`Limiter`](crate::Limiter).
///
/// A store counts by the [`Rule`] of each limit, and by one clock of its own. It must be exact for concurrent calls: an
/// [`Acquire`](Op::Acquire) reads and charges all its counters at one instant. The limiter does the rest: it finds keys and
/// costs, handles store failures, makes responses and queues waiting requests. Clones of a built-in store share its counts.
///
/// The methods are called on request paths, from any thread, inside and outside of tokio runtimes: they must not block.
/// A store that needs a runtime returns [`StoreError::NoRuntime`] where there is none. Within
/// [`Check::blocking`](crate::limiter::Check::blocking) the runtime is that of the thread `tollgate`, which must not be blocked.
///
/// # A store of your own
///
/// It counts in process, as in the first example, or wraps another store, as in the second. A wrapper counts, delays, changes or
/// fails operations before it passes them on, and reads their results. It returns the handles of the store that it wraps, and passes
/// on every method: the defaults are those of a store without the feature.
///
/// Leases, cached rejections, merged and batched calls, the circuit breaker and the Lua halves of strategies are internals of
/// [`RedisStore`](crate::RedisStore), which no other store has. A wrapper gets each operation before them, also one that causes no call
/// of the server.
///
/// A builder for [`Limiter::reconfigure`](crate::Limiter::reconfigure) may have a clone of the limiter's built-in store; of a store of
/// your own it has to have the same [`Arc`](crate::limiter::LimiterBuilder::shared_store).
///
/// A store that counts in a map, for policies without bans, shadows, settlements and in-flight limits:
///
/// ```
/// use std::{
///     collections::HashMap,
///     sync::{Arc, Mutex, PoisonError},
/// };
///
/// use tollgate::{
///     Key, Limiter, Policy, Quota, StoreError, clock::{Clock, SystemClock}, error::InvalidValue,
///     store::{Completion, CounterMode, CounterOp, CounterResult, LimitHandle, Op, OpResult, Store, StoreResponse},
///     strategy::{ErasedLocalRule, LocalState, Rule},
/// };
///
/// /// The policy, the state format and the caller's key.
/// type Id = (String, &'static str, Key);
///
/// #[derive(Clone, Debug, Default)]
/// struct MapStore(Arc<Mutex<HashMap<Id, LocalState>>>);
///
/// fn id(limit: &LimitHandle, key: &Key) -> Id {
///     (limit.policy().to_owned(), limit.info().state_format, *key)
/// }
///
/// /// How a counter is counted, and its state.
/// fn open<'a>(
///     states: &'a mut HashMap<Id, LocalState>,
///     counter: &CounterOp<'a>,
/// ) -> Result<(ErasedLocalRule<'a>, &'a mut LocalState), StoreError> {
///     let unsupported = StoreError::Unsupported("a limit of another store");
///     let rule = counter.limit.rule().local_rule().ok_or(unsupported)?;
///     let state = states.entry(id(counter.limit, &counter.key));
///     Ok((rule, state.or_insert_with(|| rule.new_state())))
/// }
///
/// impl MapStore {
///     fn run(&self, op: Op, counters: &[CounterOp<'_>]) -> Result<OpResult, StoreError> {
///         let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
///         let now = SystemClock.now();
///         let mut admitted = match op {
///             Op::Acquire(times) => u64::from(times),
///             _ => 0,
///         };
///         // All counters are read before the first is charged.
///         let mut available = Vec::new();
///         for counter in counters {
///             let (rule, state) = open(&mut states, counter)?;
///             // It may correct a state, which a peek does not.
///             let units = if op == Op::Peek { 0 } else { rule.available(state, now) };
///             let fits = units.max(0).unsigned_abs().checked_div(counter.units.get());
///             // A request that costs nothing always fits.
///             admitted = admitted.min(fits.unwrap_or(admitted));
///             available.push(units);
///         }
///         let mut results = Vec::new();
///         for (counter, available) in counters.iter().zip(available) {
///             let (rule, state) = open(&mut states, counter)?;
///             let (cost, caller) = (counter.units.get(), &counter.caller);
///             let most = available.saturating_add_unsigned(counter.limit.info().capacity);
///             let units = match (op, counter.receipt) {
///                 (Op::Acquire(_), _) => cost * admitted,
///                 (Op::Adjust, None) => cost.min(most.max(0).unsigned_abs()),
///                 (Op::Adjust, Some(receipt)) => rule.refund(state, now, &receipt, cost, caller),
///                 _ => 0,
///             };
///             if units > 0 && counter.receipt.is_none() {
///                 rule.charge(state, now, units, caller);
///             }
///             results.push(CounterResult::new(units, rule.snapshot(state, now, cost)));
///             if op == Op::Reset {
///                 states.remove(&id(counter.limit, &counter.key));
///             }
///         }
///         Ok(OpResult::new(now, admitted, results))
///     }
/// }
///
/// impl Store for MapStore {
///     fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
///         if rule.local_rule().is_none() {
///             let found = format!("{rule:?}, which does not count in process");
///             return Err(InvalidValue::new(found, "a strategy that does"));
///         }
///         Ok(LimitHandle::new(policy, rule, ()))
///     }
///
///     fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
///         let charges = |counter: &CounterOp<'_>| counter.mode == CounterMode::Charge;
///         let known = match op {
///             Op::Acquire(_) => counters.iter().all(charges),
///             Op::Peek | Op::Reset => true,
///             // Charges come before refunds, so this store makes one kind in a call.
///             Op::Adjust => counters.iter().all(|counter| counter.receipt.is_some() == counters[0].receipt.is_some()),
///             _ => false,
///         };
///         StoreResponse::Ready(match known {
///             true => self.run(op, counters),
///             false => Err(StoreError::Unsupported("this operation")),
///         })
///     }
///
///     fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>) {
///         if let (StoreResponse::Ready(result), Some(completion)) = (self.execute(op, counters), completion) {
///             completion.complete(result);
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::builder()
///     .store(MapStore::default())
///     .policy(Policy::new("burst", Quota::requests(2).per_second()))
///     .policy(Policy::new("daily", Quota::requests(100).per_day()))
///     .build()?;
/// let decision = limiter.check("alice").times(3).await;
/// assert_eq!(decision.admitted(), 2);
/// assert_eq!(decision.policy("daily").map(|daily| daily.remaining()), Some(98));
/// # Ok(())
/// # }
/// ```
///
/// This example never removes a key. A store for production drops states that have
/// [expired](crate::strategy::ErasedLocalRule::expires_at).
///
/// A wrapper that fails the first operations, for a test of an application in an outage:
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering::Relaxed}};
///
/// use tollgate::{
///     Key, Limiter, MemoryStore, OnStoreError, Policy, Quota, StoreError, clock::Timestamp, error::InvalidValue,
///     observe::{Observer, StoreStats},
///     store::{Completion, CounterOp, FlushFuture, KeepAlive, LimitHandle, Op, OpResult, Store, StoreAdmin, StoreResponse},
///     strategy::Rule,
/// };
///
/// #[derive(Debug)]
/// struct FailFirst<S> {
///     store: S,
///     failures: AtomicU64,
/// }
///
/// impl<S> FailFirst<S> {
///     fn fail(&self) -> Result<(), StoreError> {
///         match self.failures.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
///             Ok(_) => Err(StoreError::Connection { message: "refused".into(), may_have_run: false }),
///             Err(_) => Ok(()),
///         }
///     }
/// }
///
/// impl<S: Store> Store for FailFirst<S> {
///     fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
///         self.store.register(policy, rule)
///     }
///
///     fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
///         match self.fail() {
///             Ok(()) => self.store.execute(op, counters),
///             Err(error) => StoreResponse::Ready(Err(error)),
///         }
///     }
///
///     fn execute_now(&self, op: Op, counters: &[CounterOp<'_>]) -> Option<Result<OpResult, StoreError>> {
///         match self.fail() {
///             Ok(()) => self.store.execute_now(op, counters),
///             Err(error) => Some(Err(error)),
///         }
///     }
///
///     fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>) {
///         self.store.execute_detached(op, counters, completion);
///     }
///
///     fn keep_alive(&self, counters: &[CounterOp<'_>]) -> Option<KeepAlive> {
///         self.store.keep_alive(counters)
///     }
///
///     fn shard(&self, key: &Key) -> usize {
///         self.store.shard(key)
///     }
///
///     fn wall(&self, at: Timestamp) -> Timestamp {
///         self.store.wall(at)
///     }
///
///     fn observe(&self, observer: &Arc<dyn Observer>) {
///         self.store.observe(observer);
///     }
///
///     fn stats(&self) -> StoreStats {
///         self.store.stats()
///     }
///
///     fn flush(&self) -> FlushFuture {
///         self.store.flush()
///     }
///
///     fn admin(&self) -> Option<&dyn StoreAdmin> {
///         self.store.admin()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::builder()
///     .store(FailFirst { store: MemoryStore::new(), failures: AtomicU64::new(1) })
///     .on_store_error(OnStoreError::Reject)
///     .policy(Policy::new("burst", Quota::requests(2).per_second()))
///     .build()?;
/// assert!(!limiter.check("alice").await.is_admitted());
/// assert!(limiter.check("alice").await.is_admitted());
/// # Ok(())
/// # }
/// ```
pub trait Store: Any + fmt::Debug + Send + Sync {
    /// Registers a limit, which is `rule` under a policy's name. Operations on the limit name it by the returned handle.
    ///
    /// It is called for each quota of each policy when a limiter is built or reconfigured, when overrides are set or listed, and on
    /// request paths for quotas that requests bring along. One limit may be registered several times, and for settings that are then
    /// refused: so this changes no other limit and no count.
    ///
    /// Limits with the same policy and [state format](crate::strategy::RuleInfo::state_format) share their keys, also across limiters
    /// and processes: all quotas of a policy count the same units.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] if the store can't count by that rule. It becomes one of the mistakes of the limiter's
    /// [`ConfigError`](crate::ConfigError); for a request's own quota it is logged, and the policy's quota is used.
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue>;

    /// Executes one operation for one request, and returns its result.
    ///
    /// `counters` has one entry for each policy that applies, at least one, with a limit from [`register`](Store::register) of
    /// this store. The result has [one for each](OpResult::counters), in the same order; a result with fewer is an error.
    ///
    /// An [`Acquire`](Op::Acquire) is all or nothing: it reads and charges all counters at one instant of the store's clock.
    /// The other operations may treat each [shard](Store::shard) by itself.
    ///
    /// The store enforces a timeout on [pending](StoreResponse::Pending) responses: the limiter has none of its own. Dropping one
    /// cancels the request: see [`PendingResponse`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] for operations and modes that this store does not know, and any other error that prevents
    /// counting. An operation that may have run fails with an error that [says so](StoreError::may_have_run): after any other error an
    /// adjustment counts as not made, and may be repeated.
    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse;

    /// Executes an operation without a call of a server, for [`Check::now`](crate::limiter::Check::now). `None` if that is not possible:
    /// then nothing was charged, but the request may count as demand for a lease.
    ///
    /// An error is handled as one of [`execute`](Store::execute). A store in process returns what `execute` does. Default: `None`.
    fn execute_now(
        &self,
        op: Op,
        counters: &[CounterOp<'_>],
    ) -> Option<Result<OpResult, StoreError>> {
        let _ = (op, counters);
        None
    }

    /// Executes an operation whose result no task awaits: an [`Adjust`](Op::Adjust) of a request that has ended or was dropped. It
    /// may be called outside of a runtime.
    ///
    /// An operation that certainly did not run is [queued](StoreStats::queued_refunds) and tried again later; one that is given up is
    /// [reported](HealthReport::with_dropped_refunds). Releases of [permits](crate::strategy::RuleInfo::permit_ttl) are tried again in
    /// any case.
    ///
    /// The store calls `completion` with the result of the first attempt, from any thread, also before this returns, and never under
    /// a lock of its own; or drops it, as for counters of several [shards](Store::shard), which have several results. An adjustment
    /// without a result counts as made.
    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>);

    /// Keeps the permits of these counters from expiring until the returned value is dropped, for as long as the store can be
    /// reached. The counters are those of an [`Acquire`](Op::Acquire) that was admitted, one for each in-flight limit.
    ///
    /// It must not block. Dropping the value does not release the permits: an [`Adjust`](Op::Adjust) with their receipts does.
    ///
    /// Without counters it says whether the store can do this: a limiter asks when it is built or reconfigured, and
    /// policies with a [permit TTL](crate::strategy::RuleInfo::permit_ttl) are a [`ConfigError`](crate::ConfigError) on a store that returns
    /// `None`. Default: `None`.
    fn keep_alive(&self, counters: &[CounterOp<'_>]) -> Option<KeepAlive> {
        let _ = counters;
        None
    }

    /// Returns the shard that counts a key. Counters of one shard are adjusted all or none ([`Op::Adjust`]); the limiter settles
    /// those of several by one call for each. Default: 0, for a store that counts all keys in one place.
    fn shard(&self, key: &Key) -> usize {
        let _ = key;
        0
    }

    /// Converts the instant `at` of this store's clock into the wall clock's, for dates in responses. Default: `at`, for a
    /// store whose clock is a wall clock.
    fn wall(&self, at: Timestamp) -> Timestamp {
        at
    }

    /// Adds an observer of a limiter with this store. The store calls it for each round trip to a server
    /// ([`Observer::on_store_call`]), and when its state changes ([`Observer::on_event`]). A store that several limiters share
    /// calls each distinct observer once (compare them as pointers), and keeps none alive (hold a [`Weak`](std::sync::Weak)).
    /// Default: does nothing.
    fn observe(&self, observer: &Arc<dyn Observer>) {
        let _ = observer;
    }

    /// Returns the state of the store in this process, without calling a server: for [`Limiter::stats`](crate::Limiter::stats), and
    /// for [`Limiter::shutdown`](crate::Limiter::shutdown), which reads how many operations are queued. Default: nothing is known, and
    /// nothing is queued.
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    /// Tries queued operations again until none is [queued](StoreStats::queued_refunds).
    /// [`Limiter::shutdown`](crate::Limiter::shutdown) awaits it, and drops it at its timeout. Default: completes at once.
    fn flush(&self) -> FlushFuture {
        Box::pin(std::future::ready(()))
    }

    /// Returns the interface of operators' calls. Default: `None`; then a [health check](crate::Limiter::health_check) finds no issues,
    /// and calls for blocked keys, callers and overrides return [`StoreError::Unsupported`].
    fn admin(&self) -> Option<&dyn StoreAdmin> {
        None
    }
}

/// Keeps permits of in-flight limits from expiring until it is dropped: see [`Store::keep_alive`].
#[must_use = "dropping it lets the permits expire"]
pub struct KeepAlive {
    _guard: Box<dyn Send + Sync>,
}

impl KeepAlive {
    /// A value that drops `guard` when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self {
            _guard: Box::new(guard),
        }
    }
}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAlive").finish_non_exhaustive()
    }
}

/// A function that gets the result of a [detached operation](Store::execute_detached). Dropping it says that the result is unknown.
pub struct Completion(Box<dyn FnOnce(Result<OpResult, StoreError>) + Send>);

impl Completion {
    /// A completion that calls `complete`, which must not block.
    pub fn new(complete: impl FnOnce(Result<OpResult, StoreError>) + Send + 'static) -> Self {
        Self(Box::new(complete))
    }

    /// Calls the function with the result.
    pub fn complete(self, result: Result<OpResult, StoreError>) {
        (self.0)(result);
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").finish_non_exhaustive()
    }
}

/// The response of [`Store::execute`]: a result, or a future of it.
///
/// After an error a request's check is handled as [`OnStoreError`](crate::OnStoreError) says; every other call returns the error, which
/// says whether the operation [may have been done](StoreError::may_have_run).
#[must_use]
pub enum StoreResponse {
    /// The operation was done or has failed.
    Ready(Result<OpResult, StoreError>),
    /// The operation is in flight.
    Pending(PendingResponse),
}

impl StoreResponse {
    /// A pending response that completes with `result`, which is boxed. See [`PendingResponse`] for what the future has to do
    /// when it is dropped.
    pub fn pending(
        result: impl Future<Output = Result<OpResult, StoreError>> + Send + 'static,
    ) -> Self {
        Self::Pending(PendingResponse(Pending::Boxed(Box::pin(result))))
    }

    /// Awaits the result.
    pub(crate) async fn result(self) -> Result<OpResult, StoreError> {
        match self {
            Self::Ready(result) => result,
            Self::Pending(response) => response.await,
        }
    }
}

/// A future of a response, which may be polled on any runtime, or outside of one.
///
/// It is dropped when the request is cancelled, for example because the client disconnected. The store then has to refund what an
/// [`Acquire`](Op::Acquire) has charged, or charges later, since only the store knows it. An [`Adjust`](Op::Adjust) is made
/// nevertheless, as one that is [detached](Store::execute_detached); no other operation is undone.
#[must_use = "dropping it cancels the request"]
pub struct PendingResponse(Pending);

enum Pending {
    Boxed(Pin<Box<dyn Future<Output = Result<OpResult, StoreError>> + Send>>),
    /// Not boxed: the store's tasks share it. `None` once it was read.
    Shared(Option<Arc<dyn SharedResponse>>),
}

/// A response that a store shares with the tasks that send its requests.
pub(crate) trait SharedResponse: Send + Sync {
    /// Polls for the response, which is ready once.
    fn poll_response(self: Arc<Self>, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>>;

    /// Called in place of a further poll, when the response is dropped before it was read.
    fn abandon(&self);

    /// Called in place of [`abandon`](Self::abandon), with a completion for the result.
    fn detach(&self, completion: Completion);
}

impl PendingResponse {
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "the store on Redis makes them")
    )]
    pub(crate) fn shared(response: Option<Arc<dyn SharedResponse>>) -> Self {
        Self(Pending::Shared(response))
    }

    /// Drops the response of an [`Adjust`](Op::Adjust), which is made nevertheless. Its result goes to `completion`, but for a response that
    /// is a future of its own.
    pub(crate) fn detach(mut self, completion: Completion) {
        if let Pending::Shared(response) = &mut self.0
            && let Some(response) = response.take()
        {
            response.detach(completion);
        }
    }
}

impl Future for PendingResponse {
    type Output = Result<OpResult, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Pending::Boxed(response) => response.as_mut().poll(cx),
            Pending::Shared(shared) => {
                let Some(response) = shared.clone() else {
                    return Poll::Pending;
                };
                let result = ready!(response.poll_response(cx));
                *shared = None;
                Poll::Ready(result)
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Self::Shared(Some(response)) = self {
            response.abandon();
        }
    }
}

impl fmt::Debug for PendingResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingResponse").finish_non_exhaustive()
    }
}

impl fmt::Debug for StoreResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.debug_tuple("Pending").finish_non_exhaustive(),
        }
    }
}

/// A future that completes when nothing is queued: see [`Store::flush`].
pub type FlushFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
