//! What becomes of what was used when a policy changes under live keys: every cell of `docs/changing-policies.md`.

use tollgate_tests::{prelude::*, script::name};

use super::support::*;

#[tokio::test]
async fn with_another_number_of_requests_the_share_of_an_even_rate_and_other_charges_stay() {
    play_each(&[
        "even | 10/min, charge 6, 20/min, left: 8",
        "even | 10/min, charge 6, 5/min, left: 2",
        "counted | 10/min, charge 6, 20/min, left: 14, send 30: 14",
        // Never below zero. Their window began with the first request; the calendar's with the minute.
        "fixed list log | 10/min, charge 6, 5/min, left: 0, wait: 60s, +60s, cost 1: true",
        "calendar | 10/min, charge 6, 5/min, left: 0, wait: 50s, +50s, cost 1: true",
        // Four of six are in when the two-counter window has slid by a third: ceil(6 x 40/60) = 4.
        "sliding1 | 10/min, charge 6, 5/min, left: 0, wait: 70s, +70s, cost 1: true",
        // And here when the bucket of 6 s, in its fifth second, has.
        "sliding10 | 10/min, charge 6, 5/min, left: 0, wait: 58s, +58s, cost 1: true",
    ])
    .await;
}

#[tokio::test]
async fn with_another_burst_an_even_rate_keeps_the_units_that_were_used() {
    play_each(&[
        "even | 10/min, charge 6, 10/min burst 20, left: 14",
        // Six more than the new burst are waited for, and then one.
        "even | 10/min burst 20, charge 16, 10/min, left: 0, wait: 42s",
        // More than twice the new burst is no debt that it could have made: all of it is used, and no more.
        "even | 10/min burst 20, charge 20, 10/min burst 5, wait: 6s",
    ])
    .await;
}

#[test]
fn a_burst_is_a_config_error_for_strategies_of_windows() {
    for world in World::both() {
        for strategy in StrategyKind::ALL.into_iter().filter(|s| !s.is_even()) {
            let policy = strategy.policy("p", "10/min burst 20");
            let error = world.builder().policy(policy).build();
            let error = error.expect_err("a mistake");
            assert_eq!(error.policy(), Some("p"));
            assert!(error.expected().contains("leave it out"), "{error}");
        }
    }
}

#[tokio::test]
async fn with_a_longer_period_the_time_of_an_even_rate_and_the_end_of_an_open_window_stay() {
    play_each(&[
        // 36 seconds are a tenth of what a unit now takes.
        "even | 10/min, charge 6, 10/h, left: 9, +36s, left: 10",
        "fixed list | 10/min, charge 6, 10/h, send 20: 4, wait: 60s, +60s, send 20: 10, wait: 3600s",
    ])
    .await;
}

#[tokio::test]
async fn with_a_longer_period_all_stored_charges_count_in_it() {
    for (strategy, wait, rest) in [
        ("log", "3600s", "3418999999us"),
        ("calendar", "3590s", "3408999999us"),
        ("sliding1", "3950s", "3768999999us"),
        ("sliding10", "3626s", "3444999999us"),
    ] {
        // Also when its own time to live, of the shorter period, would have passed.
        let later = "+1s, send 1: 0, +60s, send 1: 0, +120s, send 1: 0";
        let ends = format!("+{rest}, send 1: 0, +1us, send 1: 1");
        let script = format!("10/min, charge 10, 10/h, wait: {wait}, {later}, {ends}");
        play(strategy, &script).await;
    }
}

#[tokio::test]
async fn with_a_shorter_period_no_more_is_used_than_it_can_have_and_charges_within_it_count() {
    play_each(&[
        "even | 10/h, charge 6, 10/min, left: 0, send 1: 0, wait: 6s, +60s, send 20: 10",
        // An open window ends one new period after the next operation.
        "fixed list | 10/h, charge 10, 10/min, +600s, send 1: 0, wait: 60s, +59s, wait: 1s, +1s, send 20: 10",
        "log | 10/h, charge 10, 10/min, send 1: 0, wait: 60s, +60s, send 1: 1",
        "calendar | 10/h, charge 10, 10/min, send 1: 0, wait: 50s, +50s, send 1: 1",
        "sliding1 | 10/h, charge 10, 10/min, send 1: 0, wait: 56s, +56s, send 1: 1",
        "sliding10 | 10/h, charge 10, 10/min, send 1: 0, wait: 56600ms, +56600ms, send 1: 1",
        // What is older than the new period does not, where its age is stored.
        "log | 10/h, charge 10, 10/min, +60s, send 20: 10",
    ])
    .await;
}

#[tokio::test]
async fn with_other_buckets_earlier_charges_count_in_the_current_ones() {
    for (old, new) in [(1, 10), (10, 1), (3, 7)] {
        let [old, new] = [old, new].map(|buckets| format!("sliding{buckets} 10/21s"));
        // None is lost, in any order of requests.
        let turns = format!("{new}, send 3: 3, {old}, send 3: 1, {new}, send 3: 0");
        let script = format!("{old}, charge 6, {new}, left: 4, {turns}");
        play("gcra", &script).await;
    }
    play_each(&[
        "gcra | sliding10 10/min, charge 6, sliding20 10/min, send 20: 4",
        "gcra | sliding20 10/min, charge 6, sliding10 10/min, send 20: 4",
        // More buckets of the same width.
        "gcra | sliding10 10/10s, charge 10, sliding20 10/20s, wait: 20100ms, +20099ms, send 1: 0, +1ms, send 1: 1",
    ])
    .await;
}

#[tokio::test]
async fn under_another_strategy_counts_start_anew_and_the_old_key_expires() {
    let is_sliding = |strategy| matches!(strategy, StrategyKind::Sliding(_));
    for old in StrategyKind::ALL {
        for new in StrategyKind::ALL {
            if old == new || is_sliding(old) && is_sliding(new) {
                continue;
            }
            let [old, new] = [old, new].map(|strategy| format!("{} 10/min", name(strategy)));
            // And back: nothing of it was touched.
            let there_and_back = format!("{old}, charge 10, {new}, send 20: 10, {old}, left: 0");
            let script = format!("{there_and_back}, +121s, keys: 0, left: 10");
            play("gcra", &script).await;
        }
    }
}

#[tokio::test]
async fn a_refund_goes_to_its_bucket_also_after_an_operation_with_another_width() {
    let strategies = [StrategyKind::Sliding(1), StrategyKind::Sliding(10)];
    each_of(&strategies, "10/min", async |old| {
        old.charge(1).await;
        let new = old.under("10/hour");
        let mut charged = charge(&old.limiter, old.key, 2).await;
        assert_eq!(new.left().await, 7);
        for _ in 0..2 {
            assert_eq!(refund(&mut charged, 1).await, 1);
            assert_eq!(new.left().await, 8);
            new.charge(1).await;
        }
    })
    .await;
}
