//! The state that the workers of a store share.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicI64, Ordering},
};
use std::time::Duration;

use super::{
    breaker::Breaker,
    pending_refunds::PendingRefunds,
    rejection_cache::{RejectionCache, epoch::EpochKey},
    script::{Script, ScriptRegistry},
    topology::Topology,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    log::LogThrottle,
    runtime::runtime_with_io,
};

/// The state that the workers of a store share.
#[derive(Debug)]
pub(crate) struct StoreState {
    /// Equal for stores with the same servers and prefix.
    pub(super) id: u64,
    pub(super) topology: Topology,
    pub(super) prefix: String,
    pub(super) scripts: RwLock<ScriptRegistry>,
    pub(super) timeout: Duration,
    /// One for each hash tag: one in all, except on a cluster, whose masters fail independently.
    pub(super) breakers: Box<[Arc<Breaker>]>,
    pub(super) pending_refunds: PendingRefunds,
    pub(super) rejection_cache: RejectionCache,
    /// `None` on a cluster.
    pub(super) epoch: Option<EpochKey>,
    /// Offset of the server's clock from this machine's, in microseconds.
    pub(super) clock_offset_us: AtomicI64,
    /// Logs that a breaker opened: a cluster has one for each hash tag.
    pub(super) opened: LogThrottle,
    pub(super) closed: LogThrottle,
}

impl StoreState {
    /// An estimate of the server's clock.
    pub(super) fn server_time(&self) -> Timestamp {
        let offset = self.clock_offset_us.load(Ordering::Relaxed);
        Timestamp::from_micros(SystemClock.now().as_micros().saturating_add(offset))
    }

    pub(super) fn update_clock_offset(&self, at: Timestamp) {
        let offset = at.as_micros().saturating_sub(SystemClock.now().as_micros());
        self.clock_offset_us.store(offset, Ordering::Relaxed);
    }

    /// The circuit breaker of the server that has the keys of a hash tag.
    pub(super) fn breaker(&self, tag: usize) -> &Arc<Breaker> {
        &self.breakers[tag % self.breakers.len()]
    }

    /// Reads the epoch, if that is due: cached rejections older than their `max_staleness` are valid as long as it is unchanged.
    pub(super) fn refresh_rejection_epoch(self: &Arc<Self>) {
        if self.epoch.is_none() || self.breakers.iter().all(|breaker| breaker.is_open()) {
            return;
        }
        let Some(read_at) = self.rejection_cache.start_epoch_read() else {
            return;
        };
        let reading = EpochReadGuard(self.clone());
        if let Some(runtime) = runtime_with_io() {
            drop(runtime.spawn(async move {
                let shared = &reading.0;
                let Some(key) = &shared.epoch else {
                    return;
                };
                let epoch = tokio::time::timeout(shared.timeout, key.read(&shared.topology));
                if let Ok(Ok(Some((epoch, time)))) = epoch.await {
                    shared.rejection_cache.note_epoch(&epoch, time, read_at);
                }
            }));
        }
    }

    /// Sends some of the pending refunds of a hash tag, unless its server is being probed: the response to the probe sends them.
    /// Returns false once there are none.
    pub(super) fn retry_refunds(&self, tag: usize) -> bool {
        if self.pending_refunds.is_done(tag) {
            return false;
        }
        if !self.breaker(tag).is_open() {
            self.pending_refunds.resend(tag);
        }
        true
    }

    pub(super) fn script(&self) -> Arc<Script> {
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        scripts.current()
    }
}

/// Guards a reading of the epoch, until it completes, fails, or its runtime ends.
struct EpochReadGuard(Arc<StoreState>);

impl Drop for EpochReadGuard {
    fn drop(&mut self) {
        self.0.rejection_cache.epoch().finish_read();
    }
}
