//! One process with more hot keys than may have leases.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::super::{
    Leases,
    grant::DueLease,
    held_lease::ClockReading,
    table::{Shard, units_of},
};
use crate::{
    FixedWindow, ManualClock, MemoryStore, Quota, RedisStore,
    key::Key,
    redis::request::op::OwnedCounterOp,
    store::{CounterOp, LimitHandle, Op, OpResult, Store as _, StoreResponse},
    strategy::{Lease, Strategy, Terms},
};

const KEYS: u64 = 10_000;

/// The most keys with leases.
const CAPACITY: usize = 4_096;

/// The quota of each key, and how many requests it has.
const UNITS: u64 = 64;
const REQUESTS: u64 = 70;

/// A process whose leases are charged in another store, at once.
struct Process {
    /// It is not connected.
    redis: RedisStore,
    store: MemoryStore,
    /// Of the store.
    clock: ManualClock,
    limit: LimitHandle,
    now: ClockReading,
}

impl Process {
    fn new() -> Self {
        let redis = RedisStore::open("redis://127.0.0.1:1").expect("a store");
        let now = ClockReading::read();
        let clock = ManualClock::at(now.wall);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let lease = Lease::max_units(8).ttl(Duration::from_secs(10));
        let quota = Quota::requests(UNITS).per(Duration::from_secs(100 * 86_400));
        let rule = FixedWindow.bind(&quota, &Terms::default().with_lease(lease));
        let limit = store.register("p", rule.expect("a rule"));
        let limit = limit.expect("a strategy that counts in process");
        Self {
            redis,
            store,
            clock,
            limit,
            now,
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.clock.advance(time);
    }

    fn leases(&self) -> &Arc<Leases> {
        &self.redis.inner.leases
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> OpResult {
        match self.store.execute(op, counters) {
            StoreResponse::Ready(Ok(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    /// Sends the requests of a key; returns how many were admitted, and how many of them by leases.
    fn send(&self, key: Key) -> (u64, u64) {
        let (mut admitted, mut by_lease) = (0, 0);
        for _ in 0..REQUESTS {
            let counters = [CounterOp::new(&self.limit, key)];
            let decision = self.leases().decide_by(&counters, || self.now);
            match decision.result {
                Some(result) => {
                    admitted += result.admitted;
                    by_lease += result.admitted;
                }
                None => {
                    let result = self.execute(Op::Acquire(1), &counters);
                    admitted += result.admitted;
                    if let Some(recorder) = decision.recorder {
                        recorder.record_at(self.now.monotonic, &result);
                    }
                }
            }
            if let Some(due) = decision.due {
                self.grant(&due);
            }
        }
        (admitted, by_lease)
    }

    fn grant(&self, due: &DueLease) {
        let counters: Vec<_> = due
            .request
            .counters
            .iter()
            .map(OwnedCounterOp::as_op)
            .collect();
        let result = self.execute(Op::Acquire(1), &counters);
        let mut shard = self.leases().shard(due.request.hash);
        let charged = units_of(&due.request.counters);
        shard.totals.add(charged, |stats| &mut stats.granted);
        let key = shard.key(due.request.hash);
        let _ = key.expect("a key").grant(&due.request, &result, self.now);
    }

    /// How many keys have leases, in memory that is bounded.
    fn len(&self) -> usize {
        let mut len = 0;
        for shard in &self.leases().shards {
            let shard = shard.lock().expect("no panic");
            assert!(shard.keys.capacity() < 2 * CAPACITY / 16);
            len += shard.keys.len();
        }
        len
    }

    /// Lets each key have been requested once within the last eleven seconds.
    fn let_all_be_idle(&mut self) {
        self.pass(Duration::from_secs(11));
        for shard in &self.leases().shards {
            let mut shard = shard.lock().expect("no panic");
            let Shard { keys, totals, .. } = &mut *shard;
            for key in keys {
                let counters: Vec<_> = key.spent().map(|(own, _)| own.clone()).collect();
                let counters: Vec<_> = counters.iter().map(OwnedCounterOp::as_op).collect();
                let (result, request) = key.decide(&counters, self.now);
                assert!(result.is_none() && request.is_none());
                for unspent in key.release() {
                    let units = units_of(&unspent.counters);
                    totals.add(units, |stats| &mut stats.lapsed);
                }
            }
        }
    }

    /// The keys that have leases, of some.
    fn leased(&self, keys: impl Iterator<Item = Key>) -> usize {
        let mut leased = 0;
        let all: HashSet<Key> = keys.collect();
        for shard in &self.leases().shards {
            let shard = shard.lock().expect("no panic");
            let own = shard.keys.iter().flat_map(|key| key.spent());
            leased += own.filter(|(own, _)| all.contains(&own.key)).count();
        }
        leased
    }
}

fn keys(name: &str) -> impl Iterator<Item = Key> {
    (0..KEYS).map(move |number| Key::new(format!("{name} {number}")))
}

#[test]
fn ten_thousand_hot_keys_are_decided_right_and_at_most_4096_of_them_have_leases() {
    let mut process = Process::new();
    let mut by_leases = 0;
    for name in ["first", "second"] {
        for key in keys(name) {
            let (admitted, by_lease) = process.send(key);
            assert_eq!(admitted, UNITS);
            by_leases += by_lease;
            assert!(process.len() <= CAPACITY);
        }
        let leased = process.leased(keys(name));
        assert_eq!((process.len(), leased), (CAPACITY, CAPACITY), "{name}");
        // The next ones replace them.
        process.let_all_be_idle();
        let leases = process.leases().stats();
        let stats = leases.first().expect("leases");
        assert_eq!(stats.spent, by_leases, "{name}");
        assert_eq!(stats.granted, stats.spent + stats.lapsed, "{name}");
    }
    assert!(by_leases > 2 * CAPACITY as u64, "{by_leases}");
}
