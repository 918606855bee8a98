//! Sending queued operations to the store before a process ends.

use std::{fmt, time::Duration};

use tokio::{
    task::yield_now,
    time::{sleep, timeout as timed},
};

use super::core::LimiterCore;
use crate::{
    key::Key,
    runtime::runtime_with_timers,
    store::{CounterOp, Op},
};

/// The pause before a store that failed is called again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The error of a [shutdown](crate::Limiter::shutdown) that could not send everything to the store in time.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not sent to the store in time: {operations} refunds and charges, {write_backs} write-backs"
)]
pub struct ShutdownError {
    operations: u64,
    write_backs: u64,
}

/// The same text as [`Display`](fmt::Display): what a `main` that returns the error prints.
impl fmt::Debug for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ShutdownError {
    pub(crate) fn new(operations: u64, write_backs: u64) -> Self {
        Self {
            operations,
            write_backs,
        }
    }

    /// The number of refunds, released permits and charges that are queued, or were sent and got no response: whether these
    /// were done is unknown.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// The number of keys whose charges in process are not [written back](crate::LocalFallback::write_back).
    pub fn write_backs(&self) -> u64 {
        self.write_backs
    }
}

impl LimiterCore {
    /// Sends what is queued: see [`Limiter::shutdown`](crate::Limiter::shutdown).
    pub(super) async fn shutdown(&self, timeout: Duration) -> Result<(), ShutdownError> {
        // Also if nothing is queued: leases are refunded by a flush.
        if runtime_with_timers().is_some() && timed(timeout, self.flush()).await.is_ok() {
            return Ok(());
        }
        match self.queued() {
            (0, 0) => Ok(()),
            (operations, write_backs) => Err(ShutdownError::new(operations, write_backs)),
        }
    }

    /// The numbers of the store's queued operations, and of keys to be written back.
    fn queued(&self) -> (u64, u64) {
        let unwritten = self
            .local_shares
            .as_ref()
            .map_or(0, |shares| shares.unwritten_keys());
        (self.store.queued(), unwritten as u64)
    }

    async fn flush(&self) {
        loop {
            self.store.flush().await;
            match self.queued() {
                (0, 0) => return,
                (_, 0) => {}
                // Each is sent once, so only to a store that responds.
                _ if self.store_responds().await => {
                    self.write_back();
                    // Another thread may be about to send some.
                    yield_now().await;
                }
                _ => sleep(RETRY_INTERVAL).await,
            }
        }
    }

    /// Whether the store responds to a peek, at a key that nothing else uses.
    async fn store_responds(&self) -> bool {
        let Some(bound) = self.policies.first() else {
            return false;
        };
        let op = CounterOp::new(&bound.limit, Key::unique());
        self.store.execute(Op::Peek, &[op]).result().await.is_ok()
    }
}
