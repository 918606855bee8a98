//! A current-thread runtime that is not driven delays neither the requests that left it nor their refunds, whether or not another
//! runtime of the process uses the store.

#![expect(
    clippy::async_yields_async,
    reason = "futures are polled on one runtime and awaited on another"
)]

use std::task::{Context, Wake, Waker};

use futures_util::poll;
use tokio::time::timeout;
use tollgate::limiter::CheckFuture;
use tollgate_tests::{
    bare_thread::{block_on, on_bare_thread},
    prelude::*,
};
use tower::Service;

use crate::store::support::*;

const TIMEOUT: Duration = ms(200);

fn store(server: &Server, deadline: Duration) -> RedisStore {
    let store = RedisStore::builder().url(server.url()).timeout(deadline);
    let store = store.rejection_cache_staleness(Duration::ZERO);
    store.no_circuit_breaker().built()
}

fn single(server: &Server, deadline: Duration) -> Limiter {
    let policy = StrategyKind::Fixed.policy("p", "100/month");
    limiter(store(server, deadline), [policy])
}

/// A check on this runtime that the store decides: the first may take longer than the timeout on a busy machine.
fn connect(runtime: &Runtime, limiter: &Limiter) {
    runtime.block_on(until("it is connected", async || {
        limiter.check("first").await.source() == DecisionSource::Store
    }));
}

/// What is used, by a store with a timeout that is not the subject.
fn used_now(server: &Server) -> u64 {
    let limiter = single(server, TEST_TIMEOUT);
    current_thread().block_on(used(&limiter, KEY))[0]
}

/// A check that was polled in `runtime`, and is not sent yet.
fn asked_in(runtime: &Runtime, limiter: &Limiter) -> CheckFuture {
    runtime.block_on(async {
        let mut check = limiter.check(KEY).into_future();
        assert!(poll!(&mut check).is_pending());
        check
    })
}

/// The decision of a check that is awaited on another runtime.
fn awaited_in(runtime: &Runtime, check: CheckFuture) -> Decision {
    let decision = runtime.block_on(async { timeout(TEST_TIMEOUT, check).await });
    decision.expect("a result by the deadline")
}

#[test]
fn a_check_awaited_on_another_runtime_completes_by_its_deadline() {
    let server = Server::start();
    for other in [current_thread(), multi_thread(1)] {
        for known in [false, true] {
            server.flush();
            let limiter = single(&server, TIMEOUT);
            let still = current_thread();
            connect(&still, &limiter);
            if known {
                connect(&other, &limiter);
            }
            let decision = awaited_in(&other, asked_in(&still, &limiter));
            assert!(matches!(store_error(&decision), StoreError::Timeout));
            // It is not sent when the runtime moves on.
            connect(&still, &single(&server, TEST_TIMEOUT));
            still.block_on(async { tokio::task::yield_now().await });
            assert_eq!(used_now(&server), 0);
        }
    }
}

/// A thread has one waker for all runtimes of which it awaits a task by their handles.
#[test]
fn a_check_awaited_by_one_thread_on_two_runtimes_completes_by_its_deadline() {
    let server = Server::start();
    let (still, other) = (current_thread(), multi_thread(1));
    let limiter = single(&server, TIMEOUT);
    connect(&still, &limiter);
    let check = still.handle().block_on(async {
        let mut check = limiter.check(KEY).into_future();
        assert!(poll!(&mut check).is_pending());
        check
    });
    let decision = awaited_in(&other, check);
    assert!(matches!(store_error(&decision), StoreError::Timeout));
}

