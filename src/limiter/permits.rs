//! The permits of in-flight limits that one request holds, and the task that renews them.

use std::{
    collections::HashMap,
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, Weak, atomic::Ordering},
};

use smallvec::SmallVec;
use tokio::{
    runtime::{self, Handle},
    task::coop::consume_budget,
    time::{Instant, sleep_until},
};

use super::{core::LimiterCore, entry::PolicyEntry, wait_queue::QueueKey};
use crate::{
    background::background_runtime,
    key::Key,
    log::LogThrottle,
    observe::Event,
    runtime::runtime_with_timers,
    store::{CounterOp, Op, StoreResponse},
    sync::lock,
};

/// How often a permit is renewed within its TTL.
const HEARTBEATS_PER_TTL: u32 = 3;

/// How often renewals that failed are retried between two heartbeats.
const RETRIES_PER_HEARTBEAT: u32 = 8;

/// Upper bound of the renewals in flight: a request that is sent meanwhile waits behind no more than these.
const MAX_RENEWALS: usize = 128;

/// The permits that one request holds. Dropping it releases them.
pub(crate) struct HeldPermits {
    limiter: Arc<LimiterCore>,
    id: u64,
    entries: PermitEntries,
    /// The runtime in which they were acquired.
    runtime: Option<Handle>,
    /// The queue of [`Limiter::wait`](crate::Limiter::wait) in which the request waited for them, which their release notifies.
    queue_key: OnceLock<QueueKey>,
}

impl LimiterCore {
    /// Reports that permits are held or released.
    pub(crate) fn report_permits(
        &self,
        entries: &[PolicyEntry],
        event: impl for<'a> Fn(&'a str, &'a Key, u64) -> Event<'a>,
    ) {
        let Some(observers) = &self.observers else {
            return;
        };
        for entry in entries {
            let policy = self.bound(entry.policy).policy.name();
            observers.on_event(&event(policy, &entry.key, entry.receipts.first().remaining));
        }
    }
}

impl HeldPermits {
    /// Holds permits that were charged; `None` if there are none.
    pub(super) fn hold(limiter: &Arc<LimiterCore>, entries: PermitEntries) -> Option<Arc<Self>> {
        if entries.is_empty() {
            return None;
        }
        let runtime = runtime_with_timers();
        let renewed_by = runtime.clone().or_else(background_runtime);
        let (id, renewal) = limiter.permits.lock().add(&entries, renewed_by.as_ref());
        match (renewal, &renewed_by) {
            (Renewal::NewTask, Some(runtime)) => spawn_heartbeat(limiter, runtime),
            (Renewal::RunningTask, _) => {}
            (Renewal::NewTask | Renewal::Missing, _) => {
                static LOG: LogThrottle = LogThrottle::new();
                LOG.log_with(|suppressed| {
                    tracing::warn!(
                        suppressed,
                        "permits of in-flight limits can't be renewed: there is no tokio runtime with timers, and no background thread"
                    );
                });
            }
        }
        for entry in &entries {
            let held = &limiter.bound(entry.policy).permits_held;
            held.fetch_add(entry.receipts.first().remaining, Ordering::Relaxed);
        }
        limiter.report_permits(&entries, |policy, key, permits| Event::PermitsHeld {
            policy,
            key,
            permits,
        });
        Some(Arc::new(Self {
            limiter: limiter.clone(),
            id,
            entries,
            runtime,
            queue_key: OnceLock::new(),
        }))
    }

    /// Has them renewed in the current runtime: they were acquired for its request by a task of another one, which may end, or
    /// stand still.
    fn renew_here(&self) {
        let here = runtime_with_timers().or_else(background_runtime);
        let there = self.runtime.as_ref().map(Handle::id);
        if let Some(here) = here.filter(|here| Some(here.id()) != there)
            && self.limiter.permits.lock().assign(self.id, here.id()) == Renewal::NewTask
        {
            spawn_heartbeat(&self.limiter, &here);
        }
    }

