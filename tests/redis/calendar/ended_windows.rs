//! A window that has ended doesn't open again, wherever the clock steps.

use tollgate::{CalendarWindow, Key, Policy, Weekday};

use crate::calendar::support::{HOUR, SECOND, World, check, exhaust};

const QUOTA: u64 = 10;
const DAY: i64 = 24 * HOUR;

/// A policy, and an instant at which one of its windows ends.
fn windows() -> Vec<(Policy, i64)> {
    let policy = |quota: &str| Policy::new("p", quota.parse().expect(quota));
    let utc = CalendarWindow::utc;
    vec![
        // 2026-09-01 00:00 UTC, a Tuesday
        (policy("10/s").strategy(utc()), 1_788_220_800),
        (policy("10/min").strategy(utc()), 1_788_220_800),
        (policy("10/h").strategy(utc()), 1_788_220_800),
        (policy("10/day").strategy(utc()), 1_788_220_800),
        (
            policy("10/week").strategy(utc().week_starts_on(Weekday::Tuesday)),
            1_788_220_800,
        ),
        (policy("10/month").strategy(utc()), 1_788_220_800),
        // 2027-03-28 00:00 +01:00, before a day of 23 hours
        (
            policy("10/day").strategy(CalendarWindow::zone("Europe/Berlin")),
            1_806_188_400,
        ),
        // 2026-11-02 00:00 -05:00, after a day of 25 hours
        (
            policy("10/day").strategy(CalendarWindow::zone("America/New_York")),
            1_793_595_600,
        ),
    ]
}

/// Sends at most `max` requests until one is rejected; returns how many were admitted.
async fn up_to(limiter: &tollgate::Limiter, key: Key, max: u64) -> u64 {
    for admitted in 0..max {
        if !check(limiter, key).await {
            return admitted;
        }
    }
    max
}

#[tokio::test]
async fn a_used_up_window_stays_used_up_after_a_step_back_over_its_end() {
    let step = SECOND / 2;
    for (policy, ends) in windows() {
        for world in World::both(ends * SECOND - step) {
            for used_after in [0, 4, QUOTA] {
                let case = format!("{policy:?} {} {used_after}", world.name());
                world.set(ends * SECOND - step);
                let limiter = world.limiter([policy.clone()]);
                let key = Key::new(format!("used-{used_after}"));
                assert_eq!(exhaust(&limiter, key, QUOTA).await.0, QUOTA, "{case}");
                world.step(2 * step - 1);
                assert!(
                    limiter.peek(key).await.expect("a response").would_admit(),
                    "{case}"
                );
                assert_eq!(up_to(&limiter, key, used_after).await, used_after);

                world.step(1 - 2 * step);
                // What the next window holds is all there is, and of a next window that was not used nothing.
                let rest = if used_after > 0 {
                    QUOTA - used_after
                } else {
                    0
                };
                let (admitted, wait) = exhaust(&limiter, key, QUOTA).await;
                assert_eq!(admitted, rest, "{case}");
                // The wait is exact: to the end of the next window, if that is used up.
                world.step(wait - 1);
                assert!(!check(&limiter, key).await, "{case}: early");
                world.step(1);
                assert!(check(&limiter, key).await, "{case}: late");
                world.holds_nothing_immortal();
            }
        }
    }
}

#[tokio::test]
async fn a_clock_that_steps_back_and_forth_over_the_end_gives_two_windows_and_no_more() {
    for (policy, ends) in windows() {
        for world in World::both(ends * SECOND) {
            for step in [SECOND / 2, 1_000] {
                let limiter = world.limiter([policy.clone()]);
                let key = Key::new(format!("step-{step}"));
                let mut admitted = 0;
                for _ in 0..12 {
                    world.set(ends * SECOND - step);
                    admitted += up_to(&limiter, key, 3).await;
                    world.set(ends * SECOND + step / 2);
                    admitted += up_to(&limiter, key, 3).await;
                }
                let case = format!("{policy:?} {} {step}", world.name());
                assert!(admitted <= 2 * QUOTA, "{case}: {admitted}");
                assert!(admitted >= QUOTA, "{case}: {admitted}");
            }
        }
    }
}

#[tokio::test]
async fn a_charge_after_a_step_back_is_refunded_into_the_window_that_was_charged() {
    for (policy, ends) in windows() {
        for world in World::both(ends * SECOND - 1_000) {
            let case = format!("{policy:?} {}", world.name());
            let (limiter, key) = (world.limiter([policy.clone()]), Key::new("key"));
            let mut before = limiter.check(key).cost(6).await;
            world.step(1_000);
            assert!(check(&limiter, key).await, "{case}");
            world.step(-1_000);
            // The window of the first charge is over.
            let _ = before.refund(6).await.expect("a response");
            let mut next = limiter.check(key).cost(9).await;
            assert!(next.is_admitted(), "{case}");
            assert!(!check(&limiter, key).await, "{case}");
            world.step(1_000);
            let _ = next.refund(9).await.expect("a response");
            assert_eq!(exhaust(&limiter, key, QUOTA).await.0, 9, "{case}");
        }
    }
}

#[tokio::test]
async fn a_step_back_by_several_windows_rejects_for_no_longer_than_one() {
    for (policy, ends) in windows() {
        let period = policy.quota().period().as_micros() as i64;
        if period > DAY {
            continue;
        }
        for world in World::both(ends * SECOND) {
            let case = format!("{policy:?} {}", world.name());
            let (limiter, key) = (world.limiter([policy.clone()]), Key::new("key"));
            assert_eq!(exhaust(&limiter, key, QUOTA).await.0, QUOTA, "{case}");
            world.step(-5 * period - SECOND / 4);
            let (admitted, wait) = exhaust(&limiter, key, QUOTA).await;
            assert_eq!(admitted, 0, "{case}");
            // A day may have 25 hours.
            assert!(wait <= period + HOUR, "{case}: {wait}");
            world.step(wait);
            assert!(check(&limiter, key).await, "{case}");
        }
    }
}
