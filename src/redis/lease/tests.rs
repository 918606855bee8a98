use std::time::Duration;

use super::{
    held_lease::{ClockReading, LeaseRequest},
    leased_key::LeasedKey,
};
use crate::{
    clock::Timestamp,
    key::Key,
    quota::Quota,
    store::{CounterOp, CounterResult, LimitHandle, OpResult},
    strategy::{FixedWindow, Lease, Snapshot, Strategy, Terms},
};

#[test]
fn leases_are_held_when_the_clock_of_the_server_is_set_back() {
    let lease = Lease::max_units(8).ttl(Duration::from_secs(10));
    let quota = Quota::requests(1_000_000).per_day();
    let rule = FixedWindow.bind(&quota, &Terms::default().with_lease(lease));
    let limit = LimitHandle::new("p", rule.expect("a rule"), ());
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
    let held = |key: &LeasedKey| key.units().map(|(_, units)| units.held).sum::<u64>();

    let mut key = LeasedKey::new((0, 0), &counters, now.monotonic);
    let (result, request) = key.decide(&counters, now);
    assert!(result.is_none() && request.is_none());
    key.record_response(now.monotonic, &charged(now.wall, 1), now.monotonic);
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