    /// Logs that a decision was dropped before its permits were taken over.
    fn log_unclaimed(&self) {
        for entry in &self.entries {
            let bound = self.limiter.bound(entry.policy);
            if !bound.unclaimed_logged.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    policy = bound.policy.name(),
                    "a decision was dropped with the permit of an in-flight limit, which is released: use Limiter::admit, and \
                     keep the Admission while the work runs"
                );
            }
        }
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        self.limiter.permits.lock().remove(self.id);
        for entry in &self.entries {
            let held = &self.limiter.bound(entry.policy).permits_held;
            held.fetch_sub(entry.receipts.first().remaining, Ordering::Relaxed);
        }
        let limiter = &self.limiter;
        limiter.report_permits(&self.entries, |policy, key, permits| {
            Event::PermitsReleased {
                policy,
                key,
                permits,
            }
        });
        // On a thread outside of the runtime nothing could be sent.
        let outside = Handle::try_current().is_err_and(|error| error.is_missing_context());
        let runtime = self.runtime.as_ref().filter(|_| outside);
        let _entered = runtime.map(Handle::enter);
        self.limiter.refund_unreported(&mut self.entries);
        // Released before a request that waits looks for them.
        if let Some(queue_key) = self.queue_key.get() {
            self.limiter.wait_queues.notify(queue_key);
        }
    }
}

impl fmt::Debug for HeldPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Renews the permits that are assigned to `runtime` several times in each TTL, until there are none.
fn spawn_heartbeat(limiter: &Arc<LimiterCore>, runtime: &Handle) {
    let (permit_ttl, mut ttl_in_force) =
        (limiter.permit_ttl, limiter.permit_ttl_in_force.subscribe());
    let mut task = HeartbeatTask {
        limiter: Arc::downgrade(limiter),
        runtime: runtime.id(),
        stopped: false,
    };
    drop(runtime.spawn(async move {
        let (mut next, mut failed) = (Instant::now() + permit_ttl, Vec::new());
        loop {
            let ttl = permit_ttl.min(*ttl_in_force.borrow_and_update());
            let interval = ttl / HEARTBEATS_PER_TTL;
            next = next.min(Instant::now() + interval);
            let retry = Instant::now() + interval / RETRIES_PER_HEARTBEAT;
            let is_heartbeat = failed.is_empty() || next <= retry;
            tokio::select! {
                () = sleep_until(if is_heartbeat { next } else { retry }) => {}
                Ok(()) = ttl_in_force.changed() => continue,
            }
            let mut due = mem::take(&mut failed);
            if is_heartbeat {
                let Some(limiter) = task.limiter.upgrade() else {
                    return;
                };
                next = Instant::now() + interval;
                due = limiter.permits.lock().due_for_renewal(task.runtime);
                task.stopped = due.is_empty();
                if task.stopped {
                    return;
                }
            }
            failed = renew(&task.limiter, due).await;
        }
    }));
}

/// Reassigns its permits to another runtime when it is dropped before it has stopped, with its runtime.
struct HeartbeatTask {
    limiter: Weak<LimiterCore>,
    runtime: runtime::Id,
    stopped: bool,
}

impl Drop for HeartbeatTask {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.upgrade().filter(|_| !self.stopped) {
            limiter.permits.lock().stop(self.runtime);
        }
    }
}

/// Renews permits that are still held, some at a time; returns the ids of those that the store failed to renew. The limiter is not held
/// meanwhile, so that it is not dropped here.
async fn renew(limiter: &Weak<LimiterCore>, due: Vec<u64>) -> Vec<u64> {
    let mut failed = Vec::new();
    for ids in due.chunks(MAX_RENEWALS) {
        consume_budget().await;
        let Some(calls) = limiter.upgrade().map(|limiter| limiter.send_renewals(ids)) else {
            return Vec::new();
        };
        for (id, response) in calls {
            if response.result().await.is_err() {
                failed.push(id);
            }
        }
    }
    failed
}

