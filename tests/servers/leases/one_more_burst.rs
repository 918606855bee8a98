//! Counts that are lost, by a reset of another process, a restart or a failover: what a process holds is spent beside the fresh
//! quota within the TTL, and nothing else is. What has ended is neither spent nor refunded.

use crate::leases::{
    holder::{HALF_SECOND_LEFT, Holder, LASTING},
    support::*,
};

/// A process that holds units under each strategy, and others that have the rest.
struct Ledger {
    holder: Holder,
    held: Vec<u64>,
    others: Holder,
}

impl Ledger {
    async fn begin(store: impl Fn() -> RedisStore) -> Self {
        let [holder, others] = [0, 1].map(|_| Holder::new(&LASTING, TTL, &store));
        let admitted = holder.hold().await;
        let (held, taken) = (holder.held(), others.take_all().await);
        let parts = admitted.iter().zip(&held).zip(&taken);
        let sums: Vec<_> = parts.map(|((a, b), c)| a + b + c).collect();
        assert_eq!(sums, others.limits(), "{admitted:?} {held:?} {taken:?}");
        Self {
            holder,
            held,
            others,
        }
    }

    /// Checks what is admitted since the counts were lost, up to the end of the leases, or after it; returns what others were.
    async fn end(self, scene: &Scene, has_ended: bool) -> Vec<u64> {
        // Until a server is found again, requests fail.
        let all = self.others.0.iter().chain(&self.holder.0);
        let responds = all.map(async |own| {
            let is_ok = async || own.limiter.peek(own.key).await.is_ok();
            until("the store responds", is_ok).await;
        });
        scene.wait(join_all(responds)).await;
        let fresh = self.others.take_all().await;
        if has_ended {
            scene.advance(TTL);
        }
        let [by_lease, by_store] = self.holder.spend().await;
        let expected = self.held.iter().map(|held| held * u64::from(!has_ended));
        assert_eq!(by_lease, expected.collect::<Vec<_>>());
        self.holder.shut_down(scene).await;
        // A refund may have come to the fresh count.
        let more = self.others.take_all().await;
        for (index, own) in self.others.0.iter().enumerate() {
            let held = self.held[index];
            let beside = by_lease[index] + by_store[index] + more[index];
            assert!(beside <= held, "{:?}: {beside} of {held}", own.strategy);
        }
        fresh
    }
}

#[test]
fn after_a_reset_elsewhere_or_a_restart_that_loses_counts_what_is_held_is_spent_for_one_ttl() {
    scene(async |scene| {
        for (restarts, has_ended) in [(false, false), (false, true), (true, false), (true, true)] {
            let _case = Case(format!("restarts {restarts}, has ended {has_ended}"));
            let ledger = Ledger::begin(|| scene.store()).await;
            if restarts {
                scene.server.kill();
                scene.server.restart();
            } else {
                for own in &ledger.others.0 {
                    own.limiter.reset(own.key).await.expect("a response");
                }
            }
            let limits = ledger.others.limits();
            assert_eq!(ledger.end(&scene, has_ended).await, limits);
            scene.server.command(&["FLUSHALL"]);
        }
    });
}

/// The replica has the counts, or most of them.
#[test]
fn after_a_failover_of_a_cluster_what_was_held_is_spent_once() {
    scene(async |scene| {
        let cluster = Cluster::start(1, 1);
        let store = || {
            let store = RedisStore::builder()
                .cluster(cluster.urls())
                .timeout(ms(500))
                .rejection_cache_staleness(Duration::ZERO);
            store.built()
        };
        let ledger = Ledger::begin(store).await;
        let [master, replica] = cluster.nodes() else {
            panic!("a master and a replica");
        };
        master.kill();
        replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).ok();
        ledger.end(&scene, false).await;
    });
}

/// The holder stands still meanwhile. So much time passes on the server that all that was counted has refilled, and others use
/// the whole quotas.
#[test]
fn what_has_ended_is_neither_spent_nor_refunded_to_others() {
    scene(async |scene| {
        for (cases, ttl, pause) in [
            (&LASTING[..], ms(400), ms(400)),
            (&HALF_SECOND_LEFT[..], TTL, ms(500)),
        ] {
            let [holder, others] = [0, 1].map(|_| Holder::new(cases, ttl, || scene.store()));
            holder.hold().await;
            assert!(holder.held().iter().all(|units| *units > 0));
            scene.server_clock.advance(secs(100 * 86_400));
            assert_eq!(others.take_all().await, others.limits());
            scene.clock.advance(pause);
            let nothing = vec![0; cases.len()];
            assert_eq!(holder.spend().await, [nothing.clone(), nothing.clone()]);
            holder.shut_down(&scene).await;
            assert_eq!(others.take_all().await, nothing, "it was refunded");
            scene.server.command(&["FLUSHALL"]);
        }
    });
}
