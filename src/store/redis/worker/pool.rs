//! The pool of workers: finds the worker of a request and queues the request there. Each runtime has workers of its own, since
//! a worker's task ends with the runtime that it runs on.

use std::{
    hash::BuildHasher,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use hashbrown::DefaultHashBuilder;
use tokio::{
    runtime::{self, Handle, RuntimeFlavor},
    time::{Instant, sleep},
};

use super::{Worker, probe};
use crate::{
    background::background_runtime,
    error::StoreError,
    key::Key,
    runtime::runtime_with_io,
    store::{
        Op, OpResult,
        redis::{
            cluster::hash_tags::HashTags,
            rejection_cache::CacheToken,
            request::{
                Followers, OnResponse, PendingRequest, RefundRetry, RequestState, Sent,
                UndeliveredGuard, ended,
                op::{CounterOps, OwnedCounterOp},
                response_handle::ResponseHandle,
            },
            state::StoreState,
            topology::Route,
        },
    },
    sync::lock,
};

/// How often the background thread looks for stalled requests.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct WorkerPool {
    shared: Arc<StoreState>,
    runtimes: Arc<Runtimes>,
    hasher: DefaultHashBuilder,
}

impl WorkerPool {
    pub(crate) fn new(shared: Arc<StoreState>, per_runtime: usize) -> Self {
        Self {
            runtimes: Runtimes::new(shared.clone(), per_runtime),
            shared,
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(crate) fn per_runtime(&self) -> usize {
        self.runtimes.per_runtime()
    }

    /// A hash of the keys.
    fn hash(&self, counters: &CounterOps) -> u64 {
        let keys = counters
            .iter()
            .map(|counter| self.hasher.hash_one(counter.key));
        keys.reduce(|all, hash| all.rotate_left(5) ^ hash)
            .unwrap_or(0)
    }

    /// The index of the worker: the same for equal requests and, on a cluster, for all keys of one hash tag.
    fn worker_index(&self, counters: &CounterOps, hash: u64) -> usize {
        match (self.shared.topology.tags(), counters.first()) {
            (Some(tags), Some(first)) => tags.of(&first.key),
            // A batch finds equal requests by the other half of the hash.
            _ => (hash >> 32) as usize,
        }
    }

    /// The hash tag of the first key: zero, except on a cluster.
    pub(crate) fn tag_of(&self, counters: &CounterOps) -> usize {
        let first = counters.first();
        first.map_or(0, |counter| self.shared.topology.tag_of(&counter.key))
    }

    /// The hash tags, on a cluster.
    pub(crate) fn tags(&self) -> Option<&HashTags> {
        self.shared.topology.tags()
    }

    /// Whether the keys of a request are in several slots of a cluster.
    #[inline]
    pub(crate) fn spans_slots<'a>(&self, mut keys: impl ExactSizeIterator<Item = &'a Key>) -> bool {
        let Some(tags) = self.tags().filter(|_| keys.len() > 1) else {
            return false;
        };
        let first = keys.next().map(|key| tags.of(key));
        keys.any(|key| Some(tags.of(key)) != first)
    }

    /// The error of a request for these keys, if a circuit breaker is open.
    pub(crate) fn find_open_breaker<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a Key>,
    ) -> Option<StoreError> {
        let shared = &self.shared;
        keys.find_map(|key| {
            let tag = shared.topology.tag_of(key);
            let open = shared.breaker(tag).check().err()?;
            probe::start(shared, tag);
            Some(open)
        })
    }

    /// The sets of all runtimes, with this one's among them unless it is shutting down.
    #[inline]
    fn workers(self: &Arc<Self>, runtime: &Handle) -> Guard<Arc<Vec<RuntimeWorkers>>> {
        let sets = self.runtimes.load();
        if sets.iter().any(|set| set.is_of(runtime.id())) {
            return sets;
        }
        // Its workers would need timers and IO.
        if runtime_with_io().is_none() {
            return sets;
        }
        drop(sets);
        self.runtimes.spawn(runtime);
        self.runtimes.load()
    }

