//! Clocks that show any time from 1970 on, and step: none locks a caller out, and none lets more in than the quota.

use tollgate_tests::prelude::*;

use super::support::*;

const SECOND: u64 = 1_000_000;
const QUOTA: u64 = 10;

/// What a clock shows, in seconds since 1970. On Redis it can't stand at the very beginning.
const TIMES: [u64; 8] = [
    1,
    // a machine without a clock of its own, half a year after it was started
    15_000_000,
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
    // and back
    2,
];

/// From here on a number of microseconds is more than Lua can hold to the last.
const COARSE: u64 = 9_007_199_254;

/// Policies of every strategy, each with the longest wait for one unit.
fn policies() -> Vec<(Policy, Duration)> {
    let mut policies = Vec::new();
    let mut add = |policy: Policy, buckets: u32| {
        // A month of 31 days, a day of 25 hours, or the next bucket.
        let period = policy.quota().period();
        policies.push((policy, period + period / buckets.min(24) + ms(1)));
    };
    let quotas = ["10/s", "10/min", "10/h", "10/day", "10/month", "10/year"];
    for text in quotas {
        for strategy in StrategyKind::ALL {
            let buckets = match strategy.counting() {
                Counting::Buckets(buckets) => buckets,
                _ => u32::MAX,
            };
            add(strategy.policy("p", text), buckets);
        }
    }
    let windows = |text: &str, windows| Policy::new("p", quota(text)).strategy(windows);
    for text in &quotas[3..] {
        // The first windows of 1970 begin before it, east of Greenwich.
        for zone in ["Asia/Shanghai", "America/New_York"] {
            add(windows(text, CalendarWindow::zone(zone)), u32::MAX);
        }
        add(windows(text, CalendarWindow::from_epoch()), u32::MAX);
    }
    let half_an_hour = CalendarWindow::east_of_utc(secs(1_800));
    add(windows("10/3h", half_an_hour), u32::MAX);
    policies
}

/// Uses the quota up; returns how many were admitted, and the wait of a rejected request.
async fn exhaust(limiter: &Limiter, key: Key) -> (u64, Duration) {
    let admitted = limiter.check(key).times(2 * QUOTA).await.admitted();
    let decision = limiter.check(key).await;
    assert!(!admitted_by_store(&decision));
    let wait = decision.retry_after().duration();
    (admitted, wait.expect("a wait"))
}

#[tokio::test]
async fn every_strategy_counts_whatever_the_clock_shows() {
    for world in World::both() {
        for time in TIMES {
            for (policy, longest) in policies() {
                let _case = Case(format!("{policy:?} in {} at {time} s", world.name()));
                world.set(time * SECOND);
                let (limiter, key) = (world.limiter([policy]), fresh_key());
                let (admitted, wait) = exhaust(&limiter, key).await;
                assert!(admitted == QUOTA && wait <= longest, "{wait:?}");
                // The wait is exact to the microsecond.
                let grain = Duration::from_micros(if time < COARSE { 1 } else { 1_000 });
                world.advance(wait - grain);
                assert_eq!(send(&limiter, key, 1).await, 0, "early");
                world.advance(grain);
                assert_eq!(send(&limiter, key, 1).await, 1, "late");
                world.advance(2 * longest);
                assert_eq!(left(&limiter, key).await, QUOTA, "as new");
                world.no_key_is_immortal();
            }
        }
    }
}

/// Half an hour after a day began, neither on a second nor on a millisecond.
#[tokio::test]
async fn a_step_back_gives_nothing_and_the_step_forward_again_one_burst_at_most() {
    const HOUR: i64 = 3_600_000_000;
    for world in World::both() {
        for (policy, longest) in policies() {
            let _case = Case(format!("{policy:?} in {}", world.name()));
            world.set(1_806_280_200 * SECOND + 123_457);
            let (limiter, key) = (world.limiter([policy]), fresh_key());
            assert_eq!(exhaust(&limiter, key).await.0, QUOTA);
            let partly = fresh_key();
            assert_eq!(send(&limiter, partly, 4).await, 4);
            for (step, most) in [(-HOUR, 0), (HOUR, QUOTA)] {
                world.step(step);
                let (admitted, wait) = exhaust(&limiter, key).await;
                assert!(admitted <= most, "{admitted} after a step of {step}");
                // What was left is left, and no more.
                let rest = send(&limiter, partly, QUOTA).await;
                assert!(rest <= most.max(QUOTA - 4), "{rest} after a step of {step}");
                // A step that could be a debt is one, and its next unit one interval away; the next window of a calendar
                // stays the current one.
                let max_wait = longest + secs(3_600).min(longest) + longest / 10;
                assert!(wait <= max_wait, "{wait:?}");
            }
            let (_, wait) = exhaust(&limiter, key).await;
            world.advance(wait);
            assert_eq!(send(&limiter, key, 1).await, 1, "late");
        }
    }
}
