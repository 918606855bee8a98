//! The permits of in-flight limits that requests hold, and the runtimes whose tasks renew them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use smallvec::SmallVec;
use tokio::runtime::{self, Handle};

use crate::decision::PolicyEntry;

/// The entries of one request under in-flight limits.
pub(crate) type PermitEntries = SmallVec<[PolicyEntry; 1]>;

/// The permits that requests hold. Each runtime in which some were acquired has a heartbeat task, which renews them: runtimes
/// end, and a current-thread runtime may not be polled for a while.
#[derive(Debug, Default)]
pub(crate) struct PermitRegistry(Mutex<Registry>);

#[derive(Debug, Default)]
pub(crate) struct Registry {
    permits: HashMap<u64, RegisteredPermits>,
    last_id: u64,
    heartbeat_runtimes: Vec<runtime::Id>,
}

/// The permits of one request.
#[derive(Debug)]
struct RegisteredPermits {
    entries: PermitEntries,
    /// The runtime whose heartbeat task renews them; `None` if they were acquired outside of a runtime, until there is a task.
    runtime: Option<runtime::Id>,
}

/// What renews added permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// A heartbeat task that has to be spawned in their runtime.
    NewTask,
    /// A heartbeat task that runs: their runtime's or, if they were acquired outside of one, another one's.
    RunningTask,
    /// Nothing, until there is a heartbeat task.
    Missing,
}

impl PermitRegistry {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Adds a request's permits; returns their id, and what renews them.
    pub(crate) fn add(
        &mut self,
        entries: &PermitEntries,
        runtime: Option<&Handle>,
    ) -> (u64, Renewal) {
        let other = || self.heartbeat_runtimes.first().copied();
        let runtime = runtime.map(Handle::id).or_else(other);
        self.last_id += 1;
        let entries = copy(entries);
        let permits = RegisteredPermits { entries, runtime };
        self.permits.insert(self.last_id, permits);
        let renewal = match runtime {
            None => Renewal::Missing,
            Some(runtime) if self.heartbeat_runtimes.contains(&runtime) => Renewal::RunningTask,
            Some(runtime) => {
                self.heartbeat_runtimes.push(runtime);
                self.reassign_orphans();
                Renewal::NewTask
            }
        };
        (self.last_id, renewal)
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.permits.remove(&id);
    }

    /// Assigns the permits of runtimes whose task has stopped to another runtime, if there is one.
    fn reassign_orphans(&mut self) {
        let Some(other) = self.heartbeat_runtimes.first() else {
            return;
        };
        for permits in self.permits.values_mut() {
            let runtime = permits.runtime;
            if runtime.is_none_or(|runtime| !self.heartbeat_runtimes.contains(&runtime)) {
                permits.runtime = Some(*other);
            }
        }
    }

    /// Those of the permits with these ids that are still held.
    pub(crate) fn held(&self, ids: &[u64]) -> Vec<(u64, PermitEntries)> {
        let held = ids
            .iter()
            .filter_map(|id| Some((*id, self.permits.get(id)?)));
        held.map(|(id, permits)| (id, copy(&permits.entries)))
            .collect()
    }

    /// Removes a runtime's heartbeat task.
    pub(crate) fn stop(&mut self, runtime: runtime::Id) {
        self.heartbeat_runtimes.retain(|other| *other != runtime);
        self.reassign_orphans();
    }

    /// The ids of the permits that a runtime's task renews. Without any, its task is removed, under the lock under which the
    /// next one is added.
    pub(crate) fn due_for_renewal(&mut self, runtime: runtime::Id) -> Vec<u64> {
        let permits = self.permits.iter();
        let assigned = permits.filter(|(_, permits)| permits.runtime == Some(runtime));
        let ids: Vec<_> = assigned.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            self.stop(runtime);
        }
        ids
    }
}

/// The entries, with receipts of their own.
fn copy(entries: &PermitEntries) -> PermitEntries {
    let copy = |entry: &PolicyEntry| {
        entry.with_receipts(entry.receipts.split(entry.receipts.first().remaining))
    };
    entries.iter().map(copy).collect()
}
