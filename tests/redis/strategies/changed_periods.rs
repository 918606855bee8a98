//! A quota of another period, or another strategy, takes over.

use crate::strategies::charges::charge;
use crate::strategies::{
    changed_policies::{Change, EVEN, NOW, for_all},
    support::{StrategyKind, World, admitted_by_store, left, ms, secs, send},
};

#[tokio::test]
async fn with_a_longer_period_an_even_rate_keeps_the_time_that_was_used() {
    for_all(&EVEN, 6, "10/min", "10/h", async |world, _, change| {
        // 36 seconds are a tenth of what a unit now takes.
        change.assert_left(9).await;
        world.advance(secs(36));
        change.assert_left(10).await;
    })
    .await;
}

#[tokio::test]
async fn with_a_longer_period_an_open_window_ends_when_it_would_have() {
    for_all(
        &[StrategyKind::Fixed, StrategyKind::List],
        6,
        "10/min",
        "10/h",
        async |world, _, change| {
            change.assert_admits(4, 20).await;
            change.assert_wait(secs(60)).await;
            world.advance(secs(60));
            change.assert_admits(10, 20).await;
            change.assert_wait(secs(3_600)).await;
        },
    )
    .await;
}

#[tokio::test]
async fn with_a_longer_period_all_stored_charges_count_in_it() {
    let sliding = [
        StrategyKind::Calendar,
        StrategyKind::Log,
        StrategyKind::Sliding(1),
        StrategyKind::Sliding(10),
    ];
    for_all(
        &sliding,
        10,
        "10/min",
        "10/h",
        async |world, strategy, change| {
            let expected = match strategy {
                StrategyKind::Log => secs(3_600),
                StrategyKind::Calendar => secs(3_590),
                StrategyKind::Sliding(1) => secs(3_590 + 360),
                _ => secs(3_590 + 36),
            };
            change.assert_wait(expected).await;
            // Also when its own time to live, of the shorter period, would have passed.
            for step in [1, 60, 120] {
                world.advance(secs(step));
                change.assert_admits(0, 1).await;
            }
            world.set(NOW + expected.as_micros() as u64 - 1);
            change.assert_admits(0, 1).await;
            world.set(NOW + expected.as_micros() as u64);
            change.assert_admits(1, 1).await;
        },
    )
    .await;
}

// A shorter period.

#[tokio::test]
async fn with_a_shorter_period_an_even_rate_is_at_most_used_up() {
    for_all(&EVEN, 6, "10/h", "10/min", async |world, _, change| {
        change.assert_left(0).await;
        change.assert_admits(0, 1).await;
        change.assert_wait(secs(6)).await;
        world.advance(secs(60));
        change.assert_admits(10, 20).await;
    })
    .await;
}

#[tokio::test]
async fn with_a_shorter_period_an_open_window_ends_one_new_period_after_the_next_operation() {
    for_all(
        &[StrategyKind::Fixed, StrategyKind::List],
        10,
        "10/h",
        "10/min",
        async |world, _, change| {
            world.advance(secs(600));
            change.assert_admits(0, 1).await;
            change.assert_wait(secs(60)).await;
            world.advance(secs(59));
            change.assert_wait(secs(1)).await;
            world.advance(secs(1));
            change.assert_admits(10, 20).await;
        },
    )
    .await;
}

#[tokio::test]
async fn with_a_shorter_period_charges_within_it_count() {
    let sliding = [
        StrategyKind::Calendar,
        StrategyKind::Log,
        StrategyKind::Sliding(1),
        StrategyKind::Sliding(10),
    ];
    for_all(
        &sliding,
        10,
        "10/h",
        "10/min",
        async |world, strategy, change| {
            let expected = match strategy {
                StrategyKind::Log => secs(60),
                StrategyKind::Calendar => secs(50),
                StrategyKind::Sliding(1) => secs(50 + 6),
                _ => secs(56) + ms(600),
            };
            change.assert_admits(0, 1).await;
            change.assert_wait(expected).await;
            world.advance(expected);
            change.assert_admits(1, 1).await;
        },
    )
    .await;
    // What is older than the new period does not, where its age is stored.
    for_all(
        &[StrategyKind::Log],
        10,
        "10/h",
        "10/min",
        async |world, _, change| {
            world.advance(secs(60));
            change.assert_admits(10, 20).await;
        },
    )
    .await;
}

