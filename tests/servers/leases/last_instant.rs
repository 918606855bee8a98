//! The last instant at which a unit is spent, to the microsecond, by clocks of a process that are set.

use std::{
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use testkit::Timers;
use tokio::runtime::Builder;
use tollgate_tests::set_clock::of_own_process;

use crate::leases::{
    holder::{Case, HALF_SECOND_LEFT, Holder, LASTING, LeasingLimiter},
    support::{BEGIN, Scene, TTL, held, scene, secs, stats, until},
};

/// Requests a lease at an instant, whose response comes later, and spends units of it at its last microsecond.
async fn is_spent_for(scene: &Scene, own: &LeasingLimiter, life: Duration, at: u64) {
    let strategy = own.strategy;
    scene.clock.set(at);
    scene.server_clock.set(BEGIN);
    let granted = || stats(&own.limiter)[1];
    until("a lease is granted", async || {
        if granted() == 0 {
            assert!(own.limiter.check(own.key).await.is_admitted());
        }
        granted() > 0
    })
    .await;
    // The next one is requested when few units are left.
    let before = granted();
    while held(&own.limiter) > 5 {
        assert!(own.is_by_lease(), "{strategy:?}");
    }
    // The store counts at the instant of the request, however late that is.
    scene.clock.set(at + 300_000);
    until("another lease is granted", async || granted() > before).await;
    let end = at + life.as_micros() as u64;
    scene.clock.set(end - 1);
    for _ in 0..5 {
        assert!(own.is_by_lease(), "{strategy:?}: it ends early");
    }
    assert!(held(&own.limiter) > 0);
    scene.clock.set(end);
    assert!(!own.is_by_lease(), "{strategy:?}: it ends late");
}

/// A lease lives for its TTL, or for the rest of its window, from the moment of its request, whenever its response comes.
#[test]
fn a_lease_is_spent_up_to_the_last_microsecond_of_its_ttl_or_window_and_not_after_that() {
    scene(async |scene| {
        let second = secs(1);
        // Half a second less a thousandth, in which clocks of different speeds drift apart, and one microsecond.
        let rest = Duration::from_micros(499_499);
        let lasting: (&[Case], _, _) = (&LASTING, second, second);
        let mut at = BEGIN;
        for (cases, ttl, life) in [lasting, (&HALF_SECOND_LEFT, TTL, rest)] {
            for own in Holder::new(cases, ttl, || scene.store()).0 {
                at += 1_000_000_000;
                is_spent_for(&scene, &own, life, at).await;
            }
            // Their keys are counted afresh.
            scene.server_clock.set(BEGIN + 3_600_000_000);
        }
    });
}

/// Holds units by requests at a rate for leases, in real time.
async fn hold_in_real_time(own: &LeasingLimiter) {
    until("units are held", async || {
        join_all((0..30).map(|_| own.limiter.check(own.key).into_future())).await;
        held(&own.limiter) > 5
    })
    .await;
}

/// The monotonic clock stands still while a machine sleeps: the wall clock says how long that was, or has been set back meanwhile.
#[test]
fn a_lease_ends_by_the_clock_that_has_moved_by_its_ttl() {
    on_a_wall_clock(async |scene: Scene| {
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
    });
}

#[track_caller]
fn on_a_wall_clock<F: AsyncFnOnce(Scene)>(test: F) {
    if let Some(clock) = of_own_process::<F>(Timers::Real) {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime
            .expect("a runtime")
            .block_on(test(Scene::new(clock)));
    }
}
