//! GCRA on Redis beside its fast path: what is left under a key by refunds, peeks and rejections, and where units end.

use tollgate_tests::prelude::*;

use super::support::*;

fn writes(world: &World) -> [u64; 4] {
    ["set", "del", "pexpireat", "incrby"].map(|command| world.server().calls(command))
}

#[tokio::test]
async fn a_refund_leaves_no_key_of_a_full_burst_and_refunds_no_refilled_units() {
    let full = "10/min, cost 3: true, refund 3: 3, left: 10, keys: 0";
    play("gcra", full).await;
    let refilled = "10/min, cost 3: true, +20s, send 4: 4, refund 3: 0, left: 6";
    play("gcra", refilled).await;
}

#[tokio::test]
async fn a_refund_after_a_reset_makes_no_key() {
    let world = World::redis();
    let scene = world.scene(StrategyKind::Gcra, "10/min");
    let mut decision = scene.check(10).await;
    scene.reset().await;
    world.server().reset_stats();
    decision.refund(3).await.expect("a refund");
    assert_eq!(writes(&world), [0; 4]);
    assert_eq!(scene.left().await, 10);
}

#[tokio::test]
async fn a_peek_writes_nothing_unless_the_key_is_expired() {
    let world = World::redis();
    let limiter = world.single(StrategyKind::Gcra, "10/min");
    assert_eq!(left(&limiter, KEY).await, 10);
    assert_eq!(writes(&world), [0; 4]);
    assert_eq!(send(&limiter, KEY, 10).await, 10);
    world.server().reset_stats();
    assert_eq!(left(&limiter, KEY).await, 0);
    assert!(!admitted_by_store(&limiter.check(KEY).cost(11).await));
    assert_eq!(writes(&world), [0; 4]);
    // Its key lasts longer than its arrival time, if it has no end.
    let key = world.server().only_key();
    world.server().command(&["PERSIST", &key]).ok();
    world.advance(secs(90));
    assert_eq!(left(&limiter, KEY).await, 10);
    assert_eq!(world.server().keys(), [""; 0]);
}

#[tokio::test]
async fn a_stored_zero_is_no_arrival_time_even_shortly_before_a_round_ends() {
    let world = World::redis();
    world.set(START - 30_000_000);
    let limiter = world.single(StrategyKind::Gcra, "10/min");
    assert_eq!(send(&limiter, KEY, 1).await, 1);
    let key = world.server().only_key();
    world.server().command(&["SET", &key, "0"]).ok();
    assert_eq!(left(&limiter, KEY).await, 10);
}

#[tokio::test]
async fn a_value_just_past_a_round_is_left_alone() {
    let world = World::redis();
    // Where arrival times are small, it would be one that is over.
    world.set(START + 600_000_000);
    let limiter = world.single(StrategyKind::Gcra, "10/min");
    assert_eq!(send(&limiter, KEY, 1).await, 1);
    let key = world.server().only_key();
    let value = "4500000000000001";
    world.server().command(&["SET", &key, value]).ok();
    let error = store_error(&limiter.check(KEY).await);
    assert!(matches!(error, StoreError::CorruptKey { .. }), "{error:?}");
    assert_eq!(world.server().command(&["GET", &key]).text(), value);
}

/// A round ends at `START`. The keys are called in this very microsecond, and a minute later.
#[tokio::test]
async fn an_arrival_time_of_now_at_the_end_of_a_round_is_counted_like_any_other() {
    for world in World::both() {
        let quotas = [("one", "1/min"), ("two", "2/min")];
        let policies = quotas.map(|(name, quota)| StrategyKind::Gcra.policy(name, quota));
        let limiter = world.limiter(policies);
        world.set(START - 60_000_000);
        for minute in 0..3 {
            assert_eq!(send(&limiter, KEY, 3).await, 1, "minute {minute}");
            assert_eq!(left(&limiter, KEY).await, 0, "minute {minute}");
            world.advance(secs(60));
        }
    }
}
