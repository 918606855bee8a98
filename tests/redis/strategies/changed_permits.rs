//! A limit of requests in flight takes over from another.
//!
//! Heartbeats come by this machine's clock, every third of a TTL: the TTLs are so long that none comes while a test runs.

use tollgate_tests::prelude::*;

use super::support::*;

const SHORT: Duration = secs(3_600);
const LONG: Duration = secs(36_000);

fn permit_limiter(world: &World, concurrent: u64, ttl: Duration) -> Limiter {
    let policy = Policy::new("p", Quota::concurrent(concurrent));
    world.limiter([policy.strategy(Concurrency::with_ttl(ttl))])
}

#[tokio::test]
async fn with_another_in_flight_limit_requests_in_flight_keep_their_permits() {
    for world in World::both() {
        let key = fresh_key();
        let [three, two, five] = [3, 2, 5].map(|n| permit_limiter(&world, n, SHORT));
        let mut flying = Vec::new();
        for _ in 0..3 {
            flying.push(three.check(key).await);
        }
        assert!(flying.iter().all(admitted_by_store));
        assert_eq!(left(&two, key).await, 0, "never below zero");
        assert!(!admitted_by_store(&two.check(key).await));
        assert_eq!(left(&five, key).await, 2);
        flying.truncate(2);
        until("the permit is released", async || {
            left(&five, key).await == 3
        })
        .await;
        let rejected = two.check(key).await;
        assert!(!admitted_by_store(&rejected), "two are in flight");
    }
}

#[tokio::test]
async fn with_another_ttl_permits_expire_by_the_shorter_one() {
    for world in World::both() {
        // A shorter one begins with the next operation; before a longer one, an unrenewed permit keeps its expiry.
        for (old, new, operation_after) in [(LONG, SHORT, SHORT), (SHORT, LONG, SHORT - secs(1))] {
            let key = fresh_key();
            let [old, new] = [old, new].map(|ttl| permit_limiter(&world, 1, ttl));
            let flying = old.check(key).await;
            assert!(admitted_by_store(&flying));
            world.advance(operation_after);
            assert!(!admitted_by_store(&new.check(key).await));
            if operation_after == SHORT {
                world.advance(SHORT - secs(1));
                assert!(!admitted_by_store(&new.check(key).await));
            }
            world.advance(secs(2));
            let next = new.check(key).await;
            assert!(admitted_by_store(&next));
            world.no_key_is_immortal();
            drop((flying, next));
        }
    }
}

#[tokio::test]
async fn from_a_rate_to_an_in_flight_limit_counts_start_anew() {
    each("10/min", async |rate| {
        let flight = permit_limiter(rate.world, 10, SHORT);
        assert_eq!(rate.send(10).await, 10);
        assert_eq!(left(&flight, rate.key).await, 10);
        assert_eq!(rate.left().await, 0);
    })
    .await;
}
