//! Windows of the calendar: where they begin and end, whatever the clocks do.

use tollgate_tests::prelude::*;

mod boundaries;
mod wall_clock;

async fn check(limiter: &Limiter, key: Key) -> bool {
    admitted_by_store(&limiter.check(key).await)
}

/// Sends requests until one is rejected; returns how many were admitted, and the wait of the rejected one, in microseconds.
async fn exhaust(limiter: &Limiter, key: Key, max: u64) -> (u64, u64) {
    let mut admitted = 0;
    loop {
        let decision = limiter.check(key).await;
        if !admitted_by_store(&decision) {
            let RetryAfter::In(wait) = decision.retry_after() else {
                panic!("{decision:?}");
            };
            return (admitted, wait.as_micros() as u64);
        }
        admitted += 1;
        assert!(admitted <= max, "there is no end to it");
    }
}
