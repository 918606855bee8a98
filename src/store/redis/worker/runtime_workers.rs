//! The workers of one runtime.

use std::sync::Arc;

use tokio::runtime::{self, Handle, RuntimeFlavor};

use super::Worker;

/// The workers of one runtime.
#[derive(Clone, Debug)]
pub(super) struct RuntimeWorkers {
    pub(super) runtime: Handle,
    pub(super) workers: Arc<[Arc<Worker>]>,
    /// Whether a task of the runtime [steals](super::steal) for them.
    pub(super) steals: bool,
}

impl RuntimeWorkers {
    pub(super) fn is_of(&self, runtime: runtime::Id) -> bool {
        self.runtime.id() == runtime
    }

    pub(super) fn worker(&self, worker_index: usize) -> Option<&Arc<Worker>> {
        self.workers.get(worker_index % self.workers.len().max(1))
    }

    pub(super) fn close(&self) {
        self.workers.iter().for_each(|worker| worker.close());
    }
}

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
