//! Permits that are renewed, and those that are not.

use tollgate_tests::{bare_thread::on_bare_thread, prelude::*};

use crate::inflight::support::*;

/// `PERMIT_TTL` is 300 ms.
#[tokio::test]
async fn held_permits_are_renewed_beyond_their_ttl_and_those_that_expired_are_not() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        let held = fill(&limiter).await;
        for _ in 0..3 {
            world.advance(PERMIT_TTL * 9 / 10);
            until_heartbeats(&world, 10).await;
            assert!(!admitted_by_store(&check(&limiter).await));
        }
        drop(held);
        until_free(&limiter, 10).await;
        // All of a request for several.
        let several = limiter.check(KEY).cost(2).times(3).await;
        for _ in 0..2 {
            world.advance(PERMIT_TTL * 9 / 10);
            until_heartbeats(&world, 6).await;
        }
        assert_eq!((several.admitted(), free(&limiter).await), (3, 4));
        drop(several);
        until_free(&limiter, 10).await;
        // A heartbeat that comes too late revives nothing, and takes no others' permits.
        let late = fill(&limiter).await;
        world.advance(PERMIT_TTL);
        until_heartbeats(&world, 10).await;
        assert_eq!(free(&limiter).await, 10);
        let others = fill(&limiter).await;
        drop(late);
        assert_eq!(free(&limiter).await, 0);
        drop(others);
        until_free(&limiter, 10).await;
        world.no_key_is_immortal();
    }
}

/// Advances the clock by several TTLs, as fast as heartbeats allow.
async fn advance_several_ttls(world: &World, held: u64) {
    for _ in 0..3 {
        world.advance(PERMIT_TTL * 9 / 10);
        until_heartbeats(world, held).await;
    }
}

async fn acquire(limiter: &Limiter) -> Decision {
    let decision = check(limiter).await;
    assert!(admitted_by_store(&decision), "{decision:?}");
    decision
}

/// As with one runtime per core: that of the first request ends, the others go on. One of one thread is stalled between its
/// `block_on`s.
#[test]
fn permits_are_renewed_when_the_runtime_that_acquired_the_first_has_ended_or_is_stalled() {
    for world in World::both() {
        for ends in [true, false] {
            let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
            let (one, other) = (current_thread(), multi_thread(1));
            let first = one.block_on(acquire(&limiter));
            let second = other.block_on(acquire(&limiter));
            one.block_on(async { drop(first) });
            one.block_on(until_free(&limiter, MAX_PERMITS - 1));
            let stalled = Some(one).filter(|_| !ends);
            other.block_on(advance_several_ttls(&world, 1));
            assert_eq!(other.block_on(free(&limiter)), MAX_PERMITS - 1);
            other.block_on(async { drop(second) });
            other.block_on(until_free(&limiter, MAX_PERMITS));
            drop(stalled);
        }
    }
}

/// Without permits there are no heartbeats: an idle application sends nothing.
#[tokio::test]
async fn nothing_is_sent_while_nothing_is_held() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
    let held = fill(&limiter).await;
    until_heartbeats(&world, MAX_PERMITS).await;
    drop(held);
    until_free(&limiter, MAX_PERMITS).await;
    server.reset_stats();
    tokio::time::sleep(PERMIT_TTL).await;
    assert_eq!(server.calls("evalsha"), 0);
}

/// What a runtime's tasks hold is dropped with them, when nothing can be sent any more.
#[test]
fn a_runtime_that_ends_with_requests_in_flight_does_end() {
    for world in World::both() {
        for own_runtime in [current_thread, || multi_thread(1)] {
            let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
            let held = limiter.clone();
            on_bare_thread(move || {
                let runtime = own_runtime();
                runtime.block_on(async {
                    for _ in 0..MAX_PERMITS {
                        let decision = acquire(&held).await;
                        tokio::spawn(async move {
                            std::future::pending::<()>().await;
                            drop(decision);
                        });
                    }
                    tokio::task::yield_now().await;
                });
            });
            world.advance(PERMIT_TTL);
            assert_eq!(current_thread().block_on(free(&limiter)), MAX_PERMITS);
        }
    }
}

/// Without timers, and without a runtime: the background thread renews them.
#[test]
fn permits_that_are_taken_where_no_task_could_renew_them_are_renewed_and_released() {
    let take = |limiter: &Limiter| -> Vec<Decision> {
        let check = || limiter.check(KEY);
        let call = |_| check().now().unwrap_or_else(|_| check().blocking());
        let held: Vec<_> = (0..MAX_PERMITS).map(call).collect();
        assert!(held.iter().all(admitted_by_store), "{held:?}");
        held
    };
    let (log, _guard) = Log::of_warnings();
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    let other = multi_thread(1);
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        for in_runtime in [false, true] {
            let on_thread = limiter.clone();
            let held = match in_runtime {
                false => on_bare_thread(move || take(&on_thread)),
                true => without_timers.block_on(async { take(&limiter) }),
            };
            other.block_on(advance_several_ttls(&world, MAX_PERMITS));
            assert_eq!(other.block_on(free(&limiter)), 0);
            on_bare_thread(move || drop(held));
            other.block_on(until_free(&limiter, MAX_PERMITS));
        }
    }
    assert_eq!(log.lines("can't be renewed").len(), 0, "{}", log.text());
}
