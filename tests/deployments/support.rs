//! What the tests share.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tollgate::{
    Decision, Key, Limiter, OnStoreError, Policy, Quota, RedisStore, Ruling, Source, StoreError,
};

/// The machine may be busy; where counting is tested, time is not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A limiter under one policy `p` of so many a week, which shows faults.
pub(crate) fn limiter(store: RedisStore, quota: u64) -> Limiter {
    let policy = Policy::new("p", Quota::requests(quota).per_week());
    let limiter = Limiter::builder().store(store).policy(policy);
    let limiter = limiter.on_store_error(OnStoreError::Refuse);
    limiter.build().expect("a limiter")
}

/// A limiter on the server that `url` names.
pub(crate) fn at(url: &str) -> Limiter {
    let store = RedisStore::builder().url(url).deadline(PATIENCE);
    limiter(store.build().expect("a store"), 3)
}

pub(crate) fn key() -> Key {
    Key::new("k")
}

/// Whether it was admitted, by the store itself.
#[track_caller]
pub(crate) fn counted(decision: &Decision) -> bool {
    assert_eq!(decision.source(), Source::Store, "{decision:?}");
    decision.is_admitted()
}

/// The store error that a request was refused for.
#[track_caller]
pub(crate) fn fault(decision: &Decision) -> StoreError {
    match decision.ruling() {
        Ruling::Fault(error) => error.clone(),
        other => panic!("{other:?} in place of a fault"),
    }
}

/// Admits three, and no more.
pub(crate) async fn counts(limiter: &Limiter) {
    for _ in 0..3 {
        assert!(counted(&limiter.check(key()).await));
    }
    assert!(!counted(&limiter.check(key()).await));
}

/// Asks until it is so, for as long as [`PATIENCE`] lasts.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut probe: impl FnMut() -> F) {
    let start = Instant::now();
    while !probe().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
