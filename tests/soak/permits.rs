//! Permits, and the tasks that take them.

use std::sync::atomic::Ordering::SeqCst;

use tokio::time::sleep;

use crate::{rng::Rng, sums::CountedLimiter};
use tollgate_tests::prelude::*;

/// The permits that all processes hold together, as they know it: never more than the store has given.
#[derive(Debug, Default)]
pub(crate) struct PermitCount {
    held: AtomicU64,
    /// The most at once since this was last read.
    max: AtomicU64,
    pub(crate) taken: AtomicU64,
}

impl PermitCount {
    fn acquire(&self) {
        let held = self.held.fetch_add(1, SeqCst) + 1;
        self.max.fetch_max(held, SeqCst);
        self.taken.fetch_add(1, SeqCst);
    }

    fn release(&self) {
        self.held.fetch_sub(1, SeqCst);
    }

    /// The most that were held at once since the last time.
    pub(crate) fn take_max(&self) -> u64 {
        self.max.swap(self.held.load(SeqCst), SeqCst)
    }
}

/// Takes a permit, holds it for a while, and leaves it, again and again.
pub(crate) async fn hold_permits(
    in_flight: CountedLimiter,
    permits: Arc<PermitCount>,
    mut rng: Rng,
    is_over: Arc<AtomicBool>,
) {
    while !is_over.load(SeqCst) {
        hold_permit(&in_flight, &permits, rng.ms(0, 40)).await;
        sleep(ms(5)).await;
    }
}

/// Takes a permit, if there is one, holds it for a while, and leaves it.
pub(crate) async fn hold_permit(in_flight: &CountedLimiter, permits: &PermitCount, time: Duration) {
    let CountedLimiter { limiter, seen, .. } = in_flight;
    seen.ask();
    let result = limiter.admit(Key::global()).await;
    seen.decided(&result.decision());
    if let Ok(admission) = result {
        permits.acquire();
        sleep(time).await;
        // Before it is released: from then on another task may acquire it.
        permits.release();
        drop(admission);
    }
}
