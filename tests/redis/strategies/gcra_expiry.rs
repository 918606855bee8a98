//! GCRA's keys on Redis: what a single command takes, and when they end.
//!
//! An arrival time is stored modulo a cycle of 225,000,000 s, and a key ends at the end of a minute
//! (`src/strategy/rate/gcra.lua`): the tests are about where cycles and minutes meet.

use tollgate_tests::prelude::*;

use super::support::*;

/// Of `INCRBY`, `SET`, `PEXPIREAT` and `GET`.
fn calls(server: &Server) -> [u64; 4] {
    ["incrby", "set", "pexpireat", "get"].map(|command| server.calls(command))
}

/// Policies with the names of their quotas.
fn policies(quotas: &[&str]) -> impl Iterator<Item = Policy> {
    let policy = |text: &&str| StrategyKind::Gcra.policy(&text.replace(['/', ' '], "-"), text);
    quotas.iter().map(policy)
}

#[tokio::test]
async fn a_repeated_request_is_counted_by_one_command() {
    let world = World::redis();
    world.set(START + 1_000_000);
    let limiter = world.single(StrategyKind::Gcra, "600/min");
    let server = world.server();
    // It comes, and comes again.
    assert_eq!(send(&limiter, KEY, 2).await, 2);
    server.reset_stats();
    assert_eq!(send(&limiter, KEY, 400).await, 400);
    assert_eq!(calls(server), [400, 0, 0, 0]);
    // On to the next minute of its arrival time: 590 x 0.1 s.
    assert_eq!(send(&limiter, KEY, 198).await, 198);
    assert_eq!(calls(server), [598, 0, 1, 0]);
    // Rejections leave all as it was.
    let before = values(server);
    assert_eq!(send(&limiter, KEY, 1).await, 0);
    assert_eq!(values(server), before);
}

#[tokio::test]
async fn under_several_policies_one_command_each_charges_and_one_more_rolls_back() {
    let world = World::redis();
    world.set(START + 100_000_000);
    let limiter = world.limiter(policies(&["600/min", "1000/min burst 2000", "500/h"]));
    let server = world.server();
    // Keys that were charged twice are old.
    assert_eq!(send(&limiter, KEY, 2).await, 2);
    server.reset_stats();
    assert_eq!(send(&limiter, KEY, 300).await, 300);
    // 300 x 7.2 s are 36 minutes, and 300 x 0.1 s are into the next one.
    assert_eq!(calls(server), [900, 0, 37, 0]);
    // 498 more are too many for the last alone, as one request and one by one: it is charged for none, nor are others.
    assert_eq!(send(&limiter, KEY, 198).await, 198);
    let before = values(server);
    server.reset_stats();
    assert_eq!(send(&limiter, KEY, 5).await, 0);
    assert_eq!(calls(server), [30, 0, 0, 0]);
    assert_eq!(limiter.check(KEY).times(7).await.admitted(), 0);
    assert_eq!(values(server), before);
}

#[tokio::test]
async fn a_ttl_that_was_lost_or_is_too_long_is_repaired() {
    let world = World::redis();
    let server = world.server();
    for quotas in [
        &["6/min"][..],
        &["6/min", "20/min"],
        &["20/min", "100/min", "6/min"],
    ] {
        for touch in ["reject", "peek", "cross a lap", "come back stale"] {
            for spoil in [&["PERSIST"][..], &["PEXPIRE", "9999999999"]] {
                let _case = Case(format!("{quotas:?} {touch} {spoil:?}"));
                world.set(START);
                server.flush();
                let limiter = world.limiter(policies(quotas));
                assert_eq!(send(&limiter, KEY, 6).await, 6);
                if touch == "cross a lap" {
                    world.advance(secs(59));
                }
                for key in server.keys() {
                    let command = [&[spoil[0], &key], &spoil[1..]].concat();
                    assert_eq!(server.command(&command).int(), 1);
                }
                match touch {
                    "reject" => assert_eq!(send(&limiter, KEY, 1).await, 0),
                    "peek" => drop(limiter.peek(KEY).await.expect("a response")),
                    "cross a lap" => assert_eq!(send(&limiter, KEY, 5).await, 5),
                    _ => {
                        world.advance(secs(200));
                        assert_eq!(send(&limiter, KEY, 7).await, 6);
                    }
                }
                for key in server.keys() {
                    let ttl = pttl(server, &key);
                    // Arrival times are at most a minute ahead.
                    assert!((0..=120_000).contains(&ttl), "{key} ends in {ttl} ms");
                }
            }
        }
    }
}

