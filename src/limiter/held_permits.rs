//! The permits of in-flight limits that one request holds, and the task that renews them.

use std::{
    fmt, mem,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::{self, Handle},
    task::coop::consume_budget,
    time::{Instant, sleep_until},
};

use super::core::{
    LimiterCore,
    permit_registry::{PermitEntries, Renewal},
};
use crate::{
    decision::PermitHandle,
    log::LogThrottle,
    observe::Event,
    runtime::runtime_with_timers,
    store::{CounterOp, Op, StoreResponse},
};

/// How often a permit is renewed within its TTL.
const HEARTBEATS_PER_TTL: u32 = 3;

/// How often renewals that failed are retried between two heartbeats.
const RETRIES_PER_HEARTBEAT: u32 = 8;

/// Upper bound of the renewals in flight. Requests that come meanwhile wait for no more than these.
const MAX_RENEWALS: usize = 128;

/// The permits that one request holds. Dropping it releases them.
pub(super) struct HeldPermits {
    limiter: Arc<LimiterCore>,
    id: u64,
    entries: PermitEntries,
    /// The runtime in which they were acquired.
    runtime: Option<Handle>,
}

impl HeldPermits {
    /// Holds permits that were charged; `None` if there are none.
    pub(super) fn hold(
        limiter: &Arc<LimiterCore>,
        entries: PermitEntries,
        permit_ttl: Duration,
    ) -> Option<Arc<dyn PermitHandle>> {
        if entries.is_empty() {
            return None;
        }
        let runtime = runtime_with_timers();
        let (id, renewal) = limiter.permits.lock().add(&entries, runtime.as_ref());
        match (renewal, &runtime) {
            (Renewal::NewTask, Some(runtime)) => {
                spawn_heartbeat(limiter, runtime, permit_ttl);
            }
            (Renewal::RunningTask, _) => {}
            (Renewal::NewTask | Renewal::Missing, _) => {
                static LOG: LogThrottle = LogThrottle::new();
                LOG.log_with(|suppressed| {
                    tracing::warn!(
                        suppressed,
                        "permits of in-flight limits can't be renewed outside of a tokio runtime with timers: take them from a task of one"
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
        }))
    }
}

impl PermitHandle for HeldPermits {
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
        self.limiter.refund_entries(&mut self.entries);
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
fn spawn_heartbeat(limiter: &Arc<LimiterCore>, runtime: &Handle, permit_ttl: Duration) {
    let mut ttl_in_force = limiter.permit_ttl_in_force.subscribe();
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
            let Some(limiter) = task.limiter.upgrade() else {
                return;
            };
            let mut due = mem::take(&mut failed);
            if is_heartbeat {
                next = Instant::now() + interval;
                due = limiter.permits.lock().due_for_renewal(task.runtime);
                task.stopped = due.is_empty();
                if task.stopped {
                    return;
                }
            }
            failed = limiter.renew(due).await;
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

impl LimiterCore {
    /// Renews permits that are still held, some at a time; returns the ids of those that the store failed to renew.
    async fn renew(&self, due: Vec<u64>) -> Vec<u64> {
        let mut failed = Vec::new();
        for ids in due.chunks(MAX_RENEWALS) {
            consume_budget().await;
            let held = self.permits.lock().held(ids).into_iter();
            let calls = held.map(|(id, entries)| (id, self.send_renewal(&entries)));
            let calls: Vec<_> = calls.collect();
            for (id, response) in calls {
                let result = match response {
                    StoreResponse::Ready(result) => result,
                    StoreResponse::Pending(response) => response.await,
                };
                if result.is_err() {
                    failed.push(id);
                }
            }
        }
        failed
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