    /// Executes an operation on keys of one slot, by this runtime's worker. Sets `followers.undelivered`.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoRuntime`] outside of a tokio runtime with timers and IO, [`StoreError::CircuitOpen`] while the circuit breaker is
    /// open, [`StoreError::Connection`] in a runtime that is shutting down; in place of the last two, for a charge or refund by hand
    /// [`StoreError::Deferred`].
    #[inline]
    pub(crate) fn execute(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        deadline: Instant,
        mut followers: Followers,
        refund_retry: RefundRetry,
    ) -> Result<ResponseHandle, StoreError> {
        let no_runtime = || {
            StoreError::NoRuntime(
                "the Redis store sends requests from the caller's runtime, which needs timers and IO",
            )
        };
        let (worker_index, hash) = self.invalidate_and_route(op, &counters);
        let here = Handle::try_current().map_err(|_| no_runtime())?;
        followers.undelivered = self.undelivered(op);
        let state = RequestState::with_followers(op, counters, deadline, hash, followers);
        let (mut request, response) = PendingRequest::with_response(state, Some(here.id()));
        request.refund_retry = refund_retry;
        let sets = self.workers(&here);
        let Some(worker) = worker_of(&sets, here.id(), worker_index) else {
            let error = match runtime_with_io() {
                // It is shutting down.
                Some(_) => ended(),
                None => no_runtime(),
            };
            let (tag, refunds) = (self.tag_of(&request.counters), &self.shared.pending_refunds);
            return Err(refunds.fail_and_keep(tag, request, error, Sent::No));
        };
        worker.push(request)?;
        Ok(response)
    }

    /// Invalidates the cached rejections of keys that the operation may give units. Returns the index of the worker and a hash of the keys.
    #[inline]
    fn invalidate_and_route(&self, op: Op, counters: &CounterOps) -> (usize, u64) {
        if op.may_admit_sooner() {
            self.shared
                .rejection_cache
                .invalidate(counters.iter().map(OwnedCounterOp::cache_key));
        }
        let hash = self.hash(counters);
        (self.worker_index(counters, hash), hash)
    }

    /// Executes an operation without a waiter on this runtime or, if there is none or it is shutting down, on the background thread's.
    /// If there is none either, a refund is kept for the next one.
    pub(crate) fn execute_detached(self: &Arc<Self>, op: Op, counters: CounterOps) {
        let (worker_index, state) = self.detached(op, counters, None);
        self.push_detached(worker_index, PendingRequest::detached(state));
    }

    /// Executes an operation as [`execute_detached`](Self::execute_detached) does, and calls back with its response. It is sent once.
    pub(crate) fn execute_with_callback(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        on_response: Box<dyn OnResponse>,
    ) {
        let (worker_index, state) = self.detached(op, counters, Some(on_response));
        self.push_detached(worker_index, PendingRequest::with_callback(state));
    }

    /// Executes an operation by the background thread's worker, and calls back with its response. It is sent once.
    pub(crate) fn execute_in_background(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        on_response: Box<dyn OnResponse>,
    ) {
        let (worker_index, state) = self.detached(op, counters, Some(on_response));
        self.push_to_background(worker_index, PendingRequest::with_callback(state));
    }

    /// Executes an operation without a waiter, as [`execute_detached`](Self::execute_detached) does. Returns a handle to its
    /// response, on which no request depends.
    pub(crate) fn execute_detached_with_response(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
    ) -> ResponseHandle {
        let (worker_index, state) = self.detached(op, counters, None);
        let here = Handle::try_current().ok().map(|here| here.id());
        let (request, response) = PendingRequest::detached_with_response(state, here);
        self.push_detached(worker_index, request);
        response
    }

    /// The index of the worker, and the state of a request that no task waits for.
    fn detached(
        &self,
        op: Op,
        counters: CounterOps,
        on_response: Option<Box<dyn OnResponse>>,
    ) -> (usize, Arc<RequestState>) {
        let (worker_index, hash) = self.invalidate_and_route(op, &counters);
        let followers = Followers {
            on_response,
            undelivered: self.undelivered(op),
            ..Followers::default()
        };
        let state = RequestState::with_followers(op, counters, self.deadline(), hash, followers);
        (worker_index, state)
    }

