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
    redis::{
        cluster::hash_tags::HashTags,
        rejection_cache::CacheToken,
        request::{
            Followers, OnResponse, PendingRequest, RequestState, Retry, Sent, UndeliveredGuard,
            ended,
            op::{CounterOps, OwnedCounterOp},
            response_handle::ResponseHandle,
        },
        state::StoreState,
        topology::Route,
    },
    runtime::{background_or_current, runtime_with_io},
    store::{Op, OpResult},
    sync::lock,
};

/// How often the background thread looks for stalled requests, and sends pending refunds.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Detached requests that have waited for this long have stalled, however long the store's timeout is.
const MAX_STALL: Duration = Duration::from_secs(1);

/// The workers of each runtime that uses the store.
///
/// A current-thread runtime makes progress only within `block_on`. A refund that is queued right before `block_on` returns would wait
/// for the next call, and a permit dropped there would stay charged for its whole TTL. So the background thread looks for such
/// requests in the queues of these runtimes, and sends them.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    shared: Arc<StoreState>,
    hasher: DefaultHashBuilder,
    /// Workers of each runtime.
    per_runtime: usize,
    /// Read by each request, written when a runtime is first seen and when it ends.
    sets: ArcSwap<Vec<RuntimeWorkers>>,
    /// Held while `sets` is replaced.
    write_lock: Mutex<()>,
    /// Whether a task sends what nothing else would.
    is_watched: AtomicBool,
}

/// The workers of one runtime.
#[derive(Clone, Debug)]
struct RuntimeWorkers {
    runtime: Handle,
    workers: Arc<[Arc<Worker>]>,
}

impl WorkerPool {
    pub(crate) fn new(shared: Arc<StoreState>, per_runtime: usize) -> Self {
        Self {
            shared,
            hasher: DefaultHashBuilder::default(),
            per_runtime,
            sets: ArcSwap::default(),
            write_lock: Mutex::default(),
            is_watched: AtomicBool::new(false),
        }
    }

    pub(crate) fn per_runtime(&self) -> usize {
        self.per_runtime
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
        let sets = self.sets.load();
        if sets.iter().any(|set| set.is_of(runtime.id())) {
            return sets;
        }
        // Its workers would need timers and IO.
        if runtime_with_io().is_none() {
            return sets;
        }
        drop(sets);
        self.spawn(Arc::downgrade(self), runtime);
        self.sets.load()
    }

    /// Executes an operation on keys of one slot, by this runtime's worker. Sets `followers.undelivered`.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoRuntime`] outside of a tokio runtime with timers and IO, [`StoreError::CircuitOpen`] while the circuit breaker is
    /// open, [`StoreError::Connection`] in a runtime that is shutting down.
    #[inline]
    pub(crate) fn execute(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        deadline: Instant,
        mut followers: Followers,
        retry: Retry,
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
        request.retry = retry;
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

    /// Executes an operation without a waiter on this runtime or, if there is none or it is shutting down, on the background thread's, and
    /// calls back with the response. An adjustment that did not run is sent again, without a callback.
    pub(crate) fn execute_detached(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        on_response: Option<Box<dyn OnResponse>>,
    ) {
        let has_callback = on_response.is_some();
        let (worker_index, state) = self.detached(op, counters, on_response);
        let request = if has_callback {
            PendingRequest::with_callback(state, Retry::Always)
        } else {
            PendingRequest::detached(state)
        };
        self.push_detached(worker_index, request);
    }

    /// Executes an operation without a waiter, as [`execute_detached`](Self::execute_detached) does, but sends it once.
    pub(crate) fn execute_with_callback(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        on_response: Box<dyn OnResponse>,
    ) {
        let (worker_index, state) = self.detached(op, counters, Some(on_response));
        let request = PendingRequest::with_callback(state, Retry::Never);
        self.push_detached(worker_index, request);
    }

    /// Executes an operation by the background thread's worker, and calls back with its response. It is sent once.
    pub(crate) fn execute_in_background(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        on_response: Box<dyn OnResponse>,
    ) {
        let (worker_index, state) = self.detached(op, counters, Some(on_response));
        self.push_to_background(
            worker_index,
            PendingRequest::with_callback(state, Retry::Never),
        );
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
            if is_current_thread(&here) {
                self.begin_watch();
            }
            return;
        }
        self.push_to_background(worker_index, request);
    }

    fn push_to_background(self: &Arc<Self>, worker_index: usize, request: PendingRequest) {
        let background = background_runtime();
        if let Some(background) = &background {
            self.spawn(Arc::downgrade(self), background);
        }
        let sets = self.sets.load();
        let worker = background.and_then(|there| worker_of(&sets, there.id(), worker_index));
        if let Some(worker) = worker {
            worker.push_detached(request);
        }
    }

    /// Has the background thread send what nothing else would, for as long as there is any: the stalled requests of current-thread runtimes,
    /// and pending refunds.
    #[inline]
    pub(crate) fn begin_watch(self: &Arc<Self>) {
        if !self.is_watched.load(Ordering::Relaxed) {
            self.watch();
        }
    }

