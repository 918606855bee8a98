//! What the tests share.

use tollgate::changes::{Changes, PolicyChangeKind};
use tollgate_tests::prelude::*;
pub(crate) use tollgate_tests::scene::fresh_key;

/// Longer than any request waits here.
pub(crate) const LONG: Duration = secs(3_600);

/// A policy that counts all clients together.
pub(crate) fn policy(name: &str, quota: &str) -> Policy {
    Policy::new(name, stores::quota(quota)).key(extract::global())
}

/// The same, in windows of a fixed length.
pub(crate) fn window(name: &str, quota: &str) -> Policy {
    policy(name, quota).strategy(FixedWindow)
}

/// A limit `p` of all requests in flight.
pub(crate) fn permits(n: u64) -> Policy {
    Policy::new("p", Quota::concurrent(n)).key(extract::global())
}

/// A layer on a clock that stands still.
pub(crate) fn layer(policies: impl IntoIterator<Item = Policy>) -> RateLimitLayer {
    World::memory().layer(policies)
}

/// New settings of a limiter that reports store failures.
pub(crate) fn settings(policies: impl IntoIterator<Item = Policy>) -> LimiterBuilder {
    let builder = Limiter::builder().on_store_error(OnStoreError::Reject);
    policies.into_iter().fold(builder, LimiterBuilder::policy)
}

/// Replaces the policies.
#[track_caller]
pub(crate) fn replace(limiter: &Limiter, policies: impl IntoIterator<Item = Policy>) -> Changes {
    let changes = limiter.reconfigure(settings(policies));
    changes.expect("valid settings")
}

#[track_caller]
pub(crate) fn kind(changes: &Changes, policy: &str) -> PolicyChangeKind {
    changes.policy(policy).expect(policy).kind()
}

/// How many units of the policy are used under `key`.
pub(crate) async fn used_by(limiter: &Limiter, policy: &str, key: Key) -> u64 {
    let status = limiter.peek([(policy, key)]).cost(1).await;
    status.expect("a response").used(policy)
}

/// How many units of the policy are used by all clients together.
pub(crate) async fn used(limiter: &Limiter, policy: &str) -> u64 {
    used_by(limiter, policy, KEY).await
}
