//! Clocks that show any time from 1970 on: none locks a caller out, and none lets more in than the quota.

use std::time::Duration;

use tollgate::{Ban, CalendarWindow, Concurrency, Key, Limiter, Policy, Quota, RetryAfter};

use crate::strategies::support::{
    KEY, StrategyKind, World, admitted_by_store, fresh_key, left, secs, send,
};

const SECOND: u64 = 1_000_000;
const QUOTA: u64 = 10;

/// What a clock shows, in seconds since 1970.
const TIMES: [u64; 9] = [
    0,
    1,
    // a machine without a clock of its own, half a year after it was started
    15_000_000,
    // in 2019
    1_560_000_000,
    // in 2020, a few seconds after it began
    1_577_836_805,
    // 20 s before a round of GCRA ends
    1_799_999_980,
    // in 2078
    3_420_000_000,
    // in 2106, when 32 bits of seconds are over
    4_294_967_290,
    // in 2262, when 63 bits of nanoseconds are over
    9_223_372_030,
];

/// From here on a number of microseconds is more than Lua can hold to the last.
const COARSE: u64 = 9_007_199_254;

/// Each time on both stores, from the earliest to the latest, and back to the earliest.
async fn at_each_time(play: impl AsyncFn(&World, u64, &str)) {
    for world in World::both() {
        for time in TIMES.into_iter().chain(TIMES.into_iter().rev()) {
            // The server's clock can't stand at the very beginning.
            let start = match world.redis_server() {
                None => time * SECOND,
                Some(_) => (time * SECOND).max(1),
            };
            world.set(start);
            play(&world, start, &format!("{} at {time} s", world.name())).await;
        }
    }
}

/// Sends requests until one is rejected; returns how many were admitted, and the wait of the rejected one.
async fn exhaust(limiter: &Limiter, key: Key, place: &str) -> (u64, Duration) {
    for admitted in 0..=2 * QUOTA {
        let decision = limiter.check(key).await;
        if !admitted_by_store(&decision) {
            let RetryAfter::In(wait) = decision.retry_after() else {
                panic!("{place}: {decision:?}");
            };
            return (admitted, wait);
        }
    }
    panic!("{place}: there is no end to it");
}

/// Whether a policy counts by a strategy as it does at any other time.
async fn counts(
    world: &World,
    start: u64,
    (strategy, policy): (StrategyKind, Policy),
    place: &str,
) {
    let period = policy.quota().period();
    let place = format!("{strategy:?} {period:?} {place}");
    let (limiter, key) = (world.limiter([policy]), fresh_key());
    let (admitted, wait) = exhaust(&limiter, key, &place).await;
    assert_eq!(admitted, QUOTA, "{place}");
    // A window ends on a whole millisecond; out of a full bucket the first unit slides in the next one.
    let max_wait = match strategy {
        StrategyKind::Sliding(buckets) => period + period / buckets,
        // a month of 31 days, a day of 25 hours
        _ => period + period / 24 + Duration::from_millis(1),
    };
    assert!(wait <= max_wait, "{place}: {wait:?}");
    // The wait is exact to the microsecond.
    let grain = Duration::from_micros(match start / SECOND {
        COARSE.. => 1_000,
        _ => 1,
    });
    world.advance(wait - grain);
    assert!(
        !admitted_by_store(&limiter.check(key).await),
        "{place}: early"
    );
    world.advance(grain);
    assert!(
        admitted_by_store(&limiter.check(key).await),
        "{place}: late"
    );
    world.advance(2 * max_wait);
    assert_eq!(left(&limiter, key).await, QUOTA, "{place}: as new");
    assert_eq!(exhaust(&limiter, key, &place).await.0, QUOTA, "{place}");
    if let Some(server) = world.redis_server() {
        assert_eq!(server.immortal_keys(), [""; 0], "{place}");
    }
    world.set(start);
}

