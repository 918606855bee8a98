//! The differences between a shadow policy's decisions and those that were made.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::observe::ShadowStats;

/// Counts how a [shadow policy](crate::Policy::shadow)'s decisions differ from those that were made.
#[derive(Debug, Default)]
pub(crate) struct ShadowCounters {
    evaluated: AtomicU64,
    stricter: AtomicU64,
    looser: AtomicU64,
}

impl ShadowCounters {
    /// Records that of `evaluated` requests `admitted` were admitted, and that the shadow would have admitted `would_admit`.
    pub(crate) fn record(&self, evaluated: u64, admitted: u64, would_admit: u64) {
        self.evaluated.fetch_add(evaluated, Ordering::Relaxed);
        self.stricter
            .fetch_add(admitted.saturating_sub(would_admit), Ordering::Relaxed);
        self.looser
            .fetch_add(would_admit.saturating_sub(admitted), Ordering::Relaxed);
    }

    /// The counts.
    pub(crate) fn stats(&self) -> ShadowStats {
        ShadowStats {
            evaluated: self.evaluated.load(Ordering::Relaxed),
            stricter: self.stricter.load(Ordering::Relaxed),
            looser: self.looser.load(Ordering::Relaxed),
        }
    }
}
