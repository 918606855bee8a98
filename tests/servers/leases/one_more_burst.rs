//! Counts that are lost, by a reset of another process, a restart or a failover: what a process holds is spent beside the fresh
//! quota within the TTL, and nothing else is.

use std::{
    thread,
    time::{Duration, Instant},
};

use testkit::{Cluster, Server};
use tollgate::RedisStore;

use crate::leases::{
    holder::{Holder, LASTING},
    support::{TEST_TIMEOUT, ms, store, until},
};

/// A TTL that has not passed when others have used the fresh quota, unless a machine is very slow.
const LONG: Duration = Duration::from_secs(10);

/// One that has passed by then.
const SHORT: Duration = ms(300);

/// A process that holds units under each strategy, and others that have the rest.
pub(crate) struct Ledger {
    holder: Holder,
    held: Vec<u64>,
    /// Before the first lease was requested, and after the last one was.
    requested: [Instant; 2],
    ttl: Duration,
    others: Holder,
}

impl Ledger {
    /// The whole quotas are used: the holder has the last units. It spends them when all is lost.
    pub(crate) fn long(store: impl Fn() -> RedisStore) -> Self {
        Self::begin(LONG, store)
    }

    fn begin(ttl: Duration, store: impl Fn() -> RedisStore) -> Self {
        let [holder, others] = [(); 2].map(|()| Holder::new(&LASTING, ttl, &store));
        let start = Instant::now();
        let admitted = holder.hold();
        let (held, requested) = (holder.held(), [start, Instant::now()]);
        let taken = others.take_all();
        if ttl == LONG {
            let parts = admitted.iter().zip(&held).zip(&taken);
            let sums: Vec<_> = parts.map(|((a, b), c)| a + b + c).collect();
            assert_eq!(sums, others.limits(), "{admitted:?} {held:?} {taken:?}");
        }
        Self {
            holder,
            held,
            requested,
            ttl,
            others,
        }
    }

    /// Resets the keys by another process.
    fn reset(&self) {
        for own in self.others.limiters() {
            own.run(own.limiter.reset(own.key)).expect("a response");
        }
    }

    /// Checks what is admitted since the counts were lost; returns what others were.
    pub(crate) fn end(self) -> Vec<u64> {
        // Until a server is found again, requests fail.
        for own in self.others.limiters() {
            own.run(until("the store responds", async || {
                own.limiter.peek(own.key).await.is_ok()
            }));
        }
        let fresh = self.others.take_all();
        let limits = self.others.limits();
        let is_within = |(fresh, limit): (&u64, &u64)| fresh <= limit;
        assert!(fresh.iter().zip(&limits).all(is_within), "{fresh:?}");

        let [first, last] = self.requested;
        if self.ttl == SHORT {
            thread::sleep((SHORT * 5 / 4).saturating_sub(last.elapsed()));
        }
        let spent = self.holder.spend();
        self.holder.shutdown();
        let by_lease: Vec<_> = spent.iter().map(|one| one.by_lease).collect();
        match self.ttl {
            SHORT => assert_eq!(by_lease, vec![0; LASTING.len()]),
            // Later they are refunded.
            _ if first.elapsed() > LONG * 3 / 4 => {}
            _ => assert_eq!(by_lease, self.held),
        }

        // A refund may have come to the fresh count.
        let more = self.others.take_all();
        for (index, own) in self.others.limiters().enumerate() {
            let held = self.held[index];
            let beside = spent[index].units + more[index];
            assert!(beside <= held, "{:?}: {beside} of {held}", own.strategy);
        }
        fresh
    }
}

#[test]
fn after_a_reset_by_another_process_what_is_held_is_spent_for_one_ttl_at_most() {
    for ttl in [SHORT, LONG] {
        let server = Server::start();
        let ledger = Ledger::begin(ttl, || store(&server));
        ledger.reset();
        let limits = ledger.others.limits();
        assert_eq!(ledger.end(), limits);
    }
}

#[test]
fn after_a_restart_that_loses_counts_what_was_held_is_spent_for_one_ttl_at_most() {
    for ttl in [SHORT, LONG] {
        let server = Server::start();
        let ledger = Ledger::begin(ttl, || store(&server));
        server.kill();
        server.restart();
        let limits = ledger.others.limits();
        assert_eq!(ledger.end(), limits);
    }
}

/// The replica has the counts, or most of them.
#[test]
fn after_a_failover_of_a_cluster_what_was_held_is_spent_once() {
    let cluster = Cluster::start(1, 1);
    let store = || {
        let store = RedisStore::builder()
            .cluster(cluster.urls())
            .timeout(TEST_TIMEOUT)
            .rejection_cache_staleness(Duration::ZERO);
        store.build().expect("a store")
    };
    let ledger = Ledger::long(store);
    let [master, replica] = cluster.nodes() else {
        panic!("a master and a replica");
    };
    master.kill();
    replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).ok();
    ledger.end();
}
