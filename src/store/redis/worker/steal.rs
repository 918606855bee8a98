//! Work stealing: a runtime sends the detached requests of runtimes that stand still.
//!
//! A current-thread runtime makes progress only within `block_on`. A refund that is queued right before `block_on` returns
//! would wait for the next call, and a permit dropped there would stay charged for its whole TTL. So where several runtimes
//! use one store, each polls the queues of the others.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often a runtime polls the queues of the others.
const STEAL_INTERVAL: Duration = Duration::from_millis(250);

/// Detached requests that have waited for this long are stolen, however long the store's timeout is.
const MAX_STALL: Duration = Duration::from_secs(1);

/// The stealing task of a runtime: runs `step` in intervals, until it returns false.
pub(super) async fn steal(step: impl Fn() -> bool) {
    loop {
        sleep(STEAL_INTERVAL).await;
        if !step() {
            return;
        }
    }
}

/// Requests in a queue whose deadline is before this instant stall: a detached request has the same timeout as any other.
pub(super) fn stalls_before(timeout: Duration) -> Instant {
    Instant::now() + timeout - timeout.min(MAX_STALL)
}