// Other buckets.

#[tokio::test]
async fn with_other_buckets_earlier_charges_count_in_the_current_ones() {
    for world in World::both() {
        for (old, new) in [(1, 10), (10, 1), (10, 20), (20, 10), (3, 7)] {
            let (old, new) = (
                (StrategyKind::Sliding(old), "10/min"),
                (StrategyKind::Sliding(new), "10/min"),
            );
            let quotas = (old.1.replace("min", "21s"), new.1.replace("min", "21s"));
            let strategies = ((old.0, &*quotas.0), (new.0, &*quotas.1));
            if (old.0, new.0) == (StrategyKind::Sliding(10), StrategyKind::Sliding(20))
                || (old.0, new.0) == (StrategyKind::Sliding(20), StrategyKind::Sliding(10))
            {
                let change = Change::after(&world, 6, old, new).await;
                change.assert_admits(4, 20).await;
                continue;
            }
            let change = Change::after(&world, 6, strategies.0, strategies.1).await;
            change.assert_left(4).await;
            // None is lost, in any order of requests.
            let mut all = 6;
            for limiter in [&change.new, &change.old, &change.new, &change.old] {
                all += send(limiter, change.key, 3).await;
            }
            assert_eq!(all, 10, "{strategies:?} on {}", world.name());
        }
        // More or fewer buckets of the same width.
        let change = Change::after(
            &world,
            10,
            (StrategyKind::Sliding(10), "10/10s"),
            (StrategyKind::Sliding(20), "10/20s"),
        )
        .await;
        change.assert_wait(ms(20_100)).await;
        world.advance(ms(20_099));
        change.assert_admits(0, 1).await;
        world.advance(ms(1));
        change.assert_admits(1, 1).await;
    }
}

// Another strategy.

#[tokio::test]
async fn under_another_strategy_counts_start_anew_and_the_old_key_expires() {
    for world in World::both() {
        for old in StrategyKind::ALL {
            for new in StrategyKind::ALL {
                if matches!(
                    (old, new),
                    (StrategyKind::Sliding(_), StrategyKind::Sliding(_))
                ) || old == new
                {
                    continue;
                }
                let change = Change::after(&world, 10, (old, "10/min"), (new, "10/min")).await;
                change.assert_admits(10, 20).await;
                // And back: nothing of it was touched.
                assert_eq!(left(&change.old, change.key).await, 0, "{new:?} to {old:?}");
                world.advance(secs(121));
                if let Some(server) = world.redis_server() {
                    assert_eq!(server.keys(), [""; 0], "{old:?} to {new:?}");
                }
                assert_eq!(
                    left(&change.old, change.key).await,
                    10,
                    "{old:?} on {}",
                    world.name()
                );
            }
        }
    }
}

// Whatever changes.

#[tokio::test]
async fn a_refund_goes_to_its_bucket_also_after_an_operation_with_another_width() {
    for world in World::both() {
        for buckets in [1, 10] {
            let strategy = StrategyKind::Sliding(buckets);
            let change =
                Change::after(&world, 1, (strategy, "10/min"), (strategy, "10/hour")).await;
            let mut charged = charge(&change.old, change.key, 2).await;
            change.assert_left(7).await;
            for _ in 0..2 {
                let refunds = charged.refund(1).await.expect("a refund");
                assert_eq!(refunds[0].units(), 1, "{strategy:?} on {}", world.name());
                change.assert_left(7 + 1).await;
                assert!(admitted_by_store(
                    &change.new.charge(change.key, 1).await.expect("a response")
                ));
            }
        }
    }
}
