//! What the tests share.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;
use tollgate::{DecisionSource, Key, Limiter};

pub(crate) use crate::strategies::{
    results::{admitted_by_store, store_error},
    strategy_kind::StrategyKind,
    world::{KEY, START, World, ms, secs},
};

/// A key that no case before had.
pub(crate) fn fresh_key() -> Key {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    Key::new(format!("case-{next}"))
}

/// Sends `n` requests, one after the other; returns how many were admitted.
pub(crate) async fn send(limiter: &Limiter, key: Key, n: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..n {
        admitted += u64::from(admitted_by_store(&limiter.check(key).await));
    }
    admitted
}

/// Sends `n` requests at once; returns how many were admitted.
pub(crate) async fn send_concurrently(limiter: &Limiter, key: Key, n: u64) -> u64 {
    let mut tasks = JoinSet::new();
    for _ in 0..n {
        tasks.spawn(limiter.check(key).into_future());
    }
    let decisions = tasks.join_all().await;
    decisions
        .iter()
        .filter(|decision| admitted_by_store(decision))
        .count() as u64
}

/// What is left under the first policy.
pub(crate) async fn left(limiter: &Limiter, key: Key) -> u64 {
    let seen = limiter.peek(key).cost(1).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    let left = seen.policies().next().map(|policy| policy.remaining());
    left.expect("a policy")
}
