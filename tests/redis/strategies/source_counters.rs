//! What the sources' counters get wrong where they end, and where they count afterwards.

use testkit::Server;
use tollgate::{Key, StoreError};

use crate::strategies::{
    sources::{Client, LIMITER_2, passed},
    support::{
        KEY, StrategyKind, World, admitted_by_store, left, ms, secs, send, send_concurrently,
        store_error,
    },
};

#[tokio::test]
async fn a_counter_that_expires_during_a_slow_call_comes_back_without_a_ttl() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    if client.call(&["GET", "ocr"]).is_nil() {
        client.call(&["SET", "ocr", "0", "EX", "60"]).ok();
    }
    world.advance(secs(61));
    // The provider has responded: now it counts.
    client.call(&["INCR", "ocr"]).ok();
    assert_eq!(client.call(&["PTTL", "ocr"]).int(), -1);
    let mut article = || {
        let passes = client.get("ocr") < 10;
        if passes {
            client.call(&["INCR", "ocr"]).ok();
        }
        passes
    };
    assert_eq!(passed(20, &mut article), 9);
    world.advance(secs(86_400));
    assert_eq!(passed(20, article), 0, "locked out for ever");

    world.server().flush();
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            let mut reserved = limiter.check(KEY).await;
            assert!(admitted_by_store(&reserved));
            world.advance(secs(121));
            // It failed, so it is refunded; by now everything has refilled.
            assert_eq!(
                reserved.refund(1).await.expect("a refund")[0].units(),
                0,
                "{strategy:?}"
            );
            // It succeeded, and its true cost is charged, in a later window than the request's.
            assert!(admitted_by_store(
                &limiter.charge(KEY, 1).await.expect("a response")
            ));
            assert_eq!(
                left(&limiter, KEY).await,
                9,
                "{strategy:?} on {}",
                world.name()
            );
            let immortal = world
                .redis_server()
                .map_or(Vec::new(), Server::immortal_keys);
            assert_eq!(immortal, [""; 0], "{strategy:?}");
            world.advance(secs(121));
            assert_eq!(send(&limiter, KEY, 20).await, 10, "{strategy:?}");
        }
    }
}

#[tokio::test]
async fn a_counter_can_expire_between_its_existence_check_and_its_increment() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["SET", "ocr", "3", "PX", "60000"]).ok();
    world.advance(secs(60));
    assert_eq!(client.call(&["EXISTS", "ocr"]).int(), 1);
    world.advance(ms(1));
    client.call(&["INCR", "ocr"]).ok();
    assert_eq!(client.call(&["PTTL", "ocr"]).int(), -1);

    // A key in its last millisecond, in ours: each write comes with the window it belongs to.
    for strategy in StrategyKind::ALL {
        for micros in 0..3 {
            world.server().flush();
            world.set(crate::strategies::support::START + 500_000);
            let limiter = world.single(strategy, "10/min");
            assert_eq!(send(&limiter, KEY, 3).await, 3);
            let ttl = world
                .server()
                .command(&["PTTL", &world.server().only_key()])
                .int();
            world.advance(ms(ttl as u64 - 1) + micros * std::time::Duration::from_micros(500));
            assert_eq!(send(&limiter, KEY, 1).await, 1);
            assert_eq!(world.server().immortal_keys(), [""; 0], "{strategy:?}");
            // Locked out by nothing: after the longest memory of all there is the full quota.
            world.advance(secs(121));
            assert_eq!(send(&limiter, KEY, 20).await, 10, "{strategy:?}");
        }
    }
}

#[tokio::test]
async fn callers_counted_only_afterwards_all_pass_the_check() {
    const REPAIR: &str = "
        local count = redis.call('INCR', KEYS[1])
        if redis.call('TTL', KEYS[1]) == -1 then
          redis.call('EXPIRE', KEYS[1], 60)
        end
        return count";
    let world = World::redis();
    let mut clients: Vec<_> = (0..64).map(|_| Client::of(world.server())).collect();
    let checks: Vec<_> = clients
        .iter_mut()
        .map(|client| client.get("ocr") < 10)
        .collect();
    assert_eq!(checks, [true; 64]);
    for client in &mut clients {
        client.eval(REPAIR, &["ocr"], &[]).ok();
    }
    assert_eq!(clients[0].get("ocr"), 64);

    // Acquired first, and refunded by those whose provider failed.
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..64 {
                tasks.spawn(limiter.check(KEY).into_future());
            }
            let mut reserved = tasks.join_all().await;
            reserved.retain(admitted_by_store);
            assert_eq!(reserved.len(), 10, "{strategy:?}");
            for failed in &mut reserved[..4] {
                assert_eq!(failed.refund(1).await.expect("a refund")[0].units(), 1);
            }
            assert_eq!(
                send_concurrently(&limiter, KEY, 64).await,
                4,
                "{strategy:?} on {}",
                world.name()
            );
        }
    }
}

