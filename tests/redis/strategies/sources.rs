//! Where the usual recipes of limiters on Redis go wrong, and what happens here.

use tollgate_tests::prelude::*;

use super::support::*;

#[tokio::test]
async fn a_strategy_has_none_of_the_faults_of_the_usual_recipes() {
    play_each(&[
        // One request opens a window of a second; then all that are admitted at its end, and 200 ms later at the next one's beginning.
        "even | 10/s, send 1: 1, +900ms, send 30: 10, +200ms, send 30: 2",
        "fixed calendar list | 10/s, send 1: 1, +900ms, send 30: 9, +200ms, send 30: 10",
        "log sliding1 sliding10 | 10/s, send 1: 1, +900ms, send 30: 9, +200ms, send 30: 1",
        // EXPIRE takes whole seconds.
        "all | 10/250ms, send 50: 10, +501ms, send 50: 10",
        // In floating-point numbers, five times a fifth of a token is less than a token.
        "even | 10/s, send 20: 10, left: 0",
        "even | 1/s, send 20: 1",
        "even | 200/s burst 1, send 1: 1, +1ms, send 1: 0, +1ms, send 1: 0, +1ms, send 1: 0, +1ms, send 1: 0, +1ms, send 1: 1",
        // An INCR or a DECRBY of a counter that has expired makes one that never ends.
        "all | 10/min, cost 1: true, +121s, refund 1: 0, charge 1, left: 9, +121s, send 20: 10",
        "all | 10/min, cost 5: true, refund 2: 2, left: 7, +121s, refund 5: 0, left: 10, send 20: 10",
    ])
    .await;
}

/// EXISTS and INCR, or LLEN and RPUSHX, find two windows if one ends between them.
#[tokio::test]
async fn a_charge_in_the_last_millisecond_of_a_key_is_written_with_its_window() {
    let world = World::redis();
    for micros in [0, 500, 1_000] {
        each_in(&world, &StrategyKind::ALL, "10/min", async |scene| {
            world.set(START + 500_000);
            assert_eq!(scene.send(3).await, 3);
            let ttl = ttl(world.server());
            world.advance(ms(ttl as u64 - 1) + Duration::from_micros(micros));
            assert_eq!(scene.send(1).await, 1);
            world.no_key_is_immortal();
            // Nothing rejects for ever: after the longest memory of all there is the full quota.
            world.advance(secs(121));
            assert_eq!(scene.send(20).await, 10);
        })
        .await;
    }
}

#[tokio::test]
async fn from_the_last_instant_of_a_list_window_on_each_admitted_caller_is_listed() {
    for world in World::both() {
        let limiter = world.single(StrategyKind::List, "10/s");
        let policy = limiter.policy("p").expect("a policy");
        let listed = async || policy.callers(KEY).await.expect("callers").len();
        assert_eq!(send(&limiter, KEY, 1).await, 1);
        for step in [999, 1, 1, 1] {
            world.advance(ms(step));
            let before = listed().await;
            assert_eq!(send(&limiter, KEY, 1).await, 1);
            assert_eq!(listed().await, before + 1, "at {}", world.now());
        }
    }
}

#[tokio::test]
async fn a_server_that_lost_the_script_is_sent_it_once_more() {
    let world = World::redis();
    let (server, limiter) = (world.server(), world.single(StrategyKind::Fixed, "10/min"));
    assert_eq!(send(&limiter, KEY, 5).await, 5);
    server.command(&["SCRIPT", "FLUSH"]).ok();
    assert_eq!(send(&limiter, KEY, 10).await, 5);
    // The whole script once, and its name from then on.
    server.reset_stats();
    assert_eq!(send(&limiter, Key::new("other"), 10).await, 10);
    let calls = ["eval", "evalsha"].map(|command| server.calls(command));
    assert_eq!(calls, [0, 10]);
}
