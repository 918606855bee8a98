//! The last instant at which a unit is spent, to the microsecond, by clocks of a process that are set.

use crate::leases::{
    holder::{Holder, LASTING, LeasingLimiter},
    support::*,
};

/// Holds units by requests at a rate for leases, in real time.
async fn hold_in_real_time(own: &LeasingLimiter) {
    until("units are held", async || {
        join_all((0..100).map(|_| own.limiter.check(own.key).into_future())).await;
        held(&own.limiter) > 5
    })
    .await;
}

/// The monotonic clock stands still while a machine sleeps: the wall clock says how long that was, or has been set back meanwhile.
#[test]
fn a_lease_ends_by_the_clock_that_has_moved_by_its_ttl() {
    let test = async |scene: Scene| {
        let cases = &LASTING[2..3];
        let micros = TTL.as_micros() as u64;
        let forward = (BEGIN + micros - 1, BEGIN + micros);
        let back = (BEGIN - micros, BEGIN - micros - 1);
        for (last, over) in [forward, back] {
            let own = Holder::new(cases, TTL, || scene.store()).0.remove(0);
            scene.clock.set(BEGIN);
            let start = Instant::now();
            hold_in_real_time(&own).await;
            scene.clock.set(last);
            let is_spent = own.is_by_lease();
            let in_time = start.elapsed() < TTL / 2;
            assert!(is_spent || !in_time, "{last}");
            scene.clock.set(over);
            assert!(!own.is_by_lease(), "{over}");
            scene.clock.set(BEGIN);
        }
        // The wall clock stands still.
        let ttl = secs(1);
        let own = Holder::new(cases, ttl, || scene.store()).0.remove(0);
        hold_in_real_time(&own).await;
        thread::sleep(ttl * 5 / 4);
        assert!(!own.is_by_lease());
    };
    scene_with(Timers::Real, |scene| current_thread().block_on(test(scene)));
}
