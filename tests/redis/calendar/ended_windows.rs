//! A window that has ended doesn't open again, wherever the clock steps.

use tollgate_tests::{prelude::*, scene::fresh_key};

use super::support::*;

const QUOTA: u64 = 10;

/// A key of a calendar window, about to end.
struct Scene<'a> {
    world: &'a World,
    limiter: Limiter,
    key: Key,
    /// When one of its windows ends, in microseconds since 1970.
    ends: u64,
    period: u64,
}

/// Windows of each length, on both stores.
async fn each(play: impl AsyncFn(&Scene<'_>)) {
    let utc = CalendarWindow::utc;
    let zone = CalendarWindow::zone;
    // 2026-09-01 00:00 UTC, a Tuesday.
    let tuesday = 1_788_220_800;
    for world in worlds(tuesday * SECOND) {
        for (quota, windows, ends) in [
            ("10/s", utc(), tuesday),
            ("10/min", utc(), tuesday),
            ("10/h", utc(), tuesday),
            ("10/day", utc(), tuesday),
            ("10/week", utc().week_starts_on(Weekday::Tuesday), tuesday),
            ("10/month", utc(), tuesday),
            // 2027-03-28 00:00 +01:00, before a day of 23 hours
            ("10/day", zone("Europe/Berlin"), 1_806_188_400),
            // 2026-11-02 00:00 -05:00, after a day of 25 hours
            ("10/day", zone("America/New_York"), 1_793_595_600),
        ] {
            let _case = Case(format!("{quota}, {windows:?}"));
            let policy = Policy::new("p", quota.parse().expect(quota)).strategy(windows);
            let scene = Scene {
                world: &world,
                period: policy.quota().period().as_micros() as u64,
                limiter: world.limiter([policy]),
                key: fresh_key(),
                ends: ends * SECOND,
            };
            play(&scene).await;
        }
    }
}

impl Scene<'_> {
    async fn check(&self) -> bool {
        check(&self.limiter, self.key).await
    }

    async fn exhaust(&self) -> (u64, u64) {
        exhaust(&self.limiter, self.key, QUOTA).await
    }

    /// Sends at most `max` requests until one is rejected; returns how many were admitted.
    async fn up_to(&self, max: u64) -> u64 {
        for admitted in 0..max {
            if !self.check().await {
                return admitted;
            }
        }
        max
    }
}

#[tokio::test]
async fn a_used_up_window_stays_used_up_after_a_step_back_over_its_end() {
    let step = SECOND / 2;
    for used_after in [0, 4, QUOTA] {
        each(async |scene| {
            let _case = Case(format!("{used_after} used after"));
            let world = scene.world;
            world.set(scene.ends - step);
            assert_eq!(scene.exhaust().await.0, QUOTA);
            world.set(scene.ends + step - 1);
            let seen = scene.limiter.peek(scene.key).await.expect("a response");
            assert!(seen.would_admit());
            assert_eq!(scene.up_to(used_after).await, used_after);

            world.set(scene.ends - step);
            // What the next window holds is all there is, and of a next window that was not used nothing.
            let rest = (QUOTA - used_after) * u64::from(used_after > 0);
            let (admitted, wait) = scene.exhaust().await;
            assert_eq!(admitted, rest);
            // The wait is exact: to the end of the next window, if that is used up.
            world.set(world.now() + wait - 1);
            assert!(!scene.check().await, "early");
            world.step(1);
            assert!(scene.check().await, "late");
            world.no_key_is_immortal();
        })
        .await;
    }
}

#[tokio::test]
async fn a_clock_that_steps_back_and_forth_over_the_end_gives_two_windows_and_no_more() {
    for step in [SECOND / 2, 1_000] {
        each(async |scene| {
            let mut admitted = 0;
            for _ in 0..12 {
                scene.world.set(scene.ends - step);
                admitted += scene.up_to(3).await;
                scene.world.set(scene.ends + step / 2);
                admitted += scene.up_to(3).await;
            }
            let bounds = QUOTA..=2 * QUOTA;
            assert!(bounds.contains(&admitted), "{step}: {admitted}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_charge_after_a_step_back_is_refunded_into_the_window_that_was_charged() {
    each(async |scene| {
        let world = scene.world;
        world.set(scene.ends - 1_000);
        let mut before = scene.limiter.check(scene.key).cost(6).await;
        world.set(scene.ends);
        assert!(scene.check().await);
        world.set(scene.ends - 1_000);
        // The window of the first charge is over.
        let _ = before.refund(6).await.expect("a response");
        let mut next = scene.limiter.check(scene.key).cost(9).await;
        assert!(next.is_admitted());
        assert!(!scene.check().await);
        world.set(scene.ends);
        let _ = next.refund(9).await.expect("a response");
        assert_eq!(scene.exhaust().await.0, 9);
    })
    .await;
}

#[tokio::test]
async fn a_step_back_by_several_windows_rejects_for_no_longer_than_one() {
    each(async |scene| {
        if scene.period > DAY {
            return;
        }
        scene.world.set(scene.ends);
        assert_eq!(scene.exhaust().await.0, QUOTA);
        scene.world.set(scene.ends - 5 * scene.period - SECOND / 4);
        let (admitted, wait) = scene.exhaust().await;
        assert_eq!(admitted, 0);
        // A day may have 25 hours.
        assert!(wait <= scene.period + HOUR, "{wait}");
        scene.world.set(scene.world.now() + wait);
        assert!(scene.check().await);
    })
    .await;
}
