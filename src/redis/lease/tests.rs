use std::time::Duration;

use super::{
    held_lease::{ClockReading, LeaseRequest},
    leased_key::LeasedKey,
};
use crate::{
    clock::Timestamp,
    key::Key,
    quota::Quota,
    store::{CounterMode, CounterOp, CounterResult, LimitHandle, OpResult},
    strategy::{Ban, FixedWindow, Lease, Snapshot, Strategy, Terms},
};

fn leased(max_units: u64) -> LimitHandle {
    let lease = Lease::max_units(max_units).ttl(Duration::from_secs(10));
    let quota = Quota::requests(1_000_000).per_day();
    let rule = FixedWindow.bind(&quota, &Terms::default().with_lease(lease));
    LimitHandle::new("p", rule.expect("a rule"), ())
}

#[test]
fn leases_are_held_when_the_clock_of_the_server_is_set_back() {
    let limit = leased(8);
    let counters = [CounterOp::new(&limit, Key::global())];
    let now = ClockReading::read();
    let (hour, millisecond) = (Duration::from_secs(3_600), Duration::from_millis(1));
    // The store's response that so many units are charged, always in the same window.
    let ends = (now.wall + 20 * hour).as_micros();
    let charged = |at: Timestamp, units: u64| {
        let used = Snapshot::new([units as i64, ends]);
        OpResult::new(at, units, [CounterResult::new(units, used)])
    };
    let units_of = |request: &LeaseRequest| request.counters[0].units.get();
    let granted = |at, request: &LeaseRequest| charged(at, units_of(request));
    let held = |key: &LeasedKey| key.held(0);

    let mut key = LeasedKey::new(0, &counters, now.monotonic);
    let (result, request) = key.decide(&counters, now);
    assert!(result.is_none() && request.is_none());
    for _ in 0..40 {
        key.record_response(now.monotonic, &charged(now.wall, 1), now.monotonic);
    }
    let mut request = || key.decide(&counters, now + millisecond).1;
    let [first, second] = [request(), request()].map(|due| due.expect("a lease is due"));
    // The later response comes first, and then the older one, of the same window: both are held.
    let later = now + 3 * millisecond;
    drop(key.grant(&second, &granted(later.wall, &second), later));
    drop(key.grant(&first, &granted(now.wall, &first), later));
    assert_eq!(held(&key), units_of(&first) + units_of(&second));
    // A lease that was requested after that is charged an hour before: it is held, and those before it end.
    let third = (0..4).find_map(|_| key.decide(&counters, later + millisecond).1);
    let third = third.expect("a lease is due");
    assert!(held(&key) > 0);
    let back = granted(now.wall - hour, &third);
    drop(key.grant(&third, &back, later + 2 * millisecond));
    assert_eq!(held(&key), units_of(&third));
    let (result, _) = key.decide(&counters, later + 3 * millisecond);
    assert_eq!(result.expect("a decision").at, back.at);
}

/// No units are used under a ban, so none are missing.
#[test]
fn beside_a_ban_a_lease_is_requested_for_many_requests() {
    const REQUESTS: u64 = 1_000;
    let limits = [
        leased(100),
        LimitHandle::unregistered(Ban::for_duration(Duration::from_secs(60)), "9/min"),
    ];
    let [limit, ban] = limits
        .each_ref()
        .map(|limit| CounterOp::new(limit, Key::global()));
    let counters = [limit, ban.with_mode(CounterMode::CountRejections)];
    let now = ClockReading::read();
    let ends = (now.wall + Duration::from_secs(3_600)).as_micros();
    let charged = |units: u64| {
        let used = CounterResult::new(units, Snapshot::new([units as i64, ends]));
        let ban = CounterResult::new(0, Snapshot::default());
        OpResult::new(now.wall, 1, [used, ban])
    };
    let mut key = LeasedKey::new(0, &counters, now.monotonic);
    let (mut by_lease, mut leases) = (0, 0);
    for _ in 0..REQUESTS {
        let (result, request) = key.decide(&counters, now);
        match result {
            Some(_) => by_lease += 1,
            None => key.record_response(now.monotonic, &charged(1), now.monotonic),
        }
        if let Some(request) = request {
            leases += 1;
            drop(key.grant(&request, &charged(request.counters[0].units.get()), now));
        }
    }
    assert!(by_lease > REQUESTS * 9 / 10, "{by_lease}");
    assert!(leases < REQUESTS / 10, "{leases}");
}
