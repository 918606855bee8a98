//! A server whose clock steps locks no key out for long, and gives none more than a burst.

use testkit::Clock;
use tollgate_tests::prelude::*;

use crate::store::support::*;

const HOUR: Duration = Duration::from_secs(3_600);
const PERIOD: Duration = Duration::from_secs(60);
const BURST: u64 = 10;

struct Scene {
    strategy: StrategyKind,
    clock: Clock,
    server: Server,
    limiter: Limiter,
}

impl Scene {
    fn of(strategy: StrategyKind) -> Self {
        let (clock, server) = on_a_clock();
        let limiter = single(&server, strategy, "10/min");
        Self {
            strategy,
            clock,
            server,
            limiter,
        }
    }

    /// Sends requests until one is rejected; returns how many were admitted, and the wait of the rejected one.
    async fn exhaust(&self) -> (u64, Duration) {
        for admitted in 0.. {
            let decision = self.limiter.check(Key::new("key")).await;
            if !admitted_by_store(&decision) {
                let RetryAfter::In(wait) = decision.retry_after() else {
                    panic!("{decision:?}");
                };
                return (admitted, wait);
            }
            assert!(admitted <= 2 * BURST, "{:?} has no end", self.strategy);
        }
        unreachable!()
    }

    /// The wait is exact, to the microsecond.
    async fn wait_out(&self, wait: Duration) {
        self.clock.advance(wait - Duration::from_micros(1));
        assert!(
            !admitted_by_store(&self.limiter.check(Key::new("key")).await),
            "{:?}",
            self.strategy
        );
        self.clock.advance(Duration::from_micros(1));
        assert!(
            admitted_by_store(&self.limiter.check(Key::new("key")).await),
            "{:?}",
            self.strategy
        );
    }

    /// The longest wait for one unit there ever is.
    fn longest(&self) -> Duration {
        match self.strategy.counting() {
            // Windows end on whole milliseconds.
            Counting::OpenedWindows => PERIOD + Duration::from_millis(1),
            // After a step back over the end of a window, the next one stays the current one until it ends.
            Counting::CalendarWindows => 2 * PERIOD,
            // Out of a full bucket, the first unit slides in the next one.
            Counting::Buckets(1) => PERIOD + PERIOD / BURST as u32,
            _ => PERIOD,
        }
    }

    /// A key that is idle for as long as the strategy keeps its state has its full quota again.
    async fn is_as_new_after_a_period(&self) {
        let remembers = match self.strategy {
            StrategyKind::Sliding(1) => 2,
            _ => 1,
        };
        self.clock.advance(self.longest() * remembers);
        assert_eq!(
            used(&self.limiter, Key::new("key")).await,
            [0],
            "{:?}",
            self.strategy
        );
        assert_eq!(self.exhaust().await.0, BURST, "{:?}", self.strategy);
        assert_eq!(self.server.immortal_keys(), [""; 0]);
    }
}

#[tokio::test]
async fn a_step_back_of_an_hour_locks_no_key_out_for_longer_than_a_period() {
    for strategy in EACH {
        let scene = Scene::of(strategy);
        assert_eq!(scene.exhaust().await.0, BURST);
        scene.clock.rewind(HOUR);
        let (admitted, wait) = scene.exhaust().await;
        assert_eq!(admitted, 0, "{strategy:?}");
        assert!(wait <= scene.longest(), "{strategy:?}: {wait:?}");
        scene.wait_out(wait).await;
        scene.is_as_new_after_a_period().await;
    }
}

#[tokio::test]
async fn a_step_forward_of_an_hour_gives_one_burst_and_no_more() {
    for strategy in EACH {
        let scene = Scene::of(strategy);
        assert_eq!(scene.exhaust().await.0, BURST);
        scene.clock.advance(HOUR);
        let (admitted, wait) = scene.exhaust().await;
        assert_eq!(admitted, BURST, "{strategy:?}");
        assert!(wait <= scene.longest(), "{strategy:?}: {wait:?}");
        scene.wait_out(wait).await;
        scene.is_as_new_after_a_period().await;
    }
}

