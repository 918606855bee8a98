//! What the tests share.

use std::time::Duration;

use testkit::Server;
use tollgate::{
    DecisionSource, Key, Lease, Limiter, LimiterBuilder, OnStoreError, Policy, RedisStore,
    RedisStoreBuilder, observe::LeaseStats,
};

pub(crate) use crate::leases::{
    strategy_kind::StrategyKind,
    until::{TEST_TIMEOUT, until},
};

pub(crate) const KEY: Key = Key::global();

/// The TTL of leases, unless a test says otherwise.
pub(crate) const TTL: Duration = Duration::from_millis(50);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn lease() -> Lease {
    Lease::max_units(64).ttl(TTL)
}

pub(crate) fn builder(url: impl Into<String>) -> RedisStoreBuilder {
    RedisStore::builder()
        .url(url)
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO)
}

/// A store that calls Redis for each request, also for rejected keys.
pub(crate) fn store(server: &Server) -> RedisStore {
    builder(server.url()).build().expect("a store")
}

/// A limiter that reports store failures.
#[track_caller]
pub(crate) fn limiter(store: RedisStore, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let builder = Limiter::builder()
        .store(store)
        .on_store_error(OnStoreError::Reject);
    let builder = policies.into_iter().fold(builder, LimiterBuilder::policy);
    builder.build().expect("a limiter")
}

/// A limiter on connections of its own, under a policy `p` with [leases](lease).
pub(crate) fn single(server: &Server, strategy: StrategyKind, quota: &str) -> Limiter {
    limiter(store(server), [leased(strategy, "p", quota)])
}

/// A policy with [leases](lease).
pub(crate) fn leased(strategy: StrategyKind, name: &str, quota: &str) -> Policy {
    strategy.policy(name, quota).lease(lease())
}

/// The units of a policy's leases.
pub(crate) fn leases(limiter: &Limiter, policy: &str) -> Option<LeaseStats> {
    let mut all = limiter.stats().store.leases.into_iter();
    all.find(|stats| &*stats.policy == policy)
}

/// The units that are held under policy `p`.
pub(crate) fn held(limiter: &Limiter) -> u64 {
    leases(limiter, "p").map_or(0, |stats| stats.held)
}

/// Sends requests until this process holds units of leases under policy `p`; returns how many requests were admitted.
pub(crate) async fn hold_units(limiter: &Limiter, key: Key) -> u64 {
    let mut admitted = 0;
    until("units are leased", async || {
        for _ in 0..20 {
            let decision = limiter.check(key).await;
            assert!(decision.is_admitted(), "{decision:?}");
            admitted += 1;
            if decision.source() == DecisionSource::Lease && held(limiter) > 0 {
                return true;
            }
        }
        held(limiter) > 0
    })
    .await;
    admitted
}

/// Sends requests until this process holds more than so many units under policy `p`; returns how many were admitted.
pub(crate) async fn hold_more_than(limiter: &Limiter, key: Key, units: u64) -> u64 {
    let mut admitted = 0;
    until("many units are leased", async || {
        for _ in 0..1_000 {
            admitted += u64::from(limiter.check(key).await.is_admitted());
            if held(limiter) > units {
                return true;
            }
        }
        false
    })
    .await;
    admitted
}

/// What is used of policy `p` by the store's count: the units of leases count as used.
pub(crate) async fn used(limiter: &Limiter, key: Key) -> u64 {
    used_of(limiter, key, "p").await
}

pub(crate) async fn used_of(limiter: &Limiter, key: Key, policy: &str) -> u64 {
    let seen = limiter.peek(key).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    let policy = seen.policy(policy).expect("a policy");
    policy.limit() - policy.remaining()
}