    fn push_detached(self: &Arc<Self>, worker_index: usize, request: PendingRequest) {
        if let Ok(here) = Handle::try_current()
            && let Some(own) = worker_of(&self.workers(&here), here.id(), worker_index)
        {
            // If it fails, the worker keeps or drops it.
            let _ = own.push(request);
            if is_current_thread(&here) && self.runtimes.begin_watch() {
                self.watch();
            }
            return;
        }
        self.push_to_background(worker_index, request);
    }

    fn push_to_background(self: &Arc<Self>, worker_index: usize, request: PendingRequest) {
        let background = background_runtime();
        if let Some(background) = &background {
            self.runtimes.spawn(background);
        }
        let sets = self.runtimes.load();
        let worker = background.and_then(|there| worker_of(&sets, there.id(), worker_index));
        if let Some(worker) = worker {
            worker.push_detached(request);
        }
    }

    /// Has the background thread send the stalled requests of current-thread runtimes, for as long as there are any.
    #[cold]
    fn watch(self: &Arc<Self>) {
        let Some(background) = background_runtime() else {
            return self.runtimes.end_watch();
        };
        let mut watch = Watch(Arc::downgrade(self));
        let background_id = background.id();
        drop(background.spawn(async move {
            loop {
                sleep(WATCH_INTERVAL).await;
                let Some(pool) = watch.0.upgrade() else {
                    return;
                };
                let Some(stalled) = pool.runtimes.take_stalled(background_id, pool.timeout())
                else {
                    // Another watch may have begun by now.
                    drop(mem::take(&mut watch.0));
                    return;
                };
                for request in stalled {
                    pool.execute_detached(request.op, request.counters.clone());
                    request.discard();
                }
            }
        }));
    }

    /// Counts an operation that must not be lost as undelivered until it completes.
    #[inline]
    fn undelivered(&self, op: Op) -> Option<UndeliveredGuard> {
        match op {
            // What another party says again with its next response may be lost.
            Op::Acquire(_) | Op::Peek | Op::Inspect | Op::Renew | Op::Lower { .. } => None,
            Op::ForceAcquire | Op::Refund | Op::Settle | Op::Reset => {
                Some(self.shared.pending_refunds.undelivered())
            }
        }
    }

    /// Caches the rejection of a request with this deadline.
    pub(crate) fn cache_rejection(
        &self,
        counters: &CounterOps,
        deadline: Instant,
        result: &OpResult,
        cache_token: &CacheToken,
    ) {
        // The deadline was set when the request arrived.
        let age = self.deadline().saturating_duration_since(deadline);
        let counters = counters.iter().map(OwnedCounterOp::cache_key);
        let cache = &self.shared.rejection_cache;
        cache.insert(counters, result, cache_token, age);
        self.shared.refresh_rejection_epoch();
    }

    /// The deadline of a request that arrives now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.shared.timeout
    }
}

/// Records the end of a watch, also by a panic of an observer.
struct Watch(Weak<WorkerPool>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.runtimes.end_watch();
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.runtimes.hand_over();
        self.runtimes.close();
    }
}

/// Detached requests that have waited for this long have stalled, however long the store's timeout is.
const MAX_STALL: Duration = Duration::from_secs(1);

/// The workers of each runtime that uses the store, and the requests of runtimes that make no progress.
///
/// A current-thread runtime makes progress only within `block_on`. A refund that is queued right before `block_on` returns would wait
/// for the next call, and a permit dropped there would stay charged for its whole TTL. So the background thread looks for such
/// requests in the queues of these runtimes, and sends them.
#[derive(Debug)]
pub(super) struct Runtimes {
    shared: Arc<StoreState>,
    /// Workers of each runtime.
    per_runtime: usize,
    /// Read by each request, written when a runtime is first seen and when it ends.
    sets: ArcSwap<Vec<RuntimeWorkers>>,
    /// Held while `sets` is replaced.
    write_lock: Mutex<()>,
    /// Whether a task looks for stalled requests.
    is_watched: AtomicBool,
}

