//! The differences between a shadow policy's decisions and those that were made.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts how a [shadow policy](crate::Policy::shadow)'s decisions differ from those that were made, in requests of this
/// process since the policy was added or last changed. From [`Limiter::shadow_stats`](crate::Limiter::shadow_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowStats {
    /// Requests that the shadow policy was evaluated for.
    pub evaluated: u64,
    /// Requests that were admitted, and that the shadow policy would have rejected.
    pub stricter: u64,
    /// Requests that were rejected, and would have been admitted with the shadow policy [in place](crate::Policy::shadow_of) of
    /// the live one.
    pub looser: u64,
}

/// The counters behind a [`ShadowStats`].
#[derive(Debug, Default)]
pub(crate) struct ShadowCounters {
    evaluated: AtomicU64,
    stricter: AtomicU64,
    looser: AtomicU64,
}

impl ShadowStats {
    /// Requests whose decision the shadow policy would have changed: the sum of `stricter` and `looser`.
    pub fn differing(&self) -> u64 {
        self.stricter + self.looser
    }
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
