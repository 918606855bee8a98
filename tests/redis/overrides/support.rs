//! What the tests share.

use std::time::SystemTime;

use tollgate::limiter::Override;
use tollgate_tests::prelude::*;

pub(crate) const ALICE: &str = "alice";

/// The policy `api`, in windows.
pub(crate) fn policy(text: &str) -> Policy {
    Policy::new("api", quota(text)).strategy(FixedWindow)
}

pub(crate) fn of(text: &str) -> Override {
    Override::quota(quota(text))
}

/// An instant as others than stores have it.
pub(crate) fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + at.since(Timestamp::from_micros(0))
}

/// Sets an override under `api`; returns the one before.
pub(crate) async fn set(
    limiter: &Limiter,
    key: impl Into<Key>,
    setting: Override,
) -> Option<Override> {
    set_under(limiter, "api", key, setting).await
}

pub(crate) async fn set_under(
    limiter: &Limiter,
    policy: &str,
    key: impl Into<Key>,
    setting: Override,
) -> Option<Override> {
    let policy = limiter.policy(policy).expect("a policy");
    let before = policy.set_override(key.into(), setting).await;
    before.expect("it is set")
}

/// Removes an override under `api`; returns it.
pub(crate) async fn remove(limiter: &Limiter, key: impl Into<Key>) -> Option<Override> {
    let api = limiter.policy("api").expect("a policy");
    let before = api.remove_override(key.into()).await;
    before.expect("it is removed")
}

/// The limit of a key under `api`.
pub(crate) async fn limit(limiter: &Limiter, key: &str) -> u64 {
    let status = limiter.peek(Key::new(key)).await.expect("a status");
    status.count("api").limit()
}
