//! A store's clock that steps an hour back and forth: no key is rejected for longer than a period (of a calendar
//! window, a period and the step), none is admitted more than one extra burst, and each wait is exact.

use tollgate_tests::{prelude::*, scene::fresh_key};

use super::support::*;

const BURST: u64 = 10;

/// Each strategy, and the days of Berlin.
fn strategies() -> impl Iterator<Item = Option<StrategyKind>> {
    use StrategyKind::{Bucket, Calendar, Fixed, Gcra, List, Log, Sliding};
    let each = [Gcra, Bucket, Fixed, Calendar, List, Log, Sliding(1)];
    each.into_iter().map(Some).chain([None])
}

const QUOTAS: [(&str, u64); 3] = [
    ("10/min", 60 * SECOND),
    ("10/h", HOUR),
    ("10/day", 24 * HOUR),
];

/// 2027-03-28 22:30 UTC, half an hour after a day began in Berlin; neither on a second nor on a millisecond.
const LATE: u64 = 1_806_273_000 * SECOND + 123_457;
/// Half an hour after a day began in UTC.
const AFTER_MIDNIGHT: u64 = 1_806_280_200 * SECOND + 123_457;
/// Noon or so.
const NOON: u64 = 1_806_321_600 * SECOND + 123_457;

struct Scene<'a> {
    /// The days of Berlin if there is none.
    strategy: Option<StrategyKind>,
    world: &'a World,
    limiter: Limiter,
    key: Key,
    period: u64,
}

/// Every strategy, every quota that it can have, at every time of day, on both stores.
async fn each(play: impl AsyncFn(&Scene<'_>)) {
    for world in World::both() {
        for at in [LATE, AFTER_MIDNIGHT, NOON] {
            for strategy in strategies() {
                for (quota, period) in QUOTAS {
                    // A zone has days, and no shorter windows.
                    if strategy.is_none() && period < 24 * HOUR {
                        continue;
                    }
                    let _case = Case(format!("{strategy:?} {quota} at {}", at / SECOND));
                    world.set(at);
                    let berlin = CalendarWindow::zone("Europe/Berlin");
                    let policy = match strategy {
                        Some(strategy) => strategy.policy("p", quota),
                        None => Policy::new("p", stores::quota(quota)).strategy(berlin),
                    };
                    let scene = Scene {
                        strategy,
                        world: &world,
                        limiter: world.limiter([policy]),
                        key: fresh_key(),
                        period,
                    };
                    play(&scene).await;
                }
            }
        }
    }
}

impl Scene<'_> {
    /// Sends requests until one is rejected; returns how many were admitted, and the wait of the rejected one.
    async fn exhaust(&self) -> (u64, u64) {
        let (admitted, wait) = exhaust(&self.limiter, self.key, 2 * BURST).await;
        assert!(wait <= self.longest(), "a wait of {wait} µs");
        (admitted, wait)
    }

    async fn check(&self) -> bool {
        check(&self.limiter, self.key).await
    }

    fn is_calendar(&self) -> bool {
        matches!(self.strategy, Some(StrategyKind::Calendar) | None)
    }

    /// The longest wait for one unit there may be.
    fn longest(&self) -> u64 {
        if self.strategy == Some(StrategyKind::Bucket) {
            return self.period;
        }
        match self.strategy.map(StrategyKind::counting) {
            // Windows end on whole milliseconds.
            Some(Counting::OpenedWindows) => self.period + 1_000,
            // A step that could be a debt is treated as one, and its next unit is one emission interval away; in a full
            // bucket the first unit refills in the next one.
            Some(Counting::EvenRate | Counting::Buckets(_)) => self.period + self.period / BURST,
            // After a step back over the end of a window, the next one stays the current one until it ends.
            Some(Counting::CalendarWindows) => self.period + HOUR.min(self.period),
            Some(Counting::Log) => self.period,
            // A day may have 25 hours.
            None => self.period + 2 * HOUR,
        }
    }

    /// The wait is exact, to the microsecond.
    async fn wait_out(&self) {
        let (admitted, wait) = self.exhaust().await;
        assert_eq!(admitted, 0, "it was used up");
        self.world.set(self.world.now() + wait - 1);
        assert!(!self.check().await, "too early");
        self.world.step(1);
        assert!(self.check().await, "too late");
        self.world.no_key_is_immortal();
    }

    /// What an hour that passes gives, whether it passes by a step or not.
    fn of_an_hour(&self) -> u64 {
        match self.strategy.map(StrategyKind::counting) {
            // They count from the first request on.
            Some(Counting::OpenedWindows) if self.period > HOUR => 0,
            // Those of the calendar were in this very window before.
            _ if self.is_calendar() => 0,
            _ => (BURST * HOUR / self.period).min(BURST),
        }
    }
}

/// Back, if negative.
const STEP: i64 = HOUR as i64;

#[tokio::test]
async fn a_step_back_gives_nothing_and_the_step_forward_again_one_extra_burst_at_most() {
    each(async |scene| {
        assert_eq!(scene.exhaust().await.0, BURST);
        scene.world.step(-STEP);
        let (back, _) = scene.exhaust().await;
        assert_eq!(back, 0);
        scene.world.step(STEP);
        let (forth, _) = scene.exhaust().await;
        let extra = forth.saturating_sub(scene.of_an_hour());
        let most = if scene.is_calendar() { BURST } else { 0 };
        assert!(extra <= most, "{forth}");
        scene.wait_out().await;
    })
    .await;
}

#[tokio::test]
async fn a_step_forward_gives_one_burst_at_most_and_the_step_back_nothing() {
    each(async |scene| {
        assert_eq!(scene.exhaust().await.0, BURST);
        scene.world.step(STEP);
        // The time has come for it, by the only clock there is.
        let (forth, _) = scene.exhaust().await;
        assert!(forth <= BURST, "{forth}");
        scene.world.step(-STEP);
        let (back, _) = scene.exhaust().await;
        assert_eq!(back, 0);
        scene.wait_out().await;
    })
    .await;
}

/// What was left before the step is left after it, and no more.
#[tokio::test]
async fn a_partly_used_quota_has_its_rest_after_a_step_back() {
    each(async |scene| {
        for _ in 0..4 {
            assert!(scene.check().await);
        }
        scene.world.step(-STEP);
        let (rest, _) = scene.exhaust().await;
        assert!(rest <= BURST - 4, "{rest}");
        scene.wait_out().await;
    })
    .await;
}

/// The wait from before the step is over by the new clock, or the wait that is returned then, also by a peek, is no longer than
/// the longest.
#[tokio::test]
async fn no_wait_after_a_step_is_longer_than_the_longest_without_one() {
    each(async |scene| {
        assert_eq!(scene.exhaust().await.0, BURST);
        scene.world.step(-STEP);
        let peeked = scene.limiter.peek(scene.key).await.expect("a response");
        let (_, wait) = scene.exhaust().await;
        let expected = RetryAfter::In(Duration::from_micros(wait));
        assert_eq!(peeked.retry_after(), expected);
        let (_, again) = scene.exhaust().await;
        assert_eq!(again, wait, "the same wait twice");
        scene.world.set(scene.world.now() + wait);
        assert!(scene.check().await);
        // A period later no state is left (a sliding window keeps two periods).
        scene.world.set(scene.world.now() + 2 * scene.longest());
        assert_eq!(scene.exhaust().await.0, BURST);
    })
    .await;
}
