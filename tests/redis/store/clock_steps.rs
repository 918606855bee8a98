//! A server whose clock steps back: what was charged before expires, and waits are exact, whatever the step. What steps of an hour
//! do on both stores is tested by `calendar::clock_steps`.

use testkit::Clock;
use tollgate_tests::prelude::*;

use crate::store::support::*;

const HOUR: Duration = secs(3_600);
const PERIOD: Duration = secs(60);
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
        for admitted in 0..=2 * BURST {
            let decision = self.limiter.check("key").await;
            if !admitted_by_store(&decision) {
                return (admitted, decision.retry_after().duration().expect("a wait"));
            }
        }
        panic!("{:?} has no end", self.strategy);
    }

    async fn admits(&self) -> bool {
        admitted_by_store(&self.limiter.check("key").await)
    }

    /// The wait is exact, to the microsecond.
    async fn wait_out(&self, wait: Duration) {
        self.clock.advance(wait - Duration::from_micros(1));
        assert!(!self.admits().await, "{:?}", self.strategy);
        self.clock.advance(Duration::from_micros(1));
        assert!(self.admits().await, "{:?}", self.strategy);
    }

    /// The longest wait for one unit there ever is.
    fn longest(&self) -> Duration {
        match self.strategy.counting() {
            // Windows end on whole milliseconds.
            Counting::OpenedWindows => PERIOD + ms(1),
            // After a step back over the end of a window, the next one stays the current one until it ends.
            Counting::CalendarWindows => 2 * PERIOD,
            // Out of a full bucket, the first unit slides in the next one.
            Counting::Buckets(1) => PERIOD + PERIOD / BURST as u32,
            _ => PERIOD,
        }
    }
}

/// What is left of the quota is used after the step, on top of what was charged before it.
#[tokio::test]
async fn charges_before_a_step_back_expire_after_a_period_despite_later_requests() {
    for strategy in EACH {
        let scene = Scene::of(strategy);
        let limiter = &scene.limiter;
        assert!(admitted_by_store(&limiter.check("key").cost(4).await));
        scene.clock.rewind(HOUR);
        // GCRA and the bucket take a step of that size for a full bucket; a debt is charged to all alike.
        assert!(admitted_by_store(&limiter.charge("key", 1).await));
        scene.clock.advance(secs(1));
        used(limiter, "key").await;
        scene.clock.advance(scene.longest() * 2);
        assert_eq!(used(limiter, "key").await, [0], "{strategy:?}");
        assert_eq!(scene.exhaust().await.0, BURST, "{strategy:?}");
    }
}

/// Steps of every size; those about as long as a period are the hard ones.
#[tokio::test]
async fn the_wait_after_a_step_back_of_any_size_is_exact() {
    for strategy in EACH {
        let scene = Scene::of(strategy);
        for seconds in [1, 5, 6, 7, 30, 59, 60, 61, 90, 119, 120, 121, 600] {
            let step = secs(seconds);
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
