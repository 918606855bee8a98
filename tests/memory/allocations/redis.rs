use std::{cell::Cell, time::Duration};

use testkit::Server;
use tollgate::{DecisionSource, FixedWindow, Gcra, Key, Lease, RedisStore};

use super::*;

#[test]
fn a_decision_on_redis_allocates_little() {
    let server = Server::start();
    let runtime = runtime();
    for (policies, most) in [
        (&["one"][..], MAX_ONE),
        (&["one", "two", "three"], MAX_OF_THREE),
    ] {
        let with = |limiter: tollgate::LimiterBuilder, name: &&str| {
            limiter.policy(Policy::new(*name, ample()))
        };
        let store = RedisStore::open(server.url()).expect("a store");
        let builder = policies.iter().fold(Limiter::builder().store(store), with);
        let limiter = builder.build().expect("a limiter");
        let check = async || assert!(limiter.check(Key::new("alice")).await.is_admitted());
        // The worker is on the same thread, so what it does for the decision counts too.
        let each = each(
            &runtime,
            &format!("on Redis, {} policies", policies.len()),
            check,
        );
        assert!(each <= most, "{each}");
    }
}

#[test]
fn a_cached_rejection_allocates_nothing() {
    let server = Server::start();
    let runtime = runtime();
    let store = RedisStore::open(server.url()).expect("a store");
    let policy = Policy::new("one", Quota::requests(1).per_week());
    let builder = Limiter::builder().store(store).policy(policy);
    let limiter = builder.build().expect("a limiter");
    let check = async || limiter.check(Key::new("alice")).await;
    assert!(runtime.block_on(check()).is_admitted());
    let rejected = async || assert!(!check().await.is_admitted());
    let each = each(&runtime, "on Redis, known to be denied", rejected);
    // Not none: now and then Redis is called to confirm the cached rejection.
    assert!(each < 1.0, "{each}");
}

#[test]
fn a_decision_by_a_lease_of_one_policy_allocates_nothing() {
    let server = Server::start();
    let quota = Quota::requests(1_000_000_000).per_hour();
    let lease = Lease::max_units(100_000).ttl(Duration::from_secs(10));
    let one = Policy::new("one", quota).strategy(FixedWindow).lease(lease);
    let two = ["gcra", "other"].map(|name| Policy::new(name, quota).strategy(Gcra).lease(lease));
    for (policies, most) in [(vec![one], 0.0), (two.into(), MAX_LEASED_BY_TWO)] {
        let runtime = runtime();
        let store = RedisStore::open(server.url()).expect("a store");
        let what = format!("by a lease, {} policies", policies.len());
        let builder = Limiter::builder().store(store);
        let builder = policies
            .into_iter()
            .fold(builder, |limiter, policy| limiter.policy(policy));
        let limiter = builder.build().expect("a limiter");
        let from_store = Cell::new(0);
        let check = async || {
            let decision = limiter.check(Key::new("alice")).await;
            assert!(decision.is_admitted());
            from_store
                .set(from_store.get() + u64::from(decision.source() != DecisionSource::Lease));
        };
        // Until the units of a lease last for all that is measured.
        runtime.block_on(async {
            while limiter
                .stats()
                .store
                .leases
                .iter()
                .map(|lease| lease.held)
                .min()
                < Some(2 * TIMES)
            {
                check().await;
                tokio::task::yield_now().await;
            }
        });
        from_store.set(0);
        let each = each(&runtime, &what, check);
        assert_eq!(from_store.get(), 0, "{what}");
        assert!(each <= most + NEXT_LEASE, "{what}: {each}");
    }
}

/// Measured, with a little room for what other dependencies may do.
const MAX_ONE: f64 = 11.0;
const MAX_LEASED_BY_TWO: f64 = 2.0;

/// The request of the next lease, which may fall among the decisions that are counted.
const NEXT_LEASE: f64 = 100.0 / TIMES as f64;
const MAX_OF_THREE: f64 = 18.0;
