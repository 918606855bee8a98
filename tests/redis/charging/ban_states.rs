//! What a ban leaves in a store, and what becomes of it there; what clients see of it.

use tollgate_tests::prelude::*;

use crate::charging::{
    ban::{MICRO, abuse, banned, by_key, left, once, reject, reject_after_one, wait},
    support::*,
};

#[tokio::test]
async fn over_http_a_ban_is_a_429_and_is_invisible_before() {
    for world in World::both() {
        let layer = world.layer([even("p", "1/s"), abuse()]);
        let passed = respond(&layer, text(200)).await;
        assert_eq!(passed.headers()["ratelimit"], "\"p\";r=0;t=1");
        for (policies, retry_after, problem) in [
            ("p", "1", "#quota-exceeded"),
            ("p", "1", "#quota-exceeded"),
            ("p, abuse", "600", "#abnormal-usage-detected"),
        ] {
            let rejected = respond(&layer, text(200)).await;
            assert_eq!(rejected.status(), 429);
            assert_eq!(rejected.headers()["retry-after"], retry_after);
            let fields = rejected.headers()["ratelimit-policy"].to_str();
            let fields = fields.expect("text").split(", ");
            let names: Vec<_> = fields.filter_map(|f| f.split('"').nth(1)).collect();
            assert_eq!(names.join(", "), policies);
            let body = rejected.into_body().collect().await.expect("a body");
            let body: Value = serde_json::from_slice(&body.to_bytes()).expect("problem details");
            let kind = body["type"].as_str().expect("a type");
            assert!(kind.ends_with(problem), "{kind}");
        }
        world.advance(secs(100));
        let rejected = respond(&layer, text(200)).await;
        assert_eq!(rejected.status(), 429);
        assert_eq!(rejected.headers()["retry-after"], "500");
        layer.limiter().unblock(KEY).await.expect("a response");
        assert_eq!(pass(&layer, text(200)).await, 200);
    }
}

#[tokio::test]
async fn a_ban_adds_no_round_trip_and_an_admitted_request_writes_nothing_to_it() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([window("p", "2/h"), abuse()]);
    assert_eq!(wait(&limiter, KEY).await, None);
    for is_admitted in [true, false] {
        server.reset_stats();
        assert_eq!(wait(&limiter, KEY).await.is_none(), is_admitted);
        assert_eq!((server.calls("evalsha"), server.calls("set")), (1, 1));
    }
}

#[tokio::test]
async fn when_the_clock_steps_back_a_ban_lasts_no_longer_than_before() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()].map(by_key));
        reject_after_one(&limiter, 3).await;
        let other = Key::new("other");
        assert_eq!(wait(&limiter, other).await, None);
        assert!(wait(&limiter, other).await.is_some());
        world.set(world.now() - 3_600_000_000);
        assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
        assert_eq!(left(&limiter, other).await, 2);
        if let Some(server) = world.redis_server() {
            for key in server.keys().iter().filter(|key| key.contains("x1")) {
                let ttl = server.command(&["PTTL", key]).int();
                assert!(ttl <= 1_200_001, "{key} lives for {ttl} ms");
            }
        }
        world.advance(secs(60));
        assert_eq!(left(&limiter, other).await, 3);
        world.advance(secs(540) - MICRO);
        assert_eq!(banned(&limiter, KEY).await, Some(MICRO));
        world.advance(MICRO);
        assert_eq!(banned(&limiter, KEY).await, None);
    }
}

fn ban_key(world: &World) -> String {
    let keys = world.server().keys();
    let mut bans = keys.into_iter().filter(|key| key.contains("x1"));
    let key = bans.next().expect("a key");
    assert_eq!(bans.next(), None);
    key
}

#[tokio::test]
async fn a_lost_ttl_is_restored_by_the_next_operation() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([once(), abuse()].map(by_key));
    reject_after_one(&limiter, 1).await;
    let key = ban_key(&world);
    for rejections in [1, 2] {
        // Rejections that count, then a ban.
        server.command(&["PERSIST", &key]);
        let _ = limiter.check("other").await;
        assert_eq!(server.immortal_keys(), [key.as_str()]);
        let _ = limiter.peek(KEY).await.expect("a response");
        assert_eq!(server.immortal_keys(), [""; 0]);
        reject(&limiter, rejections).await;
    }
    assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
    // And one of which nothing is left.
    server.command(&["PERSIST", &key]);
    world.advance(secs(7_200));
    assert_eq!(banned(&limiter, KEY).await, None);
    world.advance(ms(5));
    let keys = server.keys();
    assert!(!keys.contains(&key), "{keys:?}");
}

#[tokio::test]
async fn a_foreign_value_under_a_bans_key_is_left_alone() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([window("p", "1/h"), abuse()]);
    reject_after_one(&limiter, 1).await;
    let key = ban_key(&world);
    let numbers = "1 2 3 4, 1 2 3 4 5 6, 1 2 3 4 -5, 1 2 3 4 500, 99999999999999999 2 3 4 5";
    for foreign in format!("hello, {numbers}, 1 2 3 4 5x, 1.5 2 3 4 5").split(", ") {
        server.command(&["SET", &key, foreign]);
        let decision = limiter.check(KEY).await;
        let is_corrupt = matches!(store_error(&decision), StoreError::CorruptKey { .. });
        assert!(is_corrupt, "{foreign:?}: {decision:?}");
        assert_eq!(server.command(&["GET", &key]).text(), foreign);
    }
    limiter.unblock(KEY).await.expect_err("not ours to delete");
}

#[tokio::test]
async fn an_impossible_ban_is_a_config_error() {
    let build = |policy: Policy| Limiter::builder().policy(once()).policy(policy).build();
    let lasting = |lasting| ban("abuse", "3/min", lasting);
    let [none, no_end] =
        [Duration::ZERO, Duration::MAX].map(|time| lasting(Ban::for_duration(time)));
    let shortened = lasting(Ban::for_duration(secs(9)).max_duration(secs(8)));
    let refunded = abuse().refund_unless(outcome::success);
    for (policy, valid) in [
        (none, "a millisecond"),
        (no_end, "ten years"),
        (shortened, "no shorter"),
        (abuse().charge_rejected(true), "a ban without them"),
        (refunded, "a ban without them"),
        (abuse().shadow(), "a ban without them"),
    ] {
        let error = build(policy).expect_err(valid);
        assert_contains(error, ["\"abuse\"", valid]);
    }
    let concurrent = Policy::new("abuse", Quota::concurrent(3));
    build(concurrent.strategy(Ban::for_duration(secs(1)))).expect_err("no period");
    // Days and more don't fail, and the bound is never below the first.
    build(lasting(Ban::for_duration(secs(30 * 86_400)))).expect("a limiter");
}

#[tokio::test]
async fn a_rejection_stays_one_when_redis_has_no_memory_to_count_it() {
    let world = World::redis();
    let server = world.server();
    let new = window("new", "9/h").shadow();
    let limiter = world.limiter([window("p", "1/h"), abuse(), new]);
    reject_after_one(&limiter, 1).await;
    let set = |most: &str| server.command(&["CONFIG", "SET", "maxmemory", most]).ok();
    set("1");
    reject(&limiter, 5).await;
    set("0");
    assert_eq!(left(&limiter, KEY).await, 2);
    reject(&limiter, 2).await;
    assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
}