#[test]
fn a_check_sent_by_a_stalled_runtime_completes_by_its_deadline_too() {
    let server = Server::start();
    let (still, other) = (current_thread(), multi_thread(1));
    let limiter = single(&server, TIMEOUT);
    connect(&still, &limiter);
    server.pause();
    let check = asked_in(&still, &limiter);
    // It is sent.
    still.block_on(async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
    let decision = awaited_in(&other, check);
    assert!(matches!(store_error(&decision), StoreError::Timeout));
    server.resume();
    connect(&still, &limiter);
}

#[test]
fn a_check_awaited_without_timers_completes_by_its_deadline() {
    let without_a_runtime = block_on::<CheckFuture>;
    let without_timers = |check: CheckFuture| {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(check)
    };
    let server = Server::start();
    let still = current_thread();
    let limiter = single(&server, TIMEOUT);
    for awaited in [without_a_runtime, without_timers] {
        let check = asked_in(&still, &limiter);
        let decision = on_bare_thread(move || awaited(check));
        assert!(matches!(store_error(&decision), StoreError::Timeout));
    }
}

/// As `tower::buffer` does: a worker calls the service, and the caller awaits its response.
#[test]
fn a_layers_request_awaited_on_another_runtime_completes_by_its_deadline() {
    let server = Server::start();
    let (still, other) = (current_thread(), multi_thread(1));
    let policy = StrategyKind::Gcra.policy("p", "9/month");
    let limiter = limiter(store(&server, TIMEOUT), [policy.key(extract::global())]);
    let mut service = RateLimitLayer::new(limiter).layer(service_fn(hello));
    let response = still.block_on(async {
        let Ok(service) = service.ready().await;
        service.call(Request::new(()))
    });
    let response = other.block_on(async { timeout(TEST_TIMEOUT, response).await });
    let Ok(response) = response.expect("a result by the deadline");
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// A limiter of so many requests in flight.
fn permit_limiter(store: RedisStore, permits: u64) -> Limiter {
    let hour = Concurrency::with_ttl(secs(3_600));
    let policy = Policy::new("p", Quota::concurrent(permits));
    limiter(store, [policy.strategy(hour)])
}

/// One on a store of its own.
fn permits(server: &Server) -> Limiter {
    permit_limiter(store(server, TEST_TIMEOUT), 3)
}

/// A permit is held on `runtime`, which is driven no more when this returns.
async fn held(limiter: &Limiter) -> Decision {
    let decision = limiter.check(KEY).await;
    assert!(admitted_by_store(&decision));
    decision
}

/// Waits on this runtime until no permit is held.
fn until_all_are_free(runtime: &Runtime, limiter: &Limiter) {
    runtime.block_on(until("all are free", async || {
        used(limiter, KEY).await == [0]
    }));
}

#[test]
fn a_permit_dropped_in_a_runtime_without_timers_is_freed_by_another() {
    let server = Server::start();
    let limiter = permits(&server);
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    let (ended, other) = (current_thread(), current_thread());
    let [first, second] = [(); 2].map(|()| ended.block_on(held(&limiter)));
    without_timers.block_on(async { drop(first) });
    drop(ended);
    // No runtime is left that could send it.
    without_timers.block_on(async { drop(second) });
    until_all_are_free(&other, &limiter);
}

/// As another process sees it, and another runtime of this one.
#[test]
fn permits_of_a_runtime_that_stalls_or_ends_are_freed() {
    let server = Server::start();
    for ends in [false, true] {
        for other in [None, Some(current_thread()), Some(multi_thread(1))] {
            server.flush();
            let limiter = permits(&server);
            // Either may have been the first.
            let (early, late) = (current_thread(), current_thread());
            let outside = early.block_on(held(&limiter));
            if let Some(other) = &other {
                assert_eq!(other.block_on(used(&limiter, KEY)), [1]);
            }
            late.block_on(async { drop(held(&limiter).await) });
            early.block_on(async { drop(held(&limiter).await) });
            let _stalled = (!ends).then_some((early, late));
            drop(outside);
            match other {
                Some(other) => until_all_are_free(&other, &limiter),
                None => until_all_are_free(&current_thread(), &permits(&server)),
            }
        }
    }
}

/// The limiter is the last owner of its store.
#[test]
fn a_permit_that_is_dropped_right_before_its_limiter_is_freed() {
    let server = Server::start();
    for ends in [false, true] {
        let (limiter, runtime) = (permits(&server), current_thread());
        let permit = runtime.block_on(held(&limiter));
        runtime.block_on(async {
            drop(permit);
            drop(limiter);
        });
        let _stalled = (!ends).then_some(runtime);
        until_all_are_free(&current_thread(), &permits(&server));
    }
}

/// The server has charged it, and no task is left that could hold it.
#[test]
fn a_permit_that_a_runtime_awaited_when_it_ended_is_freed_by_another() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let through_proxy = RedisStore::builder().url(format!("redis://{}", proxy.addr()));
    let awaited = permit_limiter(through_proxy.timeout(TEST_TIMEOUT).built(), 3);
    let other = permits(&server);
    let ending = current_thread();
    ending.block_on(async {
        assert_eq!(used(&awaited, KEY).await, [0]);
        proxy.delay(TEST_TIMEOUT);
        drop(tokio::spawn(awaited.check(KEY).into_future()));
        until("it is charged", async || used(&other, KEY).await == [1]).await;
    });
    drop(ending);
    proxy.pass();
    until_all_are_free(&current_thread(), &other);
}

/// Some of them are in flight, and the others queue behind those.
#[test]
fn permits_whose_release_an_ended_runtime_had_begun_are_freed_by_another() {
    const MANY: u64 = 1_000;
    let server = Server::start();
    let limiter = permit_limiter(store(&server, TEST_TIMEOUT), MANY);
    let (ended, other) = (current_thread(), current_thread());
    let checks = (0..MANY).map(|_| limiter.check(KEY).into_future());
    let held = ended.block_on(join_all(checks));
    assert!(held.iter().all(admitted_by_store));
    assert_eq!(other.block_on(used(&limiter, KEY)), [MANY]);
    server.pause();
    ended.block_on(async {
        drop(held);
        tokio::task::yield_now().await;
    });
    drop(ended);
    server.resume();
    until_all_are_free(&other, &limiter);
}

/// Records when a future was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_check_that_is_dropped_unread_on_a_thread_without_a_runtime_costs_nothing() {
    let server = Server::start();
    for runtime in [current_thread(), multi_thread(1)] {
        server.flush();
        let limiter = single(&server, TEST_TIMEOUT);
        let check = runtime.block_on(async {
            let mut check = limiter.check(KEY).into_future();
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(woken.clone());
            let mut pinned = Box::pin(&mut check);
            server.pause();
            let polled = pinned.as_mut().poll(&mut Context::from_waker(&waker));
            server.resume();
            assert!(polled.is_pending());
            drop(pinned);
            until("it has a result", async || woken.0.load(Ordering::SeqCst)).await;
            check
        });
        assert_eq!(runtime.block_on(used(&limiter, KEY)), [1]);
        thread::spawn(move || drop(check)).join().expect("a thread");
        runtime.block_on(until("it is refunded", async || {
            used(&limiter, KEY).await == [0]
        }));
    }
}

/// The whole runtime is blocked for longer than the request has time, before it is sent. It has one more timeout, since the server
/// is not to blame: on a machine that is too slow it fails all the same.
#[test]
fn a_check_whose_runtime_is_blocked_past_its_deadline_costs_what_its_decision_says() {
    let server = Server::start();
    let runtime = current_thread();
    let limiter = single(&server, TIMEOUT);
    connect(&runtime, &limiter);
    let decision = runtime.block_on(async {
        let mut check = limiter.check(KEY).into_future();
        assert!(poll!(&mut check).is_pending());
        thread::sleep(2 * TIMEOUT);
        check.await
    });
    match decision.kind() {
        DecisionKind::StoreFailed(StoreError::Timeout) => {}
        _ => assert!(admitted_by_store(&decision), "{decision:?}"),
    }
    let charged = u64::from(decision.is_admitted());
    assert!((charged..=1).contains(&used_now(&server)));
}