#[tokio::test]
async fn two_hundred_keys_that_lost_their_ttl_are_repaired_in_one_batch() {
    let world = World::redis();
    let limiter = world.single(StrategyKind::Gcra, "1/min");
    let ask_all = async || {
        let keys = (0..200).map(|key| Key::new(format!("{key:03}")));
        let decisions = join_all(keys.map(|key| limiter.check(key).into_future())).await;
        let admitted = decisions.iter().filter(|one| one.is_admitted());
        admitted.count()
    };
    assert_eq!(ask_all().await, 200);
    let server = world.server();
    for key in server.keys() {
        server.command(&["PERSIST", &key]).ok();
    }
    assert_eq!(server.immortal_keys().len(), 200);
    assert_eq!(ask_all().await, 0);
    assert_eq!(server.immortal_keys(), [""; 0]);
}

#[tokio::test]
async fn a_key_created_by_a_rejected_request_is_deleted() {
    let world = World::redis();
    let narrow = StrategyKind::Gcra.policy("narrow", "2/min");
    let limiter = world.limiter([StrategyKind::Gcra.policy("wide", "100/h"), narrow]);
    assert_eq!(limiter.check(KEY).times(2).await.admitted(), 2);
    let keys = world.server().keys();
    assert_eq!(keys.len(), 2);
    // The policy that rejects has a key, and the other one has none any more.
    let wide = keys.iter().find(|key| key.contains("wide")).expect("a key");
    world.server().command(&["DEL", wide]).ok();
    assert_eq!(send(&limiter, KEY, 1).await, 0);
    assert_eq!(world.server().keys().len(), 1);
}

#[tokio::test]
async fn a_key_without_a_ttl_rejects_for_one_refill_and_one_interval_at_most() {
    // Ages up to two cycles, of the deepest debt.
    for (quota, refill) in [
        ("60/h", 3_600),
        ("2/h burst 60", 108_000),
        ("1/400days", 34_560_000),
    ] {
        let world = World::redis();
        let limiter = world.single(StrategyKind::Gcra, quota);
        let interval = refill / super::support::quota(quota).capacity();
        for age in (0..=240_u64).map(|part| part * (225_000_000 * 2 / 240)) {
            world.set(START);
            world.server().flush();
            let _ = limiter.charge(KEY, 1_000).await.expect("a response");
            let key = world.server().only_key();
            world.server().command(&["PERSIST", &key]).ok();
            world.advance(secs(age));
            let wait = match limiter.peek(KEY).await.expect("a response").retry_after() {
                RetryAfter::Now => 0,
                RetryAfter::In(wait) => wait.as_micros() as u64,
                RetryAfter::Unknown | RetryAfter::Never => panic!("{quota}"),
            };
            let longest = (refill + interval) * 1_000_000;
            assert!(wait <= longest, "{quota}, {age} s: {wait} µs");
            if (2 * refill..=3 * 365 * 86_400).contains(&age) {
                assert_eq!(wait, 0, "{quota}, {age} s");
            }
        }
    }
}

#[tokio::test]
async fn a_key_ends_with_the_first_full_minute_at_or_after_its_arrival_time() {
    let world = World::redis();
    let limiter = world.single(StrategyKind::Gcra, "10/min");
    assert_eq!(send(&limiter, KEY, 1).await, 1);
    assert_eq!(ttl(world.server()), 60_000);
    // 60 s is the end of the first minute, and 66 s is in the second.
    assert_eq!(send(&limiter, KEY, 9).await, 9);
    assert_eq!(ttl(world.server()), 60_000);
    world.advance(secs(6));
    assert_eq!(send(&limiter, KEY, 1).await, 1);
    assert_eq!(ttl(world.server()), 114_000);
}

#[tokio::test]
async fn a_manual_charge_to_a_full_minute_ends_the_key_with_that_minute() {
    let world = World::redis();
    let scene = world.scene(StrategyKind::Gcra, "10/min");
    scene.charge(10).await;
    assert_eq!(ttl(world.server()), 60_000);
    scene.charge(1).await;
    assert_eq!(ttl(world.server()), 120_000);
}
