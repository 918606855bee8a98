//! Waits on threads without a runtime: an error where there would be something to wait for, and no unit is lost or given twice.
//! That runtimes without timers are no different is tested in `servers/faults/waiting.rs`.

#![expect(
    clippy::async_yields_async,
    reason = "futures are polled on a runtime and awaited on a thread without one"
)]

use tollgate::limiter::Wait;
use tollgate_tests::{
    bare_thread::{block_on, on_bare_thread},
    prelude::*,
};

use crate::outgoing::{redis::on, support::*};

fn runtimes() -> [Runtime; 2] {
    [current_thread(), multi_thread(1)]
}

/// A wait with more time than any refill takes.
fn wait(limiter: &Limiter) -> Wait {
    limiter.wait(KEY, secs(36_000))
}

fn hourly(quota: &str) -> Policy {
    window("p", quota)
}

/// A server whose clock stands still.
fn server() -> Server {
    crate::outgoing::redis::server().1
}

/// Awaits a wait on a thread without a runtime.
fn awaited(waiter: Waiter) -> Result<Admission, Rejected> {
    on_bare_thread(move || block_on(waiter))
}

#[track_caller]
fn lacks_a_runtime(result: Result<Admission, Rejected>) {
    let rejected = result.expect_err("a rejection");
    let kind = rejected.decision().kind();
    let lacks = matches!(kind, DecisionKind::StoreFailed(StoreError::NoRuntime(_)));
    assert!(lacks, "{kind:?}");
}

#[test]
fn in_process_a_permit_is_not_lost_to_a_wait_that_leaves_its_runtime() {
    for awaits in [true, false] {
        for runtime in runtimes() {
            let limiter = limiter_on(MemoryStore::new(), [permits(1)]);
            let held = runtime.block_on(wait(&limiter).into_future());
            let waiter = runtime.block_on(async { queued(wait(&limiter)) });
            let releasing = thread::spawn(move || drop(held));
            if awaits {
                // It finds the permit, or tries too early and would have to wait again.
                match awaited(waiter) {
                    Ok(admission) => on_bare_thread(move || drop(admission)),
                    rejected => lacks_a_runtime(rejected),
                }
            } else {
                on_bare_thread(move || drop(waiter));
            }
            releasing.join().expect("no panic");
            assert_eq!(limiter.stats().policies[0].permits, 0);
            let next = on_bare_thread(move || block_on(wait(&limiter).into_future()));
            assert!(next.is_ok(), "{next:?}");
        }
    }
}

/// Its timers have ended with it, or stand still.
#[test]
fn a_wait_that_leaves_its_runtime_ends_by_its_timeout() {
    let on_another: fn(Waiter) -> _ = |waiter| current_thread().block_on(waiter);
    for awaited in [on_another, block_on] {
        for (ends, is_behind) in [(true, true), (true, false), (false, true), (false, false)] {
            let limiter = limiter_on(MemoryStore::new(), [permits(1)]);
            let left = current_thread();
            let held = left.block_on(wait(&limiter).into_future());
            let (ahead, waiter) = left.block_on(async {
                let ahead = is_behind.then(|| queued(wait(&limiter)));
                (ahead, queued(limiter.wait(KEY, ms(50))))
            });
            let still = Some(left).filter(|_| !ends);
            let rejected = on_bare_thread(move || awaited(waiter));
            assert!(rejected.is_err(), "{rejected:?}");
            drop((held, ahead, still));
        }
    }
}

#[test]
fn on_redis_a_wait_is_admitted_where_there_is_room_or_an_error_at_once_that_costs_nothing() {
    let server = server();
    let limiter = on(&server, [hourly("1/hour")]);
    let wait_here = || awaited(Box::pin(wait(&limiter).into_future()));
    let _ = wait_here().expect("there is room");
    lacks_a_runtime(wait_here());
    for runtime in runtimes() {
        // Behind another one, which waits.
        let first = runtime.block_on(async { queued(wait(&limiter)) });
        lacks_a_runtime(wait_here());
        runtime.block_on(async { drop(first) });
        assert_eq!(runtime.block_on(left(&limiter, "p")), 0);
        let reset = limiter.reset(KEY).into_future();
        let _ = runtime.block_on(reset).expect("a response");
        assert_eq!(runtime.block_on(left(&limiter, "p")), 1);
        let _ = wait_here().expect("there is room");
    }
}
