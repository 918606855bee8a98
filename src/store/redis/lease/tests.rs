//! The units of leases are counted, whatever becomes of them.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, LazyLock, Weak, atomic::Ordering},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{
    grant::{DueLease, UnsettledGuard},
    held_lease::{ClockReading, LeaseRequest},
    leased_key::{Granted, LeasedKey},
    table::{EVICTION_INTERVAL, Leases},
};
use crate::{
    clock::Timestamp,
    key::Key,
    quota::Quota,
    store::{CounterOp, CounterResult, LimitHandle, OpResult, Units},
    strategy::{FixedWindow, Lease, Snapshot, Strategy, Terms},
};

fn leases() -> Arc<Leases> {
    let leases = Leases::new(Weak::new());
    leases.is_used.store(true, Ordering::Relaxed);
    leases
}

fn limit(ttl: Duration) -> LimitHandle {
    let lease = Lease::max_units(8).ttl(ttl);
    let quota = Quota::requests(1_000_000).per_day();
    let rule = FixedWindow.bind(&quota, &Terms::default().with_lease(lease));
    LimitHandle::new("p", rule.expect("a rule"), ())
}

fn counter(limit: &LimitHandle) -> CounterOp<'_> {
    CounterOp::new(limit, Key::global())
}

/// The store's response that so many units are charged, in a window that ends after the tests do.
fn granted(units: u64, now: ClockReading) -> OpResult {
    static ENDS: LazyLock<Timestamp> =
        LazyLock::new(|| ClockReading::read().wall + Duration::from_secs(80_000));
    let used = Snapshot::new([units as i64, ENDS.as_micros()]);
    OpResult::new(now.wall, units, [CounterResult::new(units, used)])
}

