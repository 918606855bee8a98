//! A store belongs to no runtime: it serves requests of any runtime, and of threads without one, and outlives those that end.

#![expect(
    clippy::async_yields_async,
    reason = "futures are polled on one runtime and awaited on another"
)]

use std::future::pending;

use futures_util::poll;
use tokio::task::{coop::unconstrained, yield_now};
use tollgate::limiter::CheckFuture;
use tollgate_tests::{
    bare_thread::{block_on, on_bare_thread},
    load,
    prelude::*,
};

use crate::store::support::*;

fn runtime_without_timers_and_io() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

/// A limiter of so many requests in flight.
fn permits(server: &Server, permits: u64) -> Limiter {
    let hour = Concurrency::with_ttl(secs(3_600));
    let policy = Policy::new("p", Quota::concurrent(permits));
    load::limiter(store(server), [policy.strategy(hour)])
}

/// Waits until so many units are used: a refund is not awaited where it is made.
fn until_used_now(limiter: &Limiter, units: u64) {
    current_thread().block_on(until_used(limiter, KEY, [units]));
}

#[test]
fn a_store_is_built_outside_any_runtime_and_connects_with_the_first_request() {
    let server = Server::start();
    let connections = || server.info("stats", "total_connections_received");
    let before = connections();
    let limiter = single(&server, StrategyKind::Gcra, "10/h");
    let runtime = multi_thread(1);
    runtime.block_on(async {
        // Creating a check sends nothing, until it is awaited.
        drop(limiter.check(KEY).into_future());
        yield_now().await;
    });
    assert_eq!(connections(), before);
    let decision = runtime.block_on(limiter.check(KEY).into_future());
    assert!(admitted_by_store(&decision));
    assert_ne!(connections(), before);
}

#[tokio::test]
async fn a_store_that_is_dropped_closes_its_connections() {
    let server = Server::start();
    let connected = || server.command(&["CLIENT", "LIST"]).text().lines().count();
    let before = connected();
    let limiter = single(&server, StrategyKind::Gcra, "100/h");
    assert!(admitted_by_store(&limiter.check(KEY).await));
    assert!(connected() > before);
    drop(limiter);
    until("they are closed", async || connected() == before).await;
}

/// Awaited on a runtime of any kind, or on a thread without one, while the runtime that polled it first stands still or has ended.
#[test]
fn a_check_is_decided_wherever_it_is_awaited() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "1000/month");
    let ways: [fn(CheckFuture) -> Decision; 4] = [
        |check| current_thread().block_on(check),
        |check| multi_thread(1).block_on(check),
        |check| runtime_without_timers_and_io().block_on(check),
        block_on::<CheckFuture>,
    ];
    for awaited in ways {
        let check = limiter.check(KEY).into_future();
        let decision = on_bare_thread(move || awaited(check));
        assert!(admitted_by_store(&decision), "{decision:?}");
        for ends in [false, true] {
            let first = current_thread();
            let check = first.block_on(async {
                let mut check = limiter.check(KEY).into_future();
                server.pause();
                assert!(poll!(&mut check).is_pending());
                server.resume();
                check
            });
            let _still = Some(first).filter(|_| !ends);
            let decision = on_bare_thread(move || awaited(check));
            assert!(admitted_by_store(&decision), "{decision:?}");
        }
    }
    until_used_now(&limiter, 12);
}

/// Its deadline does not need the timers of a runtime.
#[test]
fn a_check_without_a_reply_fails_by_the_stores_timeout_wherever_it_is_awaited() {
    let server = Server::start();
    let store = RedisStore::builder().url(server.url()).timeout(ms(200));
    let policy = StrategyKind::Fixed.policy("p", "1000000/month");
    let limiter = load::limiter(store.no_circuit_breaker().built(), [policy]);
    let ways: [fn(CheckFuture) -> Decision; 3] = [
        |check| current_thread().block_on(check),
        |check| runtime_without_timers_and_io().block_on(check),
        block_on::<CheckFuture>,
    ];
    server.pause();
    for awaited in ways {
        let still = current_thread();
        let start = Instant::now();
        let check = still.block_on(async {
            let mut check = limiter.check(KEY).into_future();
            assert!(poll!(&mut check).is_pending());
            check
        });
        let decision = on_bare_thread(move || awaited(check));
        assert!(matches!(store_error(&decision), StoreError::Timeout { .. }));
        assert!(start.elapsed() >= ms(200));
    }
    server.resume();
}

#[test]
fn a_refund_a_reset_and_a_check_of_one_task_are_made_in_their_order() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "10/month");
    current_thread().block_on(async {
        for _ in 0..100 {
            let charged = limiter.admit(KEY).cost(4).await;
            assert!(admitted_by_store(&charged));
            charged.expect("room").refund(4).await.expect("a response");
            assert_eq!(used(&limiter, KEY).await, [0]);
            assert!(limiter.check(KEY).cost(10).await.is_admitted());
            let _before = limiter.reset(KEY).await.expect("a response");
        }
    });
}

/// Some of the permits are held, some are charged and unread, and the replies to some are awaited.
#[test]
fn an_ended_runtime_leaves_no_permit() {
    const MANY: u64 = 300;
    let server = Server::start();
    let (limiter, other) = (permits(&server, MANY), permits(&server, MANY));
    for runtime in [current_thread(), multi_thread(2)] {
        runtime.block_on(async {
            let held = join_all((0..MANY / 3).map(|_| limiter.admit(KEY).into_future())).await;
            assert!(held.iter().all(admitted_by_store));
            let mut unread: Vec<_> = (0..MANY / 3)
                .map(|_| limiter.admit(KEY).into_future())
                .collect();
            // The task's budget may be used up by now, and a reply may come at once.
            let polls = unread.iter_mut().map(unconstrained);
            let read: Vec<_> = polls.filter_map(FutureExt::now_or_never).collect();
            until_used(&other, KEY, [2 * MANY / 3]).await;
            server.pause();
            for _ in 0..MANY / 3 {
                drop(tokio::spawn(limiter.admit(KEY).into_future()));
            }
            yield_now().await;
            drop(tokio::spawn(async move {
                pending::<()>().await;
                drop((held, unread, read));
            }));
            yield_now().await;
        });
        drop(runtime);
        server.resume();
        until_used_now(&other, 0);
    }
}