impl LimiterCore {
    /// Sends the renewals of those of the permits with these ids that are still held.
    fn send_renewals(&self, ids: &[u64]) -> Vec<(u64, StoreResponse)> {
        let held = self.permits.lock().held(ids).into_iter();
        let calls = held.map(|(id, entries)| (id, self.send_renewal(&entries)));
        calls.collect()
    }

    fn send_renewal(&self, entries: &PermitEntries) -> StoreResponse {
        let ops = entries.iter().map(|entry| self.counter_op(entry));
        let ops: SmallVec<[CounterOp<'_>; 1]> = ops.collect();
        // One store charged all permits of a request.
        let store = entries
            .first()
            .map_or(&*self.store, |entry| self.store_for(entry));
        store.execute(Op::Renew, &ops)
    }
}

/// The permits of a decision, until an admission takes them over. Dropping them before that is logged as a mistake.
#[derive(Clone, Default)]
pub(crate) struct DecisionPermit(Option<Arc<HeldPermits>>);

impl DecisionPermit {
    pub(crate) fn take(&mut self) -> Option<Arc<HeldPermits>> {
        self.0.take()
    }

    /// Has the permits renewed in the current runtime.
    pub(super) fn renew_here(&self) {
        self.0.iter().for_each(|permits| permits.renew_here());
    }

    /// Notifies this queue when the permits are released.
    pub(super) fn wake_on_release(&self, queue_key: &QueueKey) {
        if let Some(permits) = &self.0 {
            permits.queue_key.get_or_init(|| queue_key.clone());
        }
    }
}

impl From<Option<Arc<HeldPermits>>> for DecisionPermit {
    #[inline]
    fn from(permits: Option<Arc<HeldPermits>>) -> Self {
        Self(permits)
    }
}

impl Drop for DecisionPermit {
    #[inline]
    fn drop(&mut self) {
        // A clone, or the admission of one, may hold it still.
        if let Some(permits) = &self.0
            && Arc::strong_count(permits) == 1
        {
            permits.log_unclaimed();
        }
    }
}

/// The entries of one request under in-flight limits.
pub(crate) type PermitEntries = SmallVec<[PolicyEntry; 1]>;

/// The permits that requests hold. Each runtime in which some were acquired, or in which their request waited for them, has a heartbeat
/// task, which renews them: runtimes end, and a current-thread runtime may not be polled for a while. Those that were acquired outside
/// of a runtime are renewed on the background thread.
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
    /// The runtime whose heartbeat task renews them; `None` if they were acquired outside of a runtime and there is no background thread,
    /// until there is a task.
    runtime: Option<runtime::Id>,
}

/// What renews added permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// A heartbeat task that has to be spawned in their runtime.
    NewTask,
    /// The heartbeat task of their runtime, which runs.
    RunningTask,
    /// Nothing, until a heartbeat task is started.
    Missing,
}

impl PermitRegistry {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Registry> {
        lock(&self.0)
    }
}

impl Registry {
    /// Adds a request's permits; returns their id, and what renews them.
    pub(crate) fn add(
        &mut self,
        entries: &PermitEntries,
        runtime: Option<&Handle>,
    ) -> (u64, Renewal) {
        let runtime = runtime.map(Handle::id);
        self.last_id += 1;
        let entries = copy(entries);
        let permits = RegisteredPermits { entries, runtime };
        self.permits.insert(self.last_id, permits);
        let renewal = runtime.map_or(Renewal::Missing, |runtime| self.renewal_in(runtime));
        (self.last_id, renewal)
    }

    /// Assigns permits to a runtime, and returns what renews them there.
    pub(crate) fn assign(&mut self, id: u64, runtime: runtime::Id) -> Renewal {
        if let Some(permits) = self.permits.get_mut(&id) {
            permits.runtime = Some(runtime);
        }
        self.renewal_in(runtime)
    }

    fn renewal_in(&mut self, runtime: runtime::Id) -> Renewal {
        if self.heartbeat_runtimes.contains(&runtime) {
            return Renewal::RunningTask;
        }
        self.heartbeat_runtimes.push(runtime);
        self.reassign_orphans();
        Renewal::NewTask
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
