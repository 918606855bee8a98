//! Counts that are lost, by a reset of another process or a restart: what a process holds is spent beside the fresh quota within the
//! TTL, and nothing else is. What has ended is neither spent nor refunded.

use std::slice;

use crate::leases::support::*;

/// A process that holds units under a strategy, and another one that takes what the store has. No unit refills while a test runs.
struct Processes {
    strategy: StrategyKind,
    holder: Limiter,
    other: Limiter,
    /// The whole quota.
    limit: u64,
}

impl Processes {
    fn new(scene: &Scene, strategy: StrategyKind) -> Self {
        let [holder, other] = [0, 1].map(|_| {
            // A reply from a window that begins after the restart ends the leases of the one before: none is read while units are
            // spent.
            scene.single_here(strategy, "20000/month")
        });
        Self {
            strategy,
            limit: other.stats().policies[0].limit,
            holder,
            other,
        }
    }

    /// Takes all that the store has, by requests that no lease decides; returns how much that was.
    async fn take_all(&self) -> u64 {
        let mut taken = 0;
        loop {
            let seen = self.other.peek(KEY).await.expect("a response");
            let left = seen.left("p").max(1);
            let decision = self.other.check(KEY).cost(left).await;
            let (source, strategy) = (decision.source(), self.strategy);
            assert_eq!(source, DecisionSource::Store, "{strategy:?}");
            if !decision.is_admitted() {
                return taken;
            }
            taken += left;
        }
    }

    /// Sends more requests than units are held; returns how many were admitted by leases, and by the store. What is left is
    /// refunded.
    async fn spend(&self, scene: &Scene) -> (u64, u64) {
        let requests = held(&self.holder) + 40;
        let (admitted, by_lease) = send(&self.holder, requests).await;
        scene.shut_down(&self.holder).await;
        until_nothing_is_held(slice::from_ref(&self.holder)).await;
        (by_lease, admitted - by_lease)
    }
}

#[test]
fn after_a_reset_elsewhere_or_a_restart_that_loses_counts_what_is_held_is_spent_for_one_ttl() {
    scene(async |scene| {
        let ends = [(false, false), (false, true), (true, false), (true, true)];
        let cases = StrategyKind::ALL.map(|strategy| ends.map(|ends| (strategy, ends)));
        for (strategy, (restarts, has_ended)) in cases.into_iter().flatten() {
            let _case = Case(format!("{strategy:?}, {restarts}, {has_ended}"));
            let processes = Processes::new(&scene, strategy);
            let admitted = hold(&processes.holder, KEY).await;
            let (held, taken) = (held(&processes.holder), processes.take_all().await);
            assert_eq!(admitted + held + taken, processes.limit);
            if restarts {
                scene.server.kill();
                scene.server.restart();
                // Until the server is found again, requests fail.
                for limiter in [&processes.holder, &processes.other] {
                    let responds = async || limiter.peek(KEY).await.is_ok();
                    let responds = until("the store responds", responds);
                    scene.wait(responds).await;
                }
            } else {
                processes.other.reset(KEY).await.expect("a response");
            }
            assert_eq!(processes.take_all().await, processes.limit);
            if has_ended {
                scene.advance(TTL);
            }
            let (by_lease, by_store) = processes.spend(&scene).await;
            assert_eq!(by_lease, held * u64::from(!has_ended));
            // A refund may have come to the fresh count.
            let beside = by_lease + by_store + processes.take_all().await;
            assert!(beside <= held, "{beside} of {held}");
            scene.server.flush();
        }
    });
}

/// The holder stands still meanwhile. So much time passes on the server that all that was counted has refilled, and others use
/// the whole quota.
#[test]
fn what_has_ended_is_neither_spent_nor_refunded_to_others() {
    scene(async |scene| {
        for strategy in StrategyKind::ALL {
            let processes = Processes::new(&scene, strategy);
            hold(&processes.holder, KEY).await;
            scene.server_clock.advance(secs(100 * 86_400));
            assert_eq!(processes.take_all().await, processes.limit);
            scene.clock.advance(TTL);
            assert_eq!(processes.spend(&scene).await, (0, 0), "{strategy:?}");
            assert_eq!(processes.take_all().await, 0, "{strategy:?} refunded it");
            scene.server.flush();
        }
    });
}
