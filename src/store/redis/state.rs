//! What the workers of a store share.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicI64, Ordering},
};
use std::time::Duration;

use tokio::runtime::Handle;

use super::{
    breaker::Breaker,
    pending_refunds::PendingRefunds,
    rejection_cache::{RejectionCache, epoch_key::EpochKey},
    script::{Script, ScriptRegistry},
    topology::Topology,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    log::Seldom,
};

/// What the workers of a store share.
#[derive(Debug)]
pub(crate) struct StoreState {
    /// Equal for stores that were opened alike.
    pub(super) id: u64,
    pub(super) topology: Topology,
    pub(super) prefix: String,
    pub(super) scripts: RwLock<ScriptRegistry>,
    pub(super) deadline: Duration,
    /// One for each hash tag: one, but on a cluster, whose masters don't die together.
    pub(super) breakers: Box<[Arc<Breaker>]>,
    pub(super) pending_refunds: PendingRefunds,
    pub(super) rejection_cache: RejectionCache,
    /// None on a cluster.
    pub(super) epoch: Option<EpochKey>,
    /// How far the server's clock is ahead of this machine's, in microseconds.
    pub(super) ahead: AtomicI64,
    /// Logs that a breaker opened: on a cluster there is one for each hash tag.
    pub(super) opened: Seldom,
    pub(super) closed: Seldom,
}

impl StoreState {
    /// About what the server's clock shows.
    pub(super) fn server_time(&self) -> Timestamp {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Timestamp::from_micros(SystemClock.now().as_micros().saturating_add(ahead))
    }

    pub(super) fn update_clock_offset(&self, at: Timestamp) {
        let ahead = at.as_micros().saturating_sub(SystemClock.now().as_micros());
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// The breaker of the server that has the keys of a hash tag.
    pub(super) fn breaker(&self, tag: usize) -> &Arc<Breaker> {
        &self.breakers[tag % self.breakers.len()]
    }

    /// Has the epoch read, if it's due: cached rejections that are older than the bound hold as long as it is the same.
    pub(super) fn refresh_rejection_epoch(self: &Arc<Self>) {
        if self.epoch.is_none() || self.breakers.iter().all(|breaker| breaker.is_open()) {
            return;
        }
        let Some(read) = self.rejection_cache.start_epoch_read() else {
            return;
        };
        let reading = EpochReadGuard(self.clone());
        if let Ok(handle) = Handle::try_current() {
            drop(handle.spawn(async move {
                let shared = &reading.0;
                let Some(key) = &shared.epoch else {
                    return;
                };
                let epoch = tokio::time::timeout(shared.deadline, key.read(&shared.topology));
                if let Ok(Ok(Some((epoch, time)))) = epoch.await {
                    shared.rejection_cache.note_epoch(&epoch, time, read);
                }
            }));
        }
    }

    /// Sends some of the refunds that are kept of a hash tag, unless its server is being probed: it is sent them when it
    /// answers. Returns false once none are kept.
    pub(super) fn retry_refunds(&self, tag: usize) -> bool {
        if self.pending_refunds.is_done(tag) {
            return false;
        }
        if !self.breaker(tag).is_open() {
            self.pending_refunds.send(tag);
        }
        true
    }

    pub(super) fn script(&self) -> Arc<Script> {
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        scripts.current()
    }
}

/// That the epoch is being read: until it is known, it could not be had, or its runtime has ended.
struct EpochReadGuard(Arc<StoreState>);

impl Drop for EpochReadGuard {
    fn drop(&mut self) {
        self.0.rejection_cache.epoch().finish_read();
    }
}