#[tokio::test]
async fn every_strategy_counts_whatever_the_clock_shows() {
    at_each_time(async |world, start, place| {
        for strategy in StrategyKind::ALL {
            for quota in ["10/s", "10/min", "10/h", "10/day", "10/month"] {
                counts(world, start, (strategy, strategy.policy("p", quota)), place).await;
            }
        }
    })
    .await;
}

/// The first windows of 1970 begin before it, east of Greenwich.
#[tokio::test]
async fn calendar_windows_of_any_zone_are_counted_whatever_the_clock_shows() {
    at_each_time(async |world, start, place| {
        for windows in [
            CalendarWindow::zone("Asia/Shanghai"),
            CalendarWindow::zone("America/New_York"),
            CalendarWindow::east_of_utc(secs(5 * 3_600 + 1_800)),
            CalendarWindow::west_of_utc(secs(3_600)),
        ] {
            for quota in ["10/day", "10/week", "10/month"] {
                let quota = quota.parse().expect(quota);
                let policy = Policy::new("p", quota).strategy(windows.clone());
                counts(world, start, (StrategyKind::Calendar, policy), place).await;
            }
        }
        let windows = CalendarWindow::east_of_utc(secs(1_800));
        for quota in ["10/h", "10/3h"] {
            let quota = quota.parse().expect(quota);
            let policy = Policy::new("p", quota).strategy(windows.clone());
            counts(world, start, (StrategyKind::Calendar, policy), place).await;
        }
    })
    .await;
}

#[tokio::test]
async fn permits_are_counted_and_expire_whatever_the_clock_shows() {
    at_each_time(async |world, start, place| {
        let permit_limiter =
            Policy::new("places", Quota::concurrent(3)).strategy(Concurrency::new());
        let (limiter, key) = (world.limiter([permit_limiter]), fresh_key());
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(limiter.check(key).await);
            assert!(admitted_by_store(held.last().expect("one")), "{place}");
        }
        assert!(!admitted_by_store(&limiter.check(key).await), "{place}");
        // They are not renewed: the process is stalled.
        world.advance(secs(31));
        assert_eq!(left(&limiter, key).await, 3, "{place}");
        drop(held);
        world.set(start);
    })
    .await;
}

#[tokio::test]
async fn bans_begin_and_end_whatever_the_clock_shows() {
    at_each_time(async |world, start, place| {
        let ban = Policy::new("ban", Quota::requests(2).per_minute());
        let limiter = world.limiter([
            StrategyKind::Fixed.policy("p", "1/s"),
            ban.strategy(Ban::for_duration(secs(600))),
        ]);
        let key = fresh_key();
        assert_eq!(send(&limiter, key, 3).await, 1, "{place}");
        let banned = limiter.check(key).await;
        assert!(!admitted_by_store(&banned), "{place}");
        assert_eq!(banned.retry_after(), RetryAfter::In(secs(600)), "{place}");
        world.advance(secs(599));
        assert!(!admitted_by_store(&limiter.check(key).await), "{place}");
        world.advance(secs(1));
        assert!(admitted_by_store(&limiter.check(key).await), "{place}");
        world.set(start);
    })
    .await;
}

/// Even rates beside windows, over the instant at which a round of GCRA ends.
#[tokio::test]
async fn under_several_policies_a_clock_past_a_round_number_changes_nothing() {
    for world in World::both() {
        world.set(1_799_999_000 * SECOND);
        let limiter = world.limiter([
            StrategyKind::Gcra.policy("gcra", "60/min"),
            StrategyKind::Bucket.policy("bucket", "60/min"),
            StrategyKind::Fixed.policy("window", "600/10min"),
            StrategyKind::Sliding(10).policy("sliding", "600/10min"),
            StrategyKind::Calendar.policy("day", "100000/day"),
        ]);
        let mut admitted = 0;
        for _ in 0..2_000 {
            admitted += send(&limiter, KEY, 2).await;
            world.advance(secs(1));
        }
        let (least, most) = (1_900, 2_000 + 120);
        let name = world.name();
        assert!((least..=most).contains(&admitted), "{name}: {admitted}");
    }
}
