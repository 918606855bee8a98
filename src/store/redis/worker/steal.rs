//! Refunds and charges that nothing waits for, stolen from lanes whose runtime stands still.
//!
//! A current-thread runtime is driven only within its `block_on`. What was told to its lanes right before that ended would
//! not be sent until the next one, and a permit that was dropped there would stay taken for as long as it lives. So where
//! several runtimes use one store, each looks now and then at the lanes of the others.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    runtime,
    time::{Instant, sleep},
};

use super::pool::WorkerPool;

/// How often a runtime looks at the lanes of the others.
const STEAL_INTERVAL: Duration = Duration::from_millis(250);

/// A lane that has left something for so long is taken to stand still, however long the store's timeout is.
const MAX_STALL: Duration = Duration::from_secs(1);

/// Steals for the lanes of `runtime`, in a task of it, until another task does or is not needed.
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
    /// Moves what stalls in the lanes of other runtimes to those of this one. False if there are none, and so nothing to
    /// steal any more.
    fn steal_for(self: &Arc<Self>, runtime: runtime::Id) -> bool {
        if self.is_alone(runtime) {
            return false;
        }
        // What is told has as much time as a request.
        let timeout = self.timeout();
        let queued_before = Instant::now() + timeout - timeout.min(MAX_STALL);
        for request in self.stalled(runtime, queued_before) {
            self.execute_detached(request.op, request.counters.clone());
            request.discard();
        }
        true
    }
}
