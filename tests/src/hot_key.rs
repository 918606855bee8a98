//! Requests of one key that are frequent enough for leases.

use futures_util::future::join_all;
use tollgate::{Decision, Limiter, limiter::Keys, observe::DecisionSource};

use crate::until::until;

/// How many requests are sent at once. A key is leased if there are ten within 100 ms, so these suffice on a slow machine too.
const REQUESTS: usize = 100;

/// Sends requests of one key until a lease admits some; returns how many the store has admitted.
pub async fn until_leased(limiter: &Limiter, keys: impl Into<Keys>, cost: u64) -> u64 {
    let (keys, mut by_store) = (keys.into(), 0);
    until("a lease admits requests", async || {
        let check = |_| limiter.check(keys.clone()).cost(cost).into_future();
        let decisions = join_all((0..REQUESTS).map(check)).await;
        assert!(decisions.iter().all(Decision::is_admitted));
        let from = |source| decisions.iter().filter(move |own| own.source() == source);
        by_store += from(DecisionSource::Store).count() as u64;
        from(DecisionSource::Lease).count() > 0
    })
    .await;
    by_store
}