// Row 12: counters.

#[tokio::test]
async fn a_counter_refunded_after_its_expiry_stays_below_zero_for_ever() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["INCRBY", "count", "5"]).ok();
    client.call(&["PEXPIRE", "count", "60000"]).ok();
    world.advance(secs(61));
    client.call(&["DECRBY", "count", "5"]).ok();
    assert_eq!(
        (client.get("count"), client.call(&["PTTL", "count"]).int()),
        (-5, -1)
    );

    world.server().flush();
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            let mut charged = limiter.check(KEY).cost(5).await;
            assert!(admitted_by_store(&charged));
            assert_eq!(left(&limiter, KEY).await, 5);
            // Twice is once.
            assert_eq!(
                charged.clone().refund(2).await.expect("a refund")[0].units(),
                2
            );
            assert_eq!(left(&limiter, KEY).await, 7);
            world.advance(secs(121));
            assert_eq!(
                charged.refund(5).await.expect("a refund")[0].units(),
                0,
                "{strategy:?}"
            );
            assert_eq!(left(&limiter, KEY).await, 10);
            assert_eq!(
                send(&limiter, KEY, 20).await,
                10,
                "{strategy:?} on {}",
                world.name()
            );
        }
    }
}

#[tokio::test]
async fn a_reset_returns_what_was_counted() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["SET", "count", "7", "PX", "60000"]).ok();
    assert_eq!(client.call(&["GETSET", "count", "0"]).text(), "7");
    assert_eq!(
        client.call(&["PTTL", "count"]).int(),
        -1,
        "and its end is lost"
    );

    world.server().flush();
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            assert!(admitted_by_store(&limiter.check(KEY).cost(7).await));
            let was = limiter.reset(KEY).await.expect("a response");
            let was = was.policies().next().expect("a policy").remaining();
            assert_eq!(was, 3, "{strategy:?} on {}", world.name());
            assert_eq!(left(&limiter, KEY).await, 10, "{strategy:?}");
            if let Some(server) = world.redis_server() {
                assert_eq!(server.keys(), [""; 0]);
            }
        }
    }
}

#[tokio::test]
async fn a_value_of_another_type_under_the_key_is_an_error_and_is_left_alone() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["SET", "count", "ten"]).ok();
    assert!(
        client
            .eval(LIMITER_2, &["count"], &[])
            .error()
            .contains("not an integer")
    );
    client.call(&["SET", "count", &i64::MAX.to_string()]).ok();
    assert!(
        client
            .eval(LIMITER_2, &["count"], &[])
            .error()
            .contains("overflow")
    );

    for strategy in StrategyKind::ALL {
        world.server().flush();
        let limiter = world.single(strategy, "10/min");
        assert_eq!(send(&limiter, KEY, 1).await, 1);
        let key = world.server().only_key();
        for foreign in [
            &["SET", &key, "ten"][..],
            &["SET", &key, "-3"],
            &["SET", &key, "12345678901234567890"],
            &["SET", &key, "1:2:3:4"],
            &["HSET", &key, "a", "b"],
            &["RPUSH", &key, "ten"],
            &["SADD", &key, "ten"],
        ] {
            client.call(&["DEL", &key]).ok();
            client.call(foreign).ok();
            let before = client.call(&["DUMP", &key]);
            for error in [
                store_error(&limiter.check(KEY).await),
                store_error(&limiter.charge(KEY, 1).await),
                store_error(&limiter.peek(KEY).await),
            ] {
                match error {
                    StoreError::CorruptKey { key: named, .. } => assert_eq!(*named, *key),
                    other => panic!("{strategy:?} {foreign:?}: {other}"),
                }
            }
            assert_eq!(
                client.call(&["DUMP", &key]),
                before,
                "{strategy:?} {foreign:?}"
            );
        }
        // No other key is harmed.
        assert_eq!(send(&limiter, Key::new("other"), 1).await, 1);
    }
}
