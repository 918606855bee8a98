//! Limiters that report store failures, and concurrent requests through them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use testkit::{Server, TIMEOUT};
use tollgate::{
    Limiter, OnStoreError, Policy, Quota, RedisStore,
    limiter::{Keys, LimiterBuilder},
    observe::DecisionSource,
};

use crate::results::admitted_by_store;

/// A limiter that reports store failures.
pub fn limiter(store: RedisStore, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let builder = Limiter::builder().store(store);
    let builder = policies.into_iter().fold(builder, LimiterBuilder::policy);
    let limiter = builder.on_store_error(OnStoreError::Reject);
    limiter.build().expect("a limiter")
}

/// Lets the IO thread go on with each reply that it has received by now: it runs one task at a time, and does so before
/// it reads the replies to later requests.
pub fn background_goes_on() {
    let server = Server::start();
    let store = RedisStore::builder().url(server.url()).timeout(TIMEOUT);
    let policy = Policy::new("p", Quota::requests(9).per_hour());
    let limiter = limiter(store.build().expect("a store"), [policy]);
    for _ in 0..4 {
        assert!(admitted_by_store(&limiter.check("k").blocking()));
    }
}

/// What is used of each policy's quota, of those in the shadow last.
pub async fn used(limiter: &Limiter, keys: impl Into<Keys>) -> Vec<u64> {
    let seen = limiter.peek(keys).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    let policies = seen.policies().chain(seen.shadows());
    policies
        .map(|policy| policy.limit() - policy.remaining())
        .collect()
}

/// Sends `requests` requests from `tasks` tasks, each over one of the limiters in turn; returns how many were admitted.
pub async fn hammer(
    limiters: &[Limiter],
    keys: impl Into<Keys>,
    tasks: usize,
    requests: u64,
) -> u64 {
    let (keys, tickets) = (keys.into(), Arc::new(AtomicU64::new(requests)));
    let limiters = limiters.iter().cycle().take(tasks).cloned();
    let tasks: Vec<_> = limiters
        .map(|limiter| {
            let (keys, tickets) = (keys.clone(), tickets.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                let next = |left: u64| left.checked_sub(1);
                while tickets
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
                    .is_ok()
                {
                    admitted += u64::from(admitted_by_store(&limiter.check(keys.clone()).await));
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("a task ends well");
    }
    admitted
}
