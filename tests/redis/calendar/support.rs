//! What the tests share.

use tollgate_tests::prelude::*;

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const HOUR: u64 = 3_600 * SECOND;
pub(crate) const DAY: u64 = 24 * HOUR;

/// One store of each kind, whose clocks show `micros` since 1970.
pub(crate) fn worlds(micros: u64) -> impl Iterator<Item = World> {
    World::both().inspect(move |world| world.set(micros))
}

pub(crate) async fn check(limiter: &Limiter, key: Key) -> bool {
    admitted_by_store(&limiter.check(key).await)
}

/// Sends requests until one is rejected; returns how many were admitted, and the wait of the rejected one, in microseconds.
pub(crate) async fn exhaust(limiter: &Limiter, key: Key, max: u64) -> (u64, u64) {
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
