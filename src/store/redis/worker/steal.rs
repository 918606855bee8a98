//! Work stealing: a runtime sends the detached requests of runtimes that stand still.
//!
//! A current-thread runtime makes progress only within `block_on`. A refund that is queued right before `block_on` returns
//! would wait for the next call, and a permit dropped there would stay charged for its whole TTL. So where several runtimes
//! use one store, each polls the queues of the others.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    runtime,
    time::{Instant, sleep},
};

use super::pool::WorkerPool;

/// How often a runtime polls the queues of the others.
const STEAL_INTERVAL: Duration = Duration::from_millis(250);

/// Detached requests that have waited for this long are stolen, however long the store's timeout is.
const MAX_STALL: Duration = Duration::from_secs(1);

/// The stealing task of `runtime`. Ends when the store is dropped or no other runtime uses it.
pub(crate) async fn steal(workers: Weak<WorkerPool>, runtime: runtime::Id) {
    loop {
        sleep(STEAL_INTERVAL).await;
        let Some(workers) = workers.upgrade() else {
            return;
        };
        if !workers.steal_for(runtime) {
            return;
        }
    }
}

impl WorkerPool {
    /// Moves the stalled requests of other runtimes to this one's workers. Returns false if there is no other runtime.
    fn steal_for(self: &Arc<Self>, runtime: runtime::Id) -> bool {
        if self.is_alone(runtime) {
            return false;
        }
        // A detached request has the same timeout as any other.
        let timeout = self.timeout();
        let queued_before = Instant::now() + timeout - timeout.min(MAX_STALL);
        for request in self.stalled(runtime, queued_before) {
            self.execute_detached(request.op, request.counters.clone());
            request.discard();
        }
        true
    }
}