/// The workers of one runtime.
#[derive(Clone, Debug)]
pub(super) struct RuntimeWorkers {
    pub(super) runtime: Handle,
    workers: Arc<[Arc<Worker>]>,
}

impl Runtimes {
    pub(super) fn new(shared: Arc<StoreState>, per_runtime: usize) -> Arc<Self> {
        Arc::new(Self {
            shared,
            per_runtime,
            sets: ArcSwap::default(),
            write_lock: Mutex::default(),
            is_watched: AtomicBool::new(false),
        })
    }

    pub(super) fn per_runtime(&self) -> usize {
        self.per_runtime
    }

    #[inline]
    pub(super) fn load(&self) -> Guard<Arc<Vec<RuntimeWorkers>>> {
        self.sets.load()
    }

    /// Spawns the workers of a runtime, unless it has some.
    pub(super) fn spawn(self: &Arc<Self>, handle: &Handle) {
        let write_lock = self.lock();
        let mut sets = Vec::clone(&self.sets.load());
        if sets.iter().any(|set| set.is_of(handle.id())) {
            return;
        }
        let routes = self.shared.topology.routes(self.per_runtime);
        let worker = |route: &Route| Arc::new(Worker::new(self.shared.clone(), route.tag()));
        let workers: Arc<[_]> = routes.iter().map(worker).collect();
        sets.push(RuntimeWorkers {
            runtime: handle.clone(),
            workers: workers.clone(),
        });
        self.sets.store(Arc::new(sets));
        // A runtime that is shutting down drops spawned tasks at once, which removes the workers again: not under the lock.
        drop(write_lock);
        for (worker, route) in workers.iter().cloned().zip(routes) {
            let guard = WorkerGuard {
                workers: Arc::downgrade(&workers),
                runtimes: Arc::downgrade(self),
            };
            drop(handle.spawn(async move {
                let _guard = guard;
                worker.run(route).await;
            }));
        }
    }

    /// Removes the workers of a runtime, and not those that have replaced them since.
    fn remove(&self, workers: &Weak<[Arc<Worker>]>) {
        let write_lock = self.lock();
        let (ended, sets): (Vec<_>, Vec<_>) = Vec::clone(&self.sets.load())
            .into_iter()
            .partition(|set| Weak::ptr_eq(&Arc::downgrade(&set.workers), workers));
        self.sets.store(Arc::new(sets));
        // A dropped worker fails its requests, whose callers may look for another worker: not under the lock.
        drop(write_lock);
        ended.iter().for_each(RuntimeWorkers::close);
    }

    /// Hands the detached requests of other runtimes over to the background thread, since the store is dropped: their runtimes may not be
    /// driven any more.
    fn hand_over(self: &Arc<Self>) {
        // As long as a current-thread runtime may have some.
        if !self.is_watched.load(Ordering::Relaxed) {
            return;
        }
        let Some(background) = background_runtime() else {
            return;
        };
        self.spawn(&background);
        let sets = self.load();
        let later = Instant::now() + 2 * self.shared.timeout;
        let others = sets.iter().filter(|set| !set.is_of(background.id()));
        for (index, worker) in others.flat_map(|set| set.workers.iter().enumerate()) {
            if let Some(own) = worker_of(&sets, background.id(), index) {
                let detached = worker.take_stalled(later).into_iter();
                detached.for_each(|request| own.push_detached(request));
            }
        }
    }

    /// Ends all workers once their queues are empty.
    pub(super) fn close(&self) {
        self.sets.load().iter().for_each(RuntimeWorkers::close);
    }

