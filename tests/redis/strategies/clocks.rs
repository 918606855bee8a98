//! Clocks that show any time from 1970 on: none locks a caller out, and none lets more in than the quota.

use tollgate_tests::prelude::*;

use super::support::*;

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
async fn at_each_time(play: impl AsyncFn(&World)) {
    for world in World::both() {
        for time in TIMES.into_iter().chain(TIMES.into_iter().rev()) {
            let _case = Case(format!("{} at {time} s", world.name()));
            // The server's clock can't stand at the very beginning.
            let earliest = u64::from(world.redis_server().is_some());
            world.set((time * SECOND).max(earliest));
            play(&world).await;
        }
    }
}

/// Uses the quota up; returns the wait of a rejected request.
async fn exhaust(limiter: &Limiter, key: Key) -> Duration {
    let admitted = limiter.check(key).times(2 * QUOTA).await.admitted();
    assert_eq!(admitted, QUOTA);
    let decision = limiter.check(key).await;
    assert!(!admitted_by_store(&decision));
    let RetryAfter::In(wait) = decision.retry_after() else {
        panic!("{decision:?}");
    };
    wait
}

/// Whether a policy counts by a strategy as it does at any other time.
async fn counts(world: &World, strategy: StrategyKind, policy: Policy) {
    let (start, period) = (world.now(), policy.quota().period());
    let _case = Case(format!("{strategy:?} {period:?}"));
    let (limiter, key) = (world.limiter([policy]), fresh_key());
    let wait = exhaust(&limiter, key).await;
    // A window ends on a whole millisecond; out of a full bucket the first unit slides in the next one.
    let max_wait = match strategy.counting() {
        Counting::Buckets(buckets) => period + period / buckets,
        // a month of 31 days, a day of 25 hours
        _ => period + period / 24 + ms(1),
    };
    assert!(wait <= max_wait, "{wait:?}");
    // The wait is exact to the microsecond.
    let grain = Duration::from_micros(match start / SECOND {
        COARSE.. => 1_000,
        _ => 1,
    });
    world.advance(wait - grain);
    assert_eq!(send(&limiter, key, 1).await, 0, "early");
    world.advance(grain);
    assert_eq!(send(&limiter, key, 1).await, 1, "late");
    world.advance(2 * max_wait);
    assert_eq!(left(&limiter, key).await, QUOTA, "as new");
    exhaust(&limiter, key).await;
    world.no_key_is_immortal();
    world.set(start);
}

#[tokio::test]
async fn every_strategy_counts_whatever_the_clock_shows() {
    at_each_time(async |world| {
        for strategy in StrategyKind::ALL {
            for quota in ["10/s", "10/min", "10/h", "10/day", "10/month", "10/year"] {
                counts(world, strategy, strategy.policy("p", quota)).await;
            }
        }
    })
    .await;
}

/// The first windows of 1970 begin before it, east of Greenwich.
#[tokio::test]
async fn calendar_windows_of_any_zone_are_counted_whatever_the_clock_shows() {
    let of = |windows: CalendarWindow, quotas: &[&str]| {
        let quotas = quotas.iter().map(|quota| quota.parse().expect(quota));
        let policies = quotas.map(|quota: Quota| Policy::new("p", quota).strategy(windows.clone()));
        policies.collect::<Vec<_>>()
    };
    let long = ["10/day", "10/week", "10/month", "10/year"];
    let policies = [
        of(CalendarWindow::zone("Asia/Shanghai"), &long),
        of(CalendarWindow::zone("America/New_York"), &long),
        of(CalendarWindow::east_of_utc(secs(19_800)), &long),
        of(CalendarWindow::west_of_utc(secs(3_600)), &long),
        of(CalendarWindow::east_of_utc(secs(1_800)), &["10/h", "10/3h"]),
        of(CalendarWindow::from_epoch(), &long),
    ];
    at_each_time(async |world| {
        for policy in policies.iter().flatten() {
            counts(world, StrategyKind::Calendar, policy.clone()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn permits_are_counted_and_expire_whatever_the_clock_shows() {
    at_each_time(async |world| {
        // So long that no heartbeat, which comes by this machine's clock, renews them.
        let permits = Concurrency::with_ttl(secs(3_600));
        let permits = Policy::new("places", Quota::concurrent(3)).strategy(permits);
        let (start, limiter, key) = (world.now(), world.limiter([permits]), fresh_key());
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(limiter.check(key).await);
        }
        assert!(held.iter().all(admitted_by_store));
        assert_eq!(send(&limiter, key, 1).await, 0);
        world.advance(secs(3_601));
        assert_eq!(left(&limiter, key).await, 3);
        drop(held);
        world.set(start);
    })
    .await;
}

#[tokio::test]
async fn bans_begin_and_end_whatever_the_clock_shows() {
    at_each_time(async |world| {
        let ban = Policy::new("ban", Quota::requests(2).per_minute());
        let ban = ban.strategy(Ban::for_duration(secs(600)));
        let limiter = world.limiter([StrategyKind::Fixed.policy("p", "1/s"), ban]);
        let (start, key) = (world.now(), fresh_key());
        assert_eq!(send(&limiter, key, 3).await, 1);
        let banned = limiter.check(key).await;
        assert!(!admitted_by_store(&banned));
        assert_eq!(banned.retry_after(), RetryAfter::In(secs(600)));
        world.advance(secs(599));
        assert_eq!(send(&limiter, key, 1).await, 0);
        world.advance(secs(1));
        assert_eq!(send(&limiter, key, 1).await, 1);
        world.set(start);
    })
    .await;
}
