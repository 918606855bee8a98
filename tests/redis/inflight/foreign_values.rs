//! What else may stand under the key.

use tollgate_tests::prelude::*;

use crate::inflight::support::*;

#[tokio::test]
async fn a_foreign_value_is_reported_and_left_alone() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
    let held = admit(&limiter).await;
    let key = server.only_key();
    for plant in [
        ["SET", &key, "precious"].as_slice(),
        &["RPUSH", &key, "precious"],
        &["HSET", &key, "a", "b"],
        &["ZADD", &key, "1", "a"],
        // No numbers of units: the reply to all requests of the call would be malformed.
        &["ZADD", &key, "-inf", "=", "1", "a"],
        &["ZADD", &key, "inf", "=", "1", "a"],
        &["ZADD", &key, "-1.5", "=", "1", "a"],
        &["ZADD", &key, "-1e300", "=", "1", "a"],
        &["ZADD", &key, "-2", "=", "1", "a", "-inf", "a="],
    ] {
        server.command(&["DEL", &key]).ok();
        server.command(plant).ok();
        let planted = server.command(&["DUMP", &key]);
        let peek = limiter.peek(KEY).await;
        for error in [store_error(&admit(&limiter).await), store_error(&peek)] {
            let names_key =
                matches!(&error, StoreError::CorruptKey { key: named, .. } if **named == *key);
            assert!(names_key, "{error:?}");
        }
        assert_eq!(server.command(&["DUMP", &key]), planted);
        // Its life is its owner's.
        assert_eq!(server.command(&["PTTL", &key]).int(), -1);
    }
    // Releases and heartbeats don't change it either.
    let planted = server.command(&["DUMP", &key]);
    drop(held);
    assert!(admit(&limiter).await.is_err());
    assert_eq!(server.command(&["DUMP", &key]), planted);
}

#[tokio::test]
async fn permits_without_an_expiry_are_ended_within_one_ttl() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
    leak_permits(&world, MAX_PERMITS, PERMIT_TTL).await;
    let key = server.only_key();
    for (holder, _) in holders(server) {
        server.command(&["ZADD", &key, "+inf", &holder]).ok();
    }
    server.command(&["PERSIST", &key]).ok();
    assert!(!admitted_by_store(&admit(&limiter).await));
    assert_eq!(stored_permits(server), MAX_PERMITS);
    world.advance(PERMIT_TTL);
    assert_eq!(free(&limiter).await, MAX_PERMITS);
}