    #[cold]
    fn watch(self: &Arc<Self>) {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut watch = Watch(Arc::downgrade(self));
        let Some(runtime) = background_or_current() else {
            return;
        };
        let here = runtime.id();
        drop(runtime.spawn(async move {
            loop {
                sleep(WATCH_INTERVAL).await;
                let Some(pool) = watch.0.upgrade() else {
                    return;
                };
                if pool.end_watch(here) {
                    // Another watch may have begun by now.
                    drop(mem::take(&mut watch.0));
                    return;
                }
                for mut request in pool.take_stalled(here) {
                    let on_response = request.take_callback();
                    pool.execute_detached(request.op, request.counters.clone(), on_response);
                    request.discard();
                }
                pool.shared.pending_refunds.resume();
                pool.shared.resend_refunds();
            }
        }));
    }

    /// Ends the watch of this runtime if it has nothing to look for. What comes later begins another one.
    fn end_watch(&self, here: runtime::Id) -> bool {
        if self.needs_watch(here) {
            return false;
        }
        self.is_watched.store(false, Ordering::Relaxed);
        // What has come meanwhile may have found it watched.
        !self.needs_watch(here) || self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Whether there is a current-thread runtime other than this one, or a pending refund.
    fn needs_watch(&self, here: runtime::Id) -> bool {
        let write_lock = self.lock();
        let has_watched = watched(&self.sets.load(), here).next().is_some();
        drop(write_lock);
        has_watched || !self.shared.pending_refunds.tags().is_empty()
    }

    /// Removes the stalled requests from the queues of current-thread runtimes, but for the one of this task: detached requests, whose
    /// timeout is the store's like that of any other.
    fn take_stalled(&self, here: runtime::Id) -> Vec<PendingRequest> {
        let timeout = self.timeout();
        let deadline_before = Instant::now() + timeout - timeout.min(MAX_STALL);
        let sets = self.sets.load();
        let workers = watched(&sets, here).flat_map(|set| set.workers.iter());
        let stalled = workers.flat_map(|worker| worker.take_stalled(deadline_before));
        stalled.collect()
    }

    /// Counts an operation that must not be lost as undelivered until it completes.
    #[inline]
    fn undelivered(&self, op: Op) -> Option<UndeliveredGuard> {
        match op {
            Op::Acquire(_) | Op::Peek | Op::Renew => None,
            Op::Adjust | Op::Reset => Some(self.shared.pending_refunds.undelivered()),
        }
    }

    /// Caches the rejection of a request with this deadline.
    pub(crate) fn cache_rejection(
        &self,
        counters: &CounterOps,
        deadline: Instant,
        result: &OpResult,
        cache_token: CacheToken,
    ) {
        // The deadline was set when the request arrived.
        let age = self.deadline().saturating_duration_since(deadline);
        let counters = counters.iter().map(OwnedCounterOp::cache_key);
        let cache = &self.shared.rejection_cache;
        cache.insert(counters, result, cache_token, age);
    }

    /// The deadline of a request that arrives now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// Spawns the workers of a runtime, unless it has some.
    fn spawn(&self, this: Weak<Self>, handle: &Handle) {
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
                pool: this.clone(),
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

    /// Hands the detached requests of current-thread runtimes over to the background thread, since the store is dropped: their runtimes may not be
    /// driven any more.
    fn hand_over(&self) {
        // As long as a current-thread runtime may have some, also if refunds alone are pending.
        if !self.is_watched.load(Ordering::Relaxed) {
            return;
        }
        let Some(background) = background_runtime() else {
            return;
        };
        self.spawn(Weak::new(), &background);
        let sets = self.sets.load();
        let later = Instant::now() + 2 * self.shared.timeout;
        let others = watched(&sets, background.id());
        for (index, worker) in others.flat_map(|set| set.workers.iter().enumerate()) {
            if let Some(own) = worker_of(&sets, background.id(), index) {
                let detached = worker.take_stalled(later).into_iter();
                detached.for_each(|request| own.push_detached(request));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        lock(&self.write_lock)
    }
}

/// Records the end of a watch, also by a panic.
struct Watch(Weak<WorkerPool>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.is_watched.store(false, Ordering::Relaxed);
        }
    }
}

/// Ends all workers once their queues are empty.
impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.hand_over();
        self.sets.load().iter().for_each(RuntimeWorkers::close);
    }
}

/// The workers of current-thread runtimes other than this one.
fn watched(sets: &[RuntimeWorkers], here: runtime::Id) -> impl Iterator<Item = &RuntimeWorkers> {
    let others = sets.iter().filter(move |set| !set.is_of(here));
    others.filter(|set| is_current_thread(&set.runtime))
}

impl RuntimeWorkers {
    fn is_of(&self, runtime: runtime::Id) -> bool {
        self.runtime.id() == runtime
    }

    fn close(&self) {
        self.workers.iter().for_each(|worker| worker.close());
    }
}

/// A worker of a runtime.
fn worker_of(
    sets: &[RuntimeWorkers],
    runtime: runtime::Id,
    worker_index: usize,
) -> Option<&Arc<Worker>> {
    let workers = &sets.iter().find(|set| set.is_of(runtime))?.workers;
    workers.get(worker_index % workers.len().max(1))
}

/// Whether a runtime makes progress within its `block_on` only.
fn is_current_thread(runtime: &Handle) -> bool {
    runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Removes a runtime's workers when one of them is dropped, which happens when the runtime shuts down, or the worker panics: in code of
/// the application, or where no thread can be started to look up a host name.
struct WorkerGuard {
    workers: Weak<[Arc<Worker>]>,
    pool: Weak<WorkerPool>,
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.remove(&self.workers);
        }
    }
}
