//! The last instant at which a unit is spent, to the microsecond, by clocks of a process that are set.

use crate::leases::support::*;

/// A limiter that holds units, by requests at a rate for leases in real time.
async fn holding(scene: &Scene, ttl: Duration) -> Limiter {
    let lease = Lease::max_units(64).ttl(ttl);
    let policy = Fixed.policy("p", "20000/month").lease(lease);
    let limiter = scene.limiter([policy]);
    until("units are held", async || {
        join_all((0..100).map(|_| limiter.check(KEY).into_future())).await;
        held(&limiter) > 5
    })
    .await;
    limiter
}

/// Whether a lease admits a request at once: nothing else runs meanwhile.
fn is_by_lease(limiter: &Limiter) -> bool {
    let decision = limiter.check(KEY).into_future().now_or_never();
    decision.is_some_and(|it| it.source() == DecisionSource::Lease && it.is_admitted())
}

/// The monotonic clock stands still while a machine sleeps: the wall clock says how long that was, or has been set back meanwhile.
#[test]
fn a_lease_ends_by_the_clock_that_has_moved_by_its_ttl() {
    let test = async |scene: Scene| {
        let micros = TTL.as_micros() as u64;
        let forward = (BEGIN + micros - 1, BEGIN + micros);
        let back = (BEGIN - micros, BEGIN - micros - 1);
        for (last, over) in [forward, back] {
            scene.clock.set(BEGIN);
            let start = Instant::now();
            let limiter = holding(&scene, TTL).await;
            scene.clock.set(last);
            let is_spent = is_by_lease(&limiter);
            let in_time = start.elapsed() < TTL / 2;
            assert!(is_spent || !in_time, "{last}");
            scene.clock.set(over);
            assert!(!is_by_lease(&limiter), "{over}");
        }
        // The wall clock stands still.
        scene.clock.set(BEGIN);
        let ttl = secs(1);
        let limiter = holding(&scene, ttl).await;
        thread::sleep(ttl * 5 / 4);
        assert!(!is_by_lease(&limiter));
    };
    scene_with(Timers::Real, |scene| current_thread().block_on(test(scene)));
}
