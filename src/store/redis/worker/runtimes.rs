//! The workers of each runtime that uses the store, and the stealing of requests from runtimes that make no progress.
//!
//! A current-thread runtime makes progress only within `block_on`. A refund that is queued right before `block_on` returns
//! would wait for the next call, and a permit dropped there would stay charged for its whole TTL. So where several runtimes
//! use one store, each polls the queues of the others.

use std::{
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use tokio::{
    runtime::{self, Handle, RuntimeFlavor},
    time::{Instant, sleep},
};

use super::Worker;
use crate::{
    store::redis::{request::PendingRequest, state::StoreState, topology::Route},
    sync::lock,
};

/// How often a runtime polls the queues of the others.
const STEAL_INTERVAL: Duration = Duration::from_millis(250);

/// Detached requests that have waited for this long are stolen, however long the store's timeout is.
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
}

/// The workers of one runtime.
#[derive(Clone, Debug)]
pub(super) struct RuntimeWorkers {
    pub(super) runtime: Handle,
    workers: Arc<[Arc<Worker>]>,
    /// Whether a task of the runtime steals from the others.
    steals: bool,
}

impl Runtimes {
    pub(super) fn new(shared: Arc<StoreState>, per_runtime: usize) -> Arc<Self> {
        Arc::new(Self {
            shared,
            per_runtime,
            sets: ArcSwap::default(),
            write_lock: Mutex::default(),
        })
    }

    pub(super) fn per_runtime(&self) -> usize {
        self.per_runtime
    }

    #[inline]
    pub(super) fn load(&self) -> Guard<Arc<Vec<RuntimeWorkers>>> {
        self.sets.load()
    }

    /// Spawns the workers of a runtime, unless it has some. Where there are several runtimes, `steal_step` makes the step that
    /// each runs in intervals until it returns false.
    pub(super) fn spawn<S>(self: &Arc<Self>, handle: &Handle, steal_step: impl Fn(runtime::Id) -> S)
    where
        S: Fn() -> bool + Send + 'static,
    {
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
            steals: false,
        });
        if let [_, _, ..] = &sets[..] {
            for set in sets.iter_mut().filter(|set| !set.steals) {
                set.steals = true;
                drop(set.runtime.spawn(steal(steal_step(set.runtime.id()))));
            }
        }
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

    /// Whether a runtime is the only one that uses the store. If so, its stealing task ends.
    pub(super) fn is_alone(&self, runtime: runtime::Id) -> bool {
        let _write_lock = self.lock();
        let mut sets = Vec::clone(&self.sets.load());
        let alone = sets.iter().all(|set| set.is_of(runtime));
        if alone {
            sets.iter_mut().for_each(|set| set.steals = false);
            self.sets.store(Arc::new(sets));
        }
        alone
    }

    /// Removes the stalled requests from the queues of all runtimes but one: detached requests, whose timeout is the store's
    /// like that of any other.
    pub(super) fn take_stalled(&self, but: runtime::Id, timeout: Duration) -> Vec<PendingRequest> {
        let deadline_before = Instant::now() + timeout - timeout.min(MAX_STALL);
        let sets = self.sets.load();
        let others = sets.iter().filter(|set| !set.is_of(but));
        let workers = others.flat_map(|set| set.workers.iter());
        workers
            .flat_map(|worker| worker.take_stalled(deadline_before))
            .collect()
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

/// The runtime other than `stalled` that is most likely to make progress: a multi-threaded one, if there is one.
pub(super) fn running(
    sets: &[RuntimeWorkers],
    stalled: Option<runtime::Id>,
) -> Option<&RuntimeWorkers> {
    let others = || sets.iter().filter(|set| Some(set.runtime.id()) != stalled);
    let flavor =
        |set: &&RuntimeWorkers| set.runtime.runtime_flavor() != RuntimeFlavor::CurrentThread;
    others().find(flavor).or_else(|| others().next())
}

/// The stealing task of a runtime.
async fn steal(step: impl Fn() -> bool) {
    loop {
        sleep(STEAL_INTERVAL).await;
        if !step() {
            return;
        }
    }
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
