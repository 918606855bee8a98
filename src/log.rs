//! Saying a thing seldom, however often it happens.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long it stays silent after it has spoken.
const SILENCE: Duration = Duration::from_secs(10);

/// Speaks the first time, and then at most every ten seconds.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    /// Milliseconds since this process first logged, plus one; zero: not yet.
    spoke: AtomicU64,
    suppressed: AtomicU64,
}

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self {
            spoke: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Calls `say` with how often it was silent since the last time, unless it is to be silent now.
    pub(crate) fn then(&self, say: impl FnOnce(u64)) {
        static START: OnceLock<Instant> = OnceLock::new();
        let now = START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1;
        let spoke = self.spoke.load(Ordering::Relaxed);
        let due = spoke == 0 || now - spoke.min(now) >= SILENCE.as_millis() as u64;
        let speaks = due
            && self
                .spoke
                .compare_exchange(spoke, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if speaks {
            say(self.suppressed.swap(0, Ordering::Relaxed));
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
