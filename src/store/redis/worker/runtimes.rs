//! The workers of each runtime that uses the store, and the requests of runtimes that make no progress.
//!
//! A current-thread runtime makes progress only within `block_on`. A refund that is queued right before `block_on` returns
//! would wait for the next call, and a permit dropped there would stay charged for its whole TTL. So the background thread looks
//! for such requests in the queues of these runtimes, and sends them.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use tokio::{
    runtime::{self, Handle, RuntimeFlavor},
    time::Instant,
};

use super::Worker;
use crate::{
    store::redis::{request::PendingRequest, state::StoreState, topology::Route},
    sync::lock,
};

/// Detached requests that have waited for this long have stalled, however long the store's timeout is.
const MAX_STALL: Duration = Duration::from_secs(1);

/// The workers of each runtime that uses the store.
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
                runtime: handle.id(),
                runtimes: Arc::downgrade(self),
            };
            drop(handle.spawn(async move {
                let _guard = guard;
                worker.run(route).await;
            }));
        }
    }

    /// Removes the workers of a runtime.
    fn remove(&self, runtime: runtime::Id) {
        let write_lock = self.lock();
        let (ended, sets): (Vec<_>, Vec<_>) = Vec::clone(&self.sets.load())
            .into_iter()
            .partition(|set| set.is_of(runtime));
        self.sets.store(Arc::new(sets));
        // A dropped worker fails its requests, whose callers may look for another worker: not under the lock.
        drop(write_lock);
        ended.iter().for_each(RuntimeWorkers::close);
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

/// Removes a runtime's workers when one of them is dropped, which happens when the runtime shuts down.
struct WorkerGuard {
    runtime: runtime::Id,
    runtimes: Weak<Runtimes>,
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        if let Some(runtimes) = self.runtimes.upgrade() {
            runtimes.remove(self.runtime);
        }
    }
}
