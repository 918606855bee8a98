//! A store's clock that steps an hour back and forth: no key is rejected for longer than a period (of a calendar
//! window, a period and the step), none is admitted more than one extra burst, and each wait is exact.

use tollgate::{
    CalendarWindow, FixedWindow, Gcra, Key, Limiter, ListWindow, Policy, RetryAfter, SlidingLog,
    SlidingWindow, TokenBucket,
};

use crate::calendar::support::{HOUR, SECOND, World, check, exhaust};

const BURST: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StrategyKind {
    Gcra,
    Bucket,
    Window,
    Calendar,
    Berlin,
    List,
    Log,
    Sliding,
}

impl StrategyKind {
    const ALL: [Self; 8] = [
        Self::Gcra,
        Self::Bucket,
        Self::Window,
        Self::Calendar,
        Self::Berlin,
        Self::List,
        Self::Log,
        Self::Sliding,
    ];

    fn policy(self, quota: &str) -> Policy {
        let policy = Policy::new("p", quota.parse().expect(quota));
        match self {
            Self::Gcra => policy.strategy(Gcra),
            Self::Bucket => policy.strategy(TokenBucket),
            Self::Window => policy.strategy(FixedWindow),
            Self::Calendar => policy.strategy(CalendarWindow::utc()),
            Self::Berlin => policy.strategy(CalendarWindow::zone("Europe/Berlin")),
            Self::List => policy.strategy(ListWindow),
            Self::Log => policy.strategy(SlidingLog),
            Self::Sliding => policy.strategy(SlidingWindow::new()),
        }
    }
}

const QUOTAS: [(&str, i64); 3] = [
    ("10/min", 60 * SECOND),
    ("10/h", HOUR),
    ("10/day", 24 * HOUR),
];

/// 2027-03-28 22:30 UTC, half an hour after a day began in Berlin; neither on a second nor on a millisecond.
const LATE: i64 = 1_806_273_000 * SECOND + 123_457;
/// Half an hour after a day began in UTC.
const AFTER_MIDNIGHT: i64 = 1_806_280_200 * SECOND + 123_457;
/// Noon or so.
const NOON: i64 = 1_806_321_600 * SECOND + 123_457;

struct Scene<'a> {
    strategy: StrategyKind,
    world: &'a World,
    limiter: Limiter,
    key: Key,
    period: i64,
    case: String,
}

/// Every strategy, every quota that it can have, at every time of day, on both stores.
async fn each(play: impl AsyncFn(&Scene<'_>)) {
    for world in &World::both(NOON) {
        for (act, at) in [LATE, AFTER_MIDNIGHT, NOON].into_iter().enumerate() {
            for strategy in StrategyKind::ALL {
                for (quota, period) in QUOTAS {
                    // A zone has days, and no shorter windows.
                    if strategy == StrategyKind::Berlin && period < 24 * HOUR {
                        continue;
                    }
                    world.set(at);
                    let scene = Scene {
                        strategy,
                        world,
                        limiter: world.limiter([strategy.policy(quota)]),
                        key: Key::new(format!("{act}-{quota}-{strategy:?}")),
                        period,
                        case: format!("{strategy:?} {quota} {} at {}", world.name(), at / SECOND),
                    };
                    play(&scene).await;
                }
            }
        }
    }
}

impl Scene<'_> {
    /// Sends requests until one is rejected; returns how many were admitted, and the wait of the rejected one.
    async fn exhaust(&self) -> (u64, i64) {
        let (admitted, wait) = exhaust(&self.limiter, self.key, 2 * BURST).await;
        assert!(wait <= self.longest(), "{}: a wait of {wait} µs", self.case);
        (admitted, wait)
    }

    /// The longest wait for one unit there may be.
    fn longest(&self) -> i64 {
        match self.strategy {
            // Windows end on whole milliseconds.
            StrategyKind::Window | StrategyKind::List => self.period + 1_000,
            // A step that could be a debt is treated as one, and its next unit is one emission interval away; in a full
            // bucket the first unit refills in the next one.
            StrategyKind::Gcra | StrategyKind::Sliding => self.period + self.period / BURST as i64,
            // After a step back over the end of a window, the next one stays the current one until it ends.
            StrategyKind::Calendar => self.period + HOUR.min(self.period),
            // A day may have 25 hours.
            StrategyKind::Berlin => self.period + 2 * HOUR,
            _ => self.period,
        }
    }

    /// The wait is exact, to the microsecond.
    async fn wait_out(&self) {
        let (admitted, wait) = self.exhaust().await;
        assert_eq!(admitted, 0, "{}: it was used up", self.case);
        self.world.step(wait - 1);
        assert!(
            !check(&self.limiter, self.key).await,
            "{}: too early",
            self.case
        );
        self.world.step(1);
        assert!(
            check(&self.limiter, self.key).await,
            "{}: too late",
            self.case
        );
        self.world.holds_nothing_immortal();
    }

    /// What an hour that passes gives, whether it passes by a step or not.
    fn of_an_hour(&self) -> u64 {
        match self.strategy {
            // They count from the first request on.
            StrategyKind::Window | StrategyKind::List if self.period > HOUR => 0,
            // Those of the calendar were in this very window before.
            StrategyKind::Calendar | StrategyKind::Berlin => 0,
            _ => (BURST as i64 * HOUR / self.period).min(BURST as i64) as u64,
        }
    }
}

