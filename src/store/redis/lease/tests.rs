//! The units of leases are counted, whatever becomes of them.

use std::{
    sync::{
        Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;

use super::{
    demand::HotKeys, held_lease::Now, leased_key::LeasedKey, table::Leases, totals::Totals,
};
use crate::{
    key::Key,
    quota::Quota,
    store::{CounterMode, CounterOp, CounterResult, LimitHandle, OpResult, Units},
    strategy::{ChargeReceipt, FixedWindow, Lease, Snapshot, Strategy, TierRefills},
};

fn leases() -> Leases {
    Leases {
        workers: Weak::new(),
        is_used: AtomicBool::new(true),
        hot_keys: HotKeys::new(),
        next_id: AtomicU64::new(0),
        hasher: DefaultHashBuilder::default(),
        shards: Default::default(),
        len: AtomicUsize::new(0),
        refunding: AtomicU64::new(0),
        totals: Totals::default(),
    }
}

fn limit() -> LimitHandle {
    let lease = Lease::max_units(8).ttl(Duration::from_secs(10));
    let quota = Quota::requests(1_000_000).per_day();
    let rule = FixedWindow.bind_leased(&quota, &TierRefills::default(), &lease);
    LimitHandle::new("p", rule.expect("a rule"), ())
}

/// A key that has spent the two units of its only lease, and is requested no more.
fn spent_key(counters: &[CounterOp<'_>]) -> LeasedKey {
    let now = Now::read();
    let mut key = LeasedKey::new((0, 0), counters, now.monotonic);
    let (_, request) = key.decide(counters, now);
    let request = request.expect("a lease is due");
    let units = u64::from(request.requests);
    let day = now.wall + Duration::from_secs(80_000);
    let used = Snapshot::new([units as i64, day.as_micros()]);
    let result = OpResult::new(now.wall, units, [CounterResult::new(units, used)]);
    drop(key.grant(&request, &result, now));
    for _ in 0..units {
        let (admitted, request) = key.decide(counters, now);
        assert!(admitted.is_some());
        if let Some(request) = request {
            key.fail(request.number, now.monotonic);
        }
    }
    key
}

#[test]
fn the_count_of_spent_units_never_falls_while_keys_are_evicted() {
    const KEYS: u64 = 20_000;
    let (leases, limit) = (leases(), limit());
    let evict = || {
        let counter = CounterOp {
            limit: &limit,
            key: Key::global(),
            units: Units::ONE,
            receipt: ChargeReceipt::NONE,
            caller: Key::global(),
            mode: CounterMode::Charge,
        };
        for _ in 0..KEYS {
            let key = spent_key(&[counter]);
            let mut shard = leases.shard(0);
            shard.searched_at = None;
            shard.keys.insert_unique(0, key, |key| key.hash);
            leases.len.fetch_add(1, Ordering::Relaxed);
            drop(shard);
            let later = Now::read().monotonic + Duration::from_secs(3);
            leases.evict(&mut leases.shard(0), later);
        }
    };
    let spent = || leases.stats().first().map_or(0, |stats| stats.spent);
    std::thread::scope(|scope| {
        let (evicting, mut before) = (scope.spawn(evict), 0);
        while !evicting.is_finished() {
            let last = std::mem::replace(&mut before, spent());
            assert!(before >= last, "{last}, then {before}");
        }
    });
    assert_eq!((spent(), leases.len.into_inner()), (2 * KEYS, 0));
}
