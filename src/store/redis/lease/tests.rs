//! The units of leases are counted, whatever becomes of them.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use tokio::{sync::Notify, time::Instant};

use super::{
    demand::HotKeys,
    grant::{self, Refund},
    held_lease::{Now, Unspent},
    leased_key::LeasedKey,
    table::Leases,
    totals::Totals,
};
use crate::{
    key::Key,
    quota::Quota,
    store::{
        CounterMode, CounterOp, CounterResult, LimitHandle, OpResult, Units,
        redis::request::op::CounterOps,
    },
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
        settled: Notify::new(),
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

/// What settles while a flush waits. The clock would stand at the deadline, if it were not woken.
#[tokio::test(start_paused = true)]
async fn a_flush_waits_until_leases_and_refunds_have_settled_and_no_longer() {
    let (leases, limit) = (Arc::new(leases()), limit());
    let counter = CounterOp::new(&limit, Key::global());
    let (start, hour) = (Instant::now(), Duration::from_secs(3_600));
    let is_refunded = || leases.refunding() == 0;

    let unspent = Unspent {
        counters: CounterOps::new(),
    };
    let refund = Refund::send(&leases, unspent);
    let refunded = async {
        tokio::task::yield_now().await;
        assert!(!is_refunded());
        refund.finish().await;
    };
    tokio::join!(leases.wait_until(start + hour, is_refunded), refunded);
    assert!(is_refunded() && start.elapsed().is_zero());

    let now = Now::read();
    let mut key = LeasedKey::new((0, 0), &[counter], now.monotonic);
    let (_, request) = key.decide(&[counter], now);
    leases.shard(0).keys.insert_unique(0, key, |key| key.hash);
    let is_granted = || !leases.waits_since(now.monotonic);
    let granted = async {
        tokio::task::yield_now().await;
        assert!(!is_granted());
        // The store is gone, so the request fails.
        grant::send(&leases, 0, request.expect("a lease is due"));
    };
    tokio::join!(leases.wait_until(start + hour, is_granted), granted);
    assert!(is_granted() && start.elapsed().is_zero());

    let never = Refund::send(
        &leases,
        Unspent {
            counters: CounterOps::new(),
        },
    );
    leases.wait_until(start + hour, is_refunded).await;
    assert_eq!(start.elapsed(), hour, "the deadline");
    drop(never);
}
