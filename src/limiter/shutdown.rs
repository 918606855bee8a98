//! Sending queued operations to the store before a process ends.

use std::{fmt, time::Duration};

use tokio::time::timeout as timed;

use crate::{runtime::runtime_with_timers, store::Store};

/// The error of a [shutdown](crate::Limiter::shutdown) that could not send everything to the store in time.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("not sent to the store in time: {operations} refunds and charges")]
pub struct ShutdownError {
    operations: u64,
}

/// The same text as [`Display`](fmt::Display): what a `main` that returns the error prints.
impl fmt::Debug for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ShutdownError {
    pub(crate) fn new(operations: u64) -> Self {
        Self { operations }
    }

    /// The number of refunds, released permits and charges that are queued, or were sent and got no response: whether these
    /// were done is unknown.
    pub fn operations(&self) -> u64 {
        self.operations
    }
}

/// Sends what the store has queued: see [`Limiter::shutdown`](crate::Limiter::shutdown).
pub(super) async fn shutdown(store: &dyn Store, timeout: Duration) -> Result<(), ShutdownError> {
    // Also if nothing is queued: leases are refunded by a flush.
    if runtime_with_timers().is_some() && timed(timeout, flush(store)).await.is_ok() {
        return Ok(());
    }
    match store.stats().queued_refunds {
        0 => Ok(()),
        operations => Err(ShutdownError::new(operations)),
    }
}

/// Flushes the store until nothing is queued: other threads may queue operations meanwhile.
async fn flush(store: &dyn Store) {
    loop {
        store.flush().await;
        if store.stats().queued_refunds == 0 {
            return;
        }
    }
}
