//! Counts loads of configuration files.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Loads of a changed configuration file.
#[derive(Debug, Default)]
pub(super) struct ConfigLoads {
    pub(super) applied: AtomicU64,
    pub(super) failed: AtomicU64,
    /// When one was last applied, in seconds of Unix time.
    pub(super) applied_at: AtomicU64,
}

impl ConfigLoads {
    pub(super) fn add(&self, applied: bool) {
        if applied {
            self.applied.fetch_add(1, Ordering::Relaxed);
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(0, |now| now.as_secs());
            self.applied_at.store(now, Ordering::Relaxed);
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