/// A key of which the store has decided a request.
fn known_key(counters: &[CounterOp<'_>], now: ClockReading) -> LeasedKey {
    let mut key = LeasedKey::new((0, 0), counters, now.monotonic);
    let (result, request) = key.decide(counters, now);
    assert!(result.is_none() && request.is_none());
    key.record_response(now.monotonic, &granted(1, now), now.monotonic);
    key
}

/// The units of a lease.
fn units_of(request: &LeaseRequest) -> u64 {
    request.counters[0].units.get()
}

/// A key that has spent the eight units of its only lease, and is requested no more.
fn spent_key(counters: &[CounterOp<'_>]) -> LeasedKey {
    let now = ClockReading::read();
    let mut key = known_key(counters, now);
    let (_, request) = key.decide(counters, now);
    let request = request.expect("a lease is due");
    let units = units_of(&request);
    drop(key.grant(&request, &granted(units, now), now));
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
    let (leases, limit) = (leases(), limit(Duration::from_secs(10)));
    let evict = || {
        let first = ClockReading::read().monotonic + Duration::from_secs(3);
        for number in 0..KEYS {
            let key = spent_key(&[counter(&limit)]);
            let mut shard = leases.shard(0);
            shard.keys.insert_unique(0, key, |key| key.hash);
            leases.keys.fetch_add(1, Ordering::Relaxed);
            drop(shard);
            let later = first + EVICTION_INTERVAL * (number as u32);
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
    assert_eq!(
        (spent(), leases.keys.load(Ordering::Relaxed)),
        (8 * KEYS, 0)
    );
}

/// What settles while a flush waits. The clock would stand at the deadline, if it were not woken.
#[tokio::test(start_paused = true)]
async fn a_flush_waits_until_leases_and_refunds_have_settled_and_no_longer() {
    let (leases, limit) = (leases(), limit(Duration::from_secs(10)));
    let counter = CounterOp::new(&limit, Key::global());
    let (start, hour) = (Instant::now(), Duration::from_secs(3_600));
    let is_refunded = || leases.unsettled() == 0;

    let refund = UnsettledGuard::new(&leases);
    let refunded = async {
        tokio::task::yield_now().await;
        assert!(!is_refunded());
        drop(refund);
    };
    tokio::join!(leases.wait_until(start + hour, is_refunded), refunded);
    assert!(is_refunded() && start.elapsed().is_zero());

    let now = ClockReading::read();
    let mut key = known_key(&[counter], now);
    let (_, request) = key.decide(&[counter], now);
    leases.shard(0).keys.insert_unique(0, key, |key| key.hash);
    let is_granted = || !leases.awaits_requested_by(now.monotonic);
    let granted = async {
        tokio::task::yield_now().await;
        assert!(!is_granted());
        let due = DueLease {
            leases: leases.clone(),
            hash: 0,
            request: request.expect("a lease is due"),
        };
        // The store is gone, so the request fails.
        due.send();
    };
    tokio::join!(leases.wait_until(start + hour, is_granted), granted);
    assert!(is_granted() && start.elapsed().is_zero());

    let never = UnsettledGuard::new(&leases);
    leases.wait_until(start + hour, is_refunded).await;
    assert_eq!(start.elapsed(), hour, "the deadline");
    drop(never);
}

/// The store is gone, so units lapse in place of being refunded. The clock would stand at the deadline, if the housekeeper slept
/// until the other key is due.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_lease_is_refunded_when_it_is_due_before_all_others() {
    let (leases, limit) = (leases(), limit(Duration::from_millis(50)));
    let (counter, now) = (counter(&limit), ClockReading::read());
    let (start, hour) = (Instant::now(), Duration::from_secs(3_600));
    leases.schedule_refund(now.monotonic + hour * 2, 1, 0);
    let mut housekeeping = pin!(leases.refund_when_due());
    assert!(housekeeping.as_mut().now_or_never().is_none());

    let mut key = known_key(&[counter], now);
    let request = key.decide(&[counter], now).1.expect("a lease is due");
    let granted = key.grant(&request, &granted(units_of(&request), now), now);
    let Granted::Held { refund_after } = granted else {
        panic!("{granted:?}");
    };
    let due = now.monotonic + refund_after;
    assert_eq!(key.schedule_refund(due), Some(due));
    assert_eq!(key.schedule_refund(due), None, "once");
    let id = key.id;
    leases.shard(0).keys.insert_unique(0, key, |key| key.hash);
    while ClockReading::read().monotonic < due {
        std::thread::yield_now();
    }
    leases.schedule_refund(due, id, 0);
    let stats = || leases.stats().first().cloned().expect("units");
    let refunded = leases.wait_until(start + hour, || stats().held == 0);
    tokio::select! {
        () = housekeeping => unreachable!("the leases are not dropped"),
        () = refunded => {}
    }
    assert_eq!((stats().held, stats().lapsed), (0, units_of(&request)));
}

#[test]
fn requests_wait_for_the_store_no_longer_than_a_lease_does() {
    let limit = limit(Duration::from_millis(50));
    let counters = [counter(&limit)];
    let mut now = ClockReading::read();
    let mut key = LeasedKey::new((0, 0), &counters, now.monotonic);
    let (mut leases, mut others) = (VecDeque::new(), VecDeque::new());
    // 10,000 per second, in parts with pauses of more than a TTL between them, each within an interval of the rate. A response
    // takes a millisecond.
    for part in 0..5 {
        let (mut by_store, mut longest) = (0, 0);
        for request in 0..1_250_u32 {
            now = now + Duration::from_micros(100);
            let millisecond = Duration::from_millis(1);
            while others
                .front()
                .is_some_and(|sent| *sent + millisecond <= now.monotonic)
            {
                let sent = others.pop_front().expect("a request");
                key.record_response(sent, &granted(1, now), now.monotonic);
            }
            let is_answered = |request: &LeaseRequest| {
                request.requested_at.monotonic + millisecond <= now.monotonic
            };
            while leases.front().is_some_and(is_answered) {
                let request = leases.pop_front().expect("a request");
                drop(key.grant(&request, &granted(units_of(&request), now), now));
            }
            let (result, due) = key.decide(&counters, now);
            assert!(due.as_ref().is_none_or(|due| units_of(due) <= 8));
            leases.extend(due);
            if result.is_none() {
                others.push_back(now.monotonic);
            }
            by_store = if result.is_some() { 0 } else { by_store + 1 };
            // The first lease is of two requests, and the rate is not known before an interval has ended.
            if part > 0 || request > 600 {
                longest = longest.max(by_store);
            }
        }
        for request in leases.drain(..) {
            drop(key.grant(&request, &granted(units_of(&request), now), now));
        }
        for sent in others.drain(..) {
            key.record_response(sent, &granted(1, now), now.monotonic);
        }
        assert!(longest <= 22, "{part}: {longest} in a row");
        now = now + Duration::from_millis(60);
    }
}

#[test]
fn rejected_requests_of_any_cost_are_recorded_without_overflow() {
    let limit = limit(Duration::from_millis(50));
    let mut now = ClockReading::read();
    let mut key = known_key(&[counter(&limit)], now);
    let costly = counter(&limit).with_units(Units::new(u64::MAX));
    let rejected = OpResult {
        admitted: 0,
        ..granted(0, now)
    };
    for _ in 0..20_000 {
        now = now + Duration::from_micros(10);
        let (result, due) = key.decide(&[costly], now);
        assert!(result.is_none() && due.is_none());
        key.record_response(now.monotonic, &rejected, now.monotonic);
    }
    // Admitted ones are, too.
    for _ in 0..20_000 {
        let (result, _) = key.decide(&[costly], now);
        assert!(result.is_none());
        let admitted = granted(Units::MAX.get(), now);
        key.record_response(now.monotonic, &admitted, now.monotonic);
    }
}

#[test]
fn leases_are_held_when_the_clock_of_the_server_is_set_back() {
    let limit = limit(Duration::from_secs(10));
    let counters = [counter(&limit)];
    let now = ClockReading::read();
    let mut key = known_key(&counters, now);
    let mut request = || key.decide(&counters, now + Duration::from_millis(1)).1;
    let [first, second] = [request(), request()].map(|due| due.expect("a lease is due"));
    let hour = Duration::from_secs(3_600);
    let at = |time: Timestamp, request: &LeaseRequest| {
        let response = granted(units_of(request), now);
        OpResult {
            at: time,
            ..response
        }
    };
    let held = |key: &LeasedKey| key.units().map(|(_, units)| units.held).sum::<u64>();
    // The later response comes first, and then the older one, of the same window: both are held.
    let later = now + Duration::from_millis(3);
    drop(key.grant(&second, &at(later.wall, &second), later));
    drop(key.grant(&first, &at(now.wall, &first), later));
    assert_eq!(held(&key), units_of(&first) + units_of(&second));
    // A lease that was requested after that is charged an hour before: it is held, and those before it end.
    let soon = later + Duration::from_millis(1);
    let third = (0..4).find_map(|_| key.decide(&counters, soon).1);
    let third = third.expect("a lease is due");
    assert!(held(&key) > 0);
    let back = at(now.wall - hour, &third);
    drop(key.grant(&third, &back, later + Duration::from_millis(2)));
    assert_eq!(held(&key), units_of(&third));
    let (result, _) = key.decide(&counters, later + Duration::from_millis(3));
    assert_eq!(result.expect("a decision").at, back.at);
}
