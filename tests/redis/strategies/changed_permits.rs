//! A limit of requests in flight takes over from another.

use std::time::Duration;

use tollgate::{Concurrency, Limiter, Policy, Quota};

use crate::strategies::{
    changed_policies::NOW,
    support::{StrategyKind, World, admitted_by_store, fresh_key, left, secs, send},
};

fn permit_limiter(world: &World, concurrent: u64, ttl: Duration) -> Limiter {
    let policy = Policy::new("p", Quota::concurrent(concurrent));
    world.limiter([policy.strategy(Concurrency::with_ttl(ttl))])
}

#[tokio::test]
async fn with_another_in_flight_limit_requests_in_flight_keep_their_permits() {
    for world in World::both() {
        let key = fresh_key();
        let [three, two, five] = [3, 2, 5].map(|n| permit_limiter(&world, n, secs(30)));
        let mut flying = Vec::new();
        for _ in 0..3 {
            flying.push(three.check(key).await);
        }
        assert!(flying.iter().all(admitted_by_store));
        assert_eq!(left(&two, key).await, 0, "never below zero");
        assert!(!admitted_by_store(&two.check(key).await));
        assert_eq!(left(&five, key).await, 2, "{}", world.name());
        flying.truncate(2);
        let given_back = async || left(&five, key).await == 3;
        while !given_back().await {
            tokio::task::yield_now().await;
        }
        assert!(
            !admitted_by_store(&two.check(key).await),
            "two are in flight"
        );
    }
}

#[tokio::test]
async fn with_a_shorter_ttl_permits_expire_one_new_ttl_after_the_next_operation() {
    for world in World::both() {
        let key = fresh_key();
        let (long, short) = (
            permit_limiter(&world, 1, secs(600)),
            permit_limiter(&world, 1, secs(30)),
        );
        let flying = long.check(key).await;
        assert!(admitted_by_store(&flying));
        world.advance(secs(100));
        assert!(!admitted_by_store(&short.check(key).await));
        world.advance(secs(29));
        assert!(!admitted_by_store(&short.check(key).await));
        world.advance(secs(2));
        let next = short.check(key).await;
        assert!(admitted_by_store(&next), "{}", world.name());
        if let Some(server) = world.redis_server() {
            assert_eq!(server.immortal_keys(), [""; 0]);
        }
        drop((flying, next));
    }
}

#[tokio::test]
async fn with_a_longer_ttl_unrenewed_permits_keep_their_expiry() {
    for world in World::both() {
        let key = fresh_key();
        let (short, long) = (
            permit_limiter(&world, 1, secs(30)),
            permit_limiter(&world, 1, secs(600)),
        );
        let flying = short.check(key).await;
        assert!(admitted_by_store(&flying));
        world.advance(secs(29));
        assert!(!admitted_by_store(&long.check(key).await));
        world.advance(secs(2));
        assert!(
            admitted_by_store(&long.check(key).await),
            "{}",
            world.name()
        );
        drop(flying);
    }
}

#[tokio::test]
async fn from_a_rate_to_an_in_flight_limit_counts_start_anew() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let key = fresh_key();
            world.set(NOW);
            let (rate, flight) = (
                world.single(strategy, "10/min"),
                permit_limiter(&world, 10, secs(30)),
            );
            assert_eq!(send(&rate, key, 10).await, 10);
            assert_eq!(left(&flight, key).await, 10, "{strategy:?}");
            assert_eq!(
                left(&rate, key).await,
                0,
                "{strategy:?} on {}",
                world.name()
            );
        }
    }
}