#[tokio::test]
async fn steps_forward_and_back_give_one_burst_each_time_the_clock_runs_ahead() {
    for strategy in EACH {
        let scene = Scene::of(strategy);
        assert_eq!(scene.exhaust().await.0, BURST);
        scene.clock.advance(HOUR);
        assert_eq!(scene.exhaust().await.0, BURST, "{strategy:?}");
        scene.clock.rewind(HOUR);
        let (admitted, wait) = scene.exhaust().await;
        assert_eq!(admitted, 0, "{strategy:?}");
        assert!(wait <= scene.longest(), "{strategy:?}: {wait:?}");
        // Not a second time by the same hour: what was charged there is still counted.
        scene.clock.advance(HOUR);
        let (admitted, _) = scene.exhaust().await;
        assert!(admitted <= BURST, "{strategy:?}: {admitted}");
        scene.clock.rewind(HOUR);
        let (admitted, wait) = scene.exhaust().await;
        assert_eq!(admitted, 0, "{strategy:?}");
        scene.wait_out(wait).await;
        scene.is_as_new_after_a_period().await;
    }
}

/// What is left of the quota is used after the step, on top of what was charged before it.
#[tokio::test]
async fn charges_before_a_step_back_expire_after_a_period_despite_later_requests() {
    for strategy in EACH {
        let scene = Scene::of(strategy);
        let key = || Key::new("key");
        assert!(admitted_by_store(&scene.limiter.check(key()).cost(4).await));
        scene.clock.rewind(HOUR);
        // GCRA and the bucket take a step of that size for a full bucket; a debt is charged to all alike.
        assert!(admitted_by_store(
            &scene.limiter.charge(key(), 1).await.expect("a response")
        ));
        scene.clock.advance(Duration::from_secs(1));
        used(&scene.limiter, key()).await;
        scene.clock.advance(scene.longest() * 2);
        assert_eq!(used(&scene.limiter, key()).await, [0], "{strategy:?}");
        assert_eq!(scene.exhaust().await.0, BURST, "{strategy:?}");
    }
}

/// Steps of every size; those about as long as a period are the hard ones.
#[tokio::test]
async fn the_wait_after_a_step_back_of_any_size_is_exact() {
    for strategy in EACH {
        let scene = Scene::of(strategy);
        for seconds in [1, 5, 6, 7, 30, 59, 60, 61, 90, 119, 120, 121, 600] {
            let step = Duration::from_secs(seconds);
            scene.clock.set(START);
            scene.server.flush();
            assert_eq!(scene.exhaust().await.0, BURST);
            scene.clock.rewind(step);
            let (admitted, wait) = scene.exhaust().await;
            assert_eq!(admitted, 0, "{strategy:?} by {step:?}");
            // A step that could be a debt is treated as one: GCRA then waits for it, and for its next unit.
            let most = match strategy {
                StrategyKind::Gcra => PERIOD + PERIOD / BURST as u32,
                _ => scene.longest(),
            };
            assert!(wait <= most, "{strategy:?} by {step:?}: {wait:?}");
            scene.wait_out(wait).await;
        }
    }
}

/// The step comes while there are no requests, so that the first one finds it.
#[tokio::test]
async fn a_peek_after_a_step_back_reports_like_a_check() {
    for strategy in EACH {
        let scene = Scene::of(strategy);
        assert_eq!(scene.exhaust().await.0, BURST);
        scene.clock.rewind(HOUR);
        let seen = scene
            .limiter
            .peek(Key::new("key"))
            .await
            .expect("a response");
        let (_, wait) = scene.exhaust().await;
        assert_eq!(seen.retry_after(), RetryAfter::In(wait), "{strategy:?}");
        scene.wait_out(wait).await;
    }
}
