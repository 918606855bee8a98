//! Sending queued operations to the store before a process ends.

use std::{fmt, time::Duration};

use tokio::{
    task::coop::consume_budget,
    time::{sleep, timeout as timed},
};

use crate::{
    key::Key,
    limiter::{Limiter, core::LimiterCore},
    runtime::runtime_with_timers,
    store::{CounterOp, Op},
};

/// The pause before a store that failed is called again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The error of a [shutdown](Limiter::shutdown) that could not send everything to the store in time.
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

impl Limiter {
    /// Sends the operations that are queued in this process to the store, and waits for the responses, for at most `timeout`:
    /// refunds, released permits and charges without a waiter, among them those that were kept while the store failed, and
    /// [write-backs](crate::LocalFallback::write_back). Units of [leases](crate::Policy::lease) are refunded. Call it before a process ends,
    /// once its server has stopped: operations
    /// that are queued then are lost, and their units come back only with time.
    ///
    /// The limiter stays usable: operations that later checks queue need another call. Drop permits and
    /// [admissions](crate::Admission) first, since those in use are not released or settled. The queue belongs to the store:
    /// limiters and layers over clones of it need one call, except for their write-backs.
    ///
    /// ```no_run
    /// # async fn f(layer: tollgate::RateLimitLayer, app: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let limiter = layer.limiter().clone();
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    /// axum::serve(listener, app)
    ///     .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
    ///     .await?;
    /// limiter.shutdown(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ShutdownError`] counts the operations that were not sent in time. They stay queued. Outside of a tokio runtime with timers
    /// it is returned at once, if something is queued.
    ///
    /// # Cancellation
    ///
    /// Dropping the future ends the wait; what was not sent stays queued.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), ShutdownError> {
        consume_budget().await;
        let core = self.local_ref();
        // Also if nothing is queued: leases are refunded by a flush.
        if runtime_with_timers().is_some() && timed(timeout, core.flush()).await.is_ok() {
            return Ok(());
        }
        match core.queued() {
            (0, 0) => Ok(()),
            (operations, write_backs) => Err(ShutdownError::new(operations, write_backs)),
        }
    }
}

impl LimiterCore {
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
                _ if self.store_responds().await => self.write_back(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_is_printed_as_a_sentence() {
        let error = ShutdownError::new(3, 2);
        let text = "not sent to the store in time: 3 refunds and charges, 2 write-backs";
        assert_eq!(format!("{error:?}"), text);
        assert_eq!(error.to_string(), text);
    }
}