#[tokio::test]
async fn a_step_back_gives_nothing_and_the_step_forward_again_one_extra_burst_at_most() {
    each(async |scene| {
        assert_eq!(scene.exhaust().await.0, BURST, "{}", scene.case);
        scene.world.step(-HOUR);
        let (back, _) = scene.exhaust().await;
        assert_eq!(back, 0, "{}", scene.case);
        scene.world.step(HOUR);
        let (forth, _) = scene.exhaust().await;
        let extra = forth.saturating_sub(scene.of_an_hour());
        assert!(extra <= BURST, "{}: {forth}", scene.case);
        if !matches!(
            scene.strategy,
            StrategyKind::Calendar | StrategyKind::Berlin
        ) {
            assert_eq!(extra, 0, "{}: {forth}", scene.case);
        }
        scene.wait_out().await;
    })
    .await;
}

#[tokio::test]
async fn a_step_forward_gives_one_burst_at_most_and_the_step_back_nothing() {
    each(async |scene| {
        assert_eq!(scene.exhaust().await.0, BURST, "{}", scene.case);
        scene.world.step(HOUR);
        // The time has come for it, by the only clock there is.
        let (forth, _) = scene.exhaust().await;
        assert!(forth <= BURST, "{}: {forth}", scene.case);
        scene.world.step(-HOUR);
        let (back, _) = scene.exhaust().await;
        assert_eq!(back, 0, "{}", scene.case);
        scene.wait_out().await;
    })
    .await;
}

/// What was left before the step is left after it, and no more.
#[tokio::test]
async fn a_partly_used_quota_has_its_rest_after_a_step_back() {
    each(async |scene| {
        for _ in 0..4 {
            assert!(check(&scene.limiter, scene.key).await, "{}", scene.case);
        }
        scene.world.step(-HOUR);
        let (rest, _) = scene.exhaust().await;
        assert!(rest <= BURST - 4, "{}: {rest}", scene.case);
        scene.wait_out().await;
    })
    .await;
}

/// The wait from before the step is over by the new clock, or the wait that is returned then is no longer than the longest.
#[tokio::test]
async fn no_wait_after_a_step_is_longer_than_the_longest_without_one() {
    each(async |scene| {
        assert_eq!(scene.exhaust().await.0, BURST, "{}", scene.case);
        scene.world.step(-HOUR);
        let (_, wait) = scene.exhaust().await;
        let (_, again) = scene.exhaust().await;
        assert_eq!(again, wait, "{}: the same wait twice", scene.case);
        scene.world.step(wait);
        assert!(check(&scene.limiter, scene.key).await, "{}", scene.case);
        // A period later no state is left (a sliding window keeps two periods).
        scene.world.step(2 * scene.longest());
        assert_eq!(scene.exhaust().await.0, BURST, "{}", scene.case);
    })
    .await;
}

/// A peek finds the step as a check does.
#[tokio::test]
async fn a_peek_after_a_step_back_returns_the_wait_of_a_request() {
    each(async |scene| {
        assert_eq!(scene.exhaust().await.0, BURST, "{}", scene.case);
        scene.world.step(-HOUR);
        let seen = scene.limiter.peek(scene.key).await.expect("a response");
        let (admitted, wait) = scene.exhaust().await;
        match seen.retry_after() {
            RetryAfter::Now => assert!(admitted > 0, "{}: {seen:?}", scene.case),
            RetryAfter::In(after) => {
                assert_eq!(
                    (admitted, after.as_micros() as i64),
                    (0, wait),
                    "{}",
                    scene.case
                );
            }
            RetryAfter::Unknown | RetryAfter::Never => panic!("{}: {seen:?}", scene.case),
        }
    })
    .await;
}