    /// Whether a task has to be started that looks for stalled requests.
    pub(super) fn begin_watch(&self) -> bool {
        !self.is_watched.load(Ordering::Relaxed) && !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Records that no such task runs.
    pub(super) fn end_watch(&self) {
        self.is_watched.store(false, Ordering::Relaxed);
    }

    /// Removes the stalled requests from the queues of current-thread runtimes, but for the one of this background thread: detached
    /// requests, whose timeout is the store's like that of any other. `None` if there is no such runtime: the watch has ended.
    pub(super) fn take_stalled(
        &self,
        background: runtime::Id,
        timeout: Duration,
    ) -> Option<Vec<PendingRequest>> {
        let deadline_before = Instant::now() + timeout - timeout.min(MAX_STALL);
        let write_lock = self.lock();
        let sets = self.sets.load();
        let watched = || {
            let sets = sets.iter().filter(|set| !set.is_of(background));
            sets.filter(|set| is_current_thread(&set.runtime))
        };
        if watched().next().is_none() {
            self.end_watch();
            return None;
        }
        drop(write_lock);
        let workers = watched().flat_map(|set| set.workers.iter());
        let stalled = workers.flat_map(|worker| worker.take_stalled(deadline_before));
        Some(stalled.collect())
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        lock(&self.write_lock)
    }
}

impl RuntimeWorkers {
    pub(super) fn is_of(&self, runtime: runtime::Id) -> bool {
        self.runtime.id() == runtime
    }

    pub(super) fn worker(&self, worker_index: usize) -> Option<&Arc<Worker>> {
        self.workers.get(worker_index % self.workers.len().max(1))
    }

    fn close(&self) {
        self.workers.iter().for_each(|worker| worker.close());
    }
}

/// A worker of a runtime.
pub(super) fn worker_of(
    sets: &[RuntimeWorkers],
    runtime: runtime::Id,
    worker_index: usize,
) -> Option<&Arc<Worker>> {
    let set = sets.iter().find(|set| set.is_of(runtime))?;
    set.worker(worker_index)
}

/// Whether a runtime makes progress within its `block_on` only.
pub(super) fn is_current_thread(runtime: &Handle) -> bool {
    runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Removes a runtime's workers when one of them is dropped, which happens when the runtime shuts down, or the worker panics: in code of
/// the application, or where no thread can be started to look up a host name.
struct WorkerGuard {
    workers: Weak<[Arc<Worker>]>,
    runtimes: Weak<Runtimes>,
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        if let Some(runtimes) = self.runtimes.upgrade() {
            runtimes.remove(&self.workers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        RedisStore,
        clock::Timestamp,
        store::{CounterOp, CounterResult, LimitHandle},
        strategy::{Gcra, Snapshot},
    };

    /// Those of a runtime end one after the other.
    #[tokio::test]
    async fn workers_that_end_leave_those_that_have_replaced_them() {
        let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
        let (runtimes, here) = (&store.inner.workers.runtimes, Handle::current());
        runtimes.spawn(&here);
        let workers = Arc::downgrade(&runtimes.load()[0].workers);
        let end = || {
            drop(WorkerGuard {
                workers: workers.clone(),
                runtimes: Arc::downgrade(runtimes),
            });
        };
        end();
        assert_eq!(runtimes.load().len(), 0);
        runtimes.spawn(&here);
        end();
        assert_eq!(runtimes.load().len(), 1);
    }

    #[test]
    fn a_rejection_is_cached_from_the_arrival_of_its_request() {
        let store = RedisStore::builder()
            .url("redis://127.0.0.1:1")
            .rejection_cache_staleness(Duration::from_secs(3_600));
        let store = store.build().expect("a store");
        let (workers, rejection_cache) =
            (&store.inner.workers, &store.inner.shared.rejection_cache);
        let limit = LimitHandle::unregistered(Gcra, "1/min");
        // One unit has to wait for a minute.
        let minute = CounterResult::new(0, Snapshot::new([1_200_000_000]));
        let rejected = OpResult::new(Timestamp::default(), 0, [minute]);
        for (key, ago, holds) in [("now", 0, true), ("long ago", 61, false)] {
            let counter = OwnedCounterOp::of(&CounterOp::new(&limit, Key::new(key)));
            let counters = CounterOps::from([counter.clone()]);
            let keys = || std::iter::once(counter.cache_key());
            let cache_token = rejection_cache
                .token(Op::Acquire(1), keys())
                .expect("it matters");
            let requested_at = Instant::now() - Duration::from_secs(ago);
            let deadline = requested_at + store.inner.shared.timeout;
            workers.cache_rejection(&counters, deadline, &rejected, &cache_token);
            let found = rejection_cache.get(Op::Acquire(1), keys());
            assert_eq!(found.is_some(), holds, "{key}");
        }
    }
}
