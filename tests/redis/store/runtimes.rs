//! A request is answered or failed within the store's timeout, whatever the application's runtimes, tasks and threads do, and what it
//! leaves is refunded. A store belongs to no runtime: it outlives them, and serves several.

#![expect(
    clippy::async_yields_async,
    reason = "futures are polled on one runtime and awaited on another"
)]

use std::{future::pending, sync::mpsc};

use futures_util::poll;
use tokio::{task::yield_now, time::timeout};
use tollgate::limiter::{CheckFuture, OnMisconfiguration};
use tollgate_tests::{
    bare_thread::{block_on, on_bare_thread},
    load,
    prelude::*,
};

use crate::store::support::*;

const TIMEOUT: Duration = ms(200);

/// A request that is made on this runtime.
fn check_on(runtime: &Runtime, limiter: &Limiter) -> Decision {
    runtime.block_on(limiter.check(KEY).into_future())
}

#[track_caller]
fn assert_serves(runtime: &Runtime, limiter: &Limiter) {
    let decision = check_on(runtime, limiter);
    assert!(admitted_by_store(&decision), "{decision:?}");
}

fn used_now(limiter: &Limiter) -> u64 {
    current_thread().block_on(used(limiter, KEY))[0]
}

/// Waits until so many units are used: a refund is not awaited where it is made.
fn until_used_now(limiter: &Limiter, units: u64) {
    current_thread().block_on(until_used(limiter, KEY, [units]));
}

/// Spawns so many checks that nothing awaits.
fn spawn_checks(limiter: &Limiter, checks: usize) {
    for _ in 0..checks {
        drop(tokio::spawn(limiter.check(KEY).into_future()));
    }
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
    assert_serves(&runtime, &limiter);
    assert_ne!(connections(), before);
}

/// Dropping the last handle closes its connections, in a runtime that goes on.
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

#[test]
fn runtimes_one_after_the_other_and_at_once_share_one_count() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "500/month");
    let pool = pool_of(server.url(), 8);
    for _ in 0..5 {
        for runtime in [current_thread(), multi_thread(1)] {
            assert_serves(&runtime, &limiter);
            // Connections of a shared pool may have been made in a runtime that has ended.
            let store = RedisStore::builder().pool(pool.clone());
            let store = store.timeout(TEST_TIMEOUT).built();
            let shares = load::limiter(store, [StrategyKind::Gcra.policy("p", "500/month")]);
            assert_serves(&runtime, &shares);
        }
    }
    let threads = [0, 1].map(|_| {
        let limiters = [limiter.clone()];
        thread::spawn(move || current_thread().block_on(hammer(&limiters, KEY, 16, 1_000)))
    });
    let admitted = threads.map(|thread| thread.join().expect("a thread ends well"));
    assert_eq!(admitted.iter().sum::<u64>(), 480, "{admitted:?}");
}

#[test]
fn a_refund_a_reset_and_a_check_of_one_task_are_made_in_their_order() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "10/month");
    for runtime in [current_thread(), multi_thread(1)] {
        runtime.block_on(async {
            for _ in 0..100 {
                let mut charged = limiter.check(KEY).cost(4).await;
                assert!(admitted_by_store(&charged));
                charged.refund(4).await.expect("a response");
                assert_eq!(used(&limiter, KEY).await, [0]);
                assert!(limiter.check(KEY).cost(10).await.is_admitted());
                let _before = limiter.reset(KEY).await.expect("a response");
            }
        });
    }
}

/// Between two `block_on`s nothing drives a current-thread runtime, and a runtime whose only thread is blocked has no other one. A
/// runtime that ends takes its tasks along, those that wait for a reply too.
#[test]
fn a_runtime_that_stands_still_is_blocked_or_ends_delays_and_fails_no_request_of_another() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "1000000000/month");
    let (still, blocked) = (current_thread(), multi_thread(1));
    assert!(still.block_on(limiter.health_check()).is_healthy());
    for runtime in [&still, &blocked] {
        assert_serves(runtime, &limiter);
    }
    still.block_on(async { spawn_checks(&limiter, 10) });
    let (unblock, wait) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let block = blocked.spawn(async move {
        begun.send(()).expect("the test waits");
        wait.recv().expect_err("the test drops the other end");
    });
    begins.recv().expect("it is blocked");
    let is_over = Arc::new(AtomicBool::new(false));
    let (theirs, ends) = (limiter.clone(), is_over.clone());
    let others = thread::spawn(move || {
        let (runtime, mut decisions) = (current_thread(), 0);
        while !ends.load(Ordering::SeqCst) || decisions == 0 {
            let checks = (0..8).map(|_| theirs.check(KEY).into_future());
            for decision in runtime.block_on(join_all(checks)) {
                assert!(admitted_by_store(&decision), "{decision:?}");
                decisions += 1;
            }
        }
    });
    for _ in 0..20 {
        let ending = multi_thread(1);
        assert_serves(&ending, &limiter);
        ending.block_on(async { spawn_checks(&limiter, 50) });
        ending.shutdown_background();
    }
    is_over.store(true, Ordering::SeqCst);
    others.join().expect("the store decides each");
    drop(unblock);
    blocked.block_on(block).expect("no panic");
    for runtime in [&still, &blocked] {
        assert_serves(runtime, &limiter);
    }
}

/// A store with this timeout, and no breaker.
fn impatient_store(server: &Server, deadline: Duration) -> RedisStore {
    let store = RedisStore::builder().url(server.url()).timeout(deadline);
    let store = store.rejection_cache_staleness(Duration::ZERO);
    store.no_circuit_breaker().built()
}

fn impatient(server: &Server, deadline: Duration) -> Limiter {
    let policy = StrategyKind::Fixed.policy("p", "1000000/month");
    load::limiter(impatient_store(server, deadline), [policy])
}

/// A check on this runtime that the store decides: the first may take longer than the timeout on a busy machine.
fn connect(runtime: &Runtime, limiter: &Limiter) {
    runtime.block_on(until("it is connected", async || {
        limiter.check("first").await.source() == DecisionSource::Store
    }));
}

/// A check that was polled in `runtime`, which is driven no more: it is not sent yet.
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
fn a_check_of_a_runtime_that_stands_still_fails_by_its_deadline_wherever_it_is_awaited() {
    let server = Server::start();
    let patient = impatient(&server, TEST_TIMEOUT);
    let ways: [fn(CheckFuture) -> Decision; 4] = [
        |check| awaited_in(&current_thread(), check),
        |check| awaited_in(&multi_thread(1), check),
        block_on::<CheckFuture>,
        |check| runtime_without_timers().block_on(check),
    ];
    for is_sent in [false, true] {
        for awaited in ways {
            server.flush();
            let (limiter, still) = (impatient(&server, TIMEOUT), current_thread());
            connect(&still, &limiter);
            if is_sent {
                server.pause();
            }
            let check = asked_in(&still, &limiter);
            if is_sent {
                still.block_on(async {
                    for _ in 0..10 {
                        yield_now().await;
                    }
                });
            }
            let decision = on_bare_thread(move || awaited(check));
            assert!(matches!(store_error(&decision), StoreError::Timeout { .. }));
            server.resume();
            if !is_sent {
                // It is not sent when the runtime moves on.
                connect(&still, &patient);
                still.block_on(async { yield_now().await });
                assert_eq!(used_now(&patient), 0);
            }
        }
    }
    // As with `tower::buffer`: a worker calls the service, and the caller awaits its response.
    let still = current_thread();
    let policy = StrategyKind::Gcra.policy("p", "9/month");
    let policy = policy.key(extract::global());
    let limiter = load::limiter(impatient_store(&server, TIMEOUT), [policy]);
    let handler = async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()));
    let mut service = RateLimitLayer::new(limiter).layer(service_fn(handler));
    let response = still.block_on(async {
        let Ok(service) = service.ready().await;
        service.call(Request::new(()))
    });
    let response = current_thread().block_on(async { timeout(TEST_TIMEOUT, response).await });
    let Ok(response) = response.expect("a result by the deadline");
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// A handler that hashes passwords, say, blocks the whole runtime for longer than the request has time. On a machine that is too slow
/// it fails all the same.
#[test]
fn a_check_whose_runtime_is_blocked_past_its_deadline_costs_what_its_decision_says() {
    let server = Server::start();
    let (runtime, limiter) = (current_thread(), impatient(&server, TIMEOUT));
    connect(&runtime, &limiter);
    let decision = runtime.block_on(async {
        let mut check = limiter.check(KEY).into_future();
        assert!(poll!(&mut check).is_pending());
        thread::sleep(2 * TIMEOUT);
        check.await
    });
    match decision.kind() {
        DecisionKind::StoreFailed(StoreError::Timeout { .. }) => {}
        _ => assert!(admitted_by_store(&decision), "{decision:?}"),
    }
    let charged = u64::from(decision.is_admitted());
    let used = used_now(&impatient(&server, TEST_TIMEOUT));
    assert!((charged..=1).contains(&used));
}

/// First before there is a connection, then with all connections made. Each request's deadline counts from its own arrival, not from
/// its batch's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_replies_holds_no_request_past_its_own_deadline() {
    let server = Server::start();
    let limiter = impatient(&server, TIMEOUT);
    for _ in 0..2 {
        server.pause();
        let requests = (0..20).flat_map(|_| 0..50_u64).map(|key| {
            let limiter = limiter.clone();
            async move {
                let start = Instant::now();
                let decision = limiter.check(key).await;
                assert!(matches!(store_error(&decision), StoreError::Timeout { .. }));
                start.elapsed()
            }
        });
        let mut tasks = Vec::new();
        for (number, request) in requests.enumerate() {
            if number % 50 == 0 {
                tokio::time::sleep(TIMEOUT / 20).await;
            }
            tasks.push(tokio::spawn(request));
        }
        assert!(all(tasks).await.iter().all(|time| *time >= TIMEOUT));
        server.resume();
        until("the store counts again", async || {
            limiter.check(KEY).await.source() == DecisionSource::Store
        })
        .await;
    }
}

/// Some are dropped before the connection of their runtime is, and some after it.
#[test]
fn what_the_tasks_of_an_ending_runtime_drop_is_refunded() {
    const MANY: u64 = 64;
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "1000/month");
    for threads in [1, 2, 3, 1, 2, 3] {
        let ending = multi_thread(threads);
        ending.block_on(async {
            let mut unread: Vec<_> = (0..MANY)
                .map(|_| limiter.check(KEY).into_future())
                .collect();
            server.pause();
            for check in &mut unread {
                assert!(check.now_or_never().is_none());
            }
            server.resume();
            until_used(&limiter, KEY, [MANY]).await;
            for check in unread {
                drop(tokio::spawn(async move {
                    pending::<()>().await;
                    drop(check);
                }));
            }
        });
        drop(ending);
        let runtime = current_thread();
        let sent = runtime.block_on(limiter.shutdown(TEST_TIMEOUT));
        sent.expect("nothing is left");
        assert_eq!(runtime.block_on(used(&limiter, KEY)), [0]);
    }
}

#[test]
fn a_check_that_is_dropped_unread_on_a_thread_without_a_runtime_costs_nothing() {
    let server = Server::start();
    for runtime in [current_thread(), multi_thread(1)] {
        let limiter = impatient(&server, TEST_TIMEOUT);
        let check = runtime.block_on(async {
            let mut check = limiter.check(KEY).into_future();
            server.pause();
            assert!(poll!(&mut check).is_pending());
            server.resume();
            // Results come in the order of the requests.
            assert_eq!(used(&limiter, KEY).await, [1]);
            check
        });
        on_bare_thread(move || drop(check));
        runtime.block_on(until_used(&limiter, KEY, [0]));
    }
}

/// A limiter of so many requests in flight.
fn permits(server: &Server, permits: u64) -> Limiter {
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let hour = Concurrency::with_ttl(secs(3_600));
    let policy = Policy::new("p", Quota::concurrent(permits));
    load::limiter(store.built(), [policy.strategy(hour)])
}

/// A permit is held on a runtime, which is driven no more when this returns.
fn held(runtime: &Runtime, limiter: &Limiter) -> Decision {
    let decision = check_on(runtime, limiter);
    assert!(admitted_by_store(&decision));
    decision
}

/// As another process sees it.
#[test]
fn permits_of_runtimes_that_stand_still_or_end_are_freed() {
    let server = Server::start();
    let other = permits(&server, 3);
    for ends in [false, true] {
        let (limiter, early, late) = (permits(&server, 3), current_thread(), current_thread());
        let (outside, last) = (held(&early, &limiter), held(&late, &limiter));
        late.block_on(async { drop(last) });
        let _still = (!ends).then_some((early, late));
        drop(outside);
        until_used_now(&other, 0);

        let [runtime, without_timers] = [current_thread(), runtime_without_timers()];
        let [first, second] = [(); 2].map(|()| held(&runtime, &limiter));
        without_timers.block_on(async { drop(first) });
        until_used_now(&limiter, 1);
        // The limiter is the last owner of its store.
        runtime.block_on(async {
            drop(second);
            drop(limiter);
        });
        let _still = (!ends).then_some(runtime);
        until_used_now(&other, 0);
    }
}

fn runtime_without_timers() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

/// Some of them are in flight, and the others queue behind those; and the server has charged one that no task is left to hold.
#[test]
fn permits_whose_release_or_reply_an_ended_runtime_awaited_are_freed() {
    const MANY: u64 = 1_000;
    let server = Server::start();
    let (limiter, other) = (permits(&server, MANY), permits(&server, MANY));
    let ended = current_thread();
    let checks = (0..MANY).map(|_| limiter.check(KEY).into_future());
    let held = ended.block_on(join_all(checks));
    assert!(held.iter().all(admitted_by_store));
    server.pause();
    ended.block_on(async {
        drop(held);
        yield_now().await;
    });
    drop(ended);
    server.resume();
    until_used_now(&other, 0);

    let proxy = Proxy::to(server.addr());
    let store = store_at(format!("redis://{}", proxy.addr()));
    let policy = Policy::new("p", Quota::concurrent(MANY));
    let policy = policy.strategy(Concurrency::with_ttl(secs(3_600)));
    let awaited = load::limiter(store, [policy]);
    let ending = current_thread();
    ending.block_on(async {
        assert_eq!(used(&awaited, KEY).await, [0]);
        proxy.delay(TEST_TIMEOUT);
        spawn_checks(&awaited, 1);
        until_used(&other, KEY, [1]).await;
    });
    drop(ending);
    proxy.pass();
    until_used_now(&other, 0);
}

#[test]
fn in_a_runtime_without_timers_or_without_io_the_store_is_misconfigured() {
    let runtimes = [
        Builder::new_current_thread().enable_io().build(),
        Builder::new_current_thread().enable_time().build(),
    ];
    for unsuitable in runtimes {
        let (unsuitable, server) = (unsuitable.expect("a runtime"), Server::start());
        let actions = [OnMisconfiguration::Reject, OnMisconfiguration::AsStoreError];
        let [rejects, admits] = actions.map(|action| {
            let builder = Limiter::builder().store(store(&server));
            let policies = [StrategyKind::Gcra.policy("p", "10/h")];
            stores::limiter(builder.on_misconfiguration(action), policies)
        });
        // Also once it has connections, in another runtime.
        for used_units in [1, 2] {
            let error = store_error(&check_on(&unsuitable, &rejects));
            assert!(matches!(error, StoreError::NoRuntime(_)), "{error:?}");
            let admitted = check_on(&unsuitable, &admits);
            assert!(admitted.is_admitted());
            assert_eq!(admitted.source(), DecisionSource::Fallback);
            let health = unsuitable.block_on(rejects.health_check());
            assert!(!health.is_healthy());
            let charge = unsuitable.block_on(rejects.charge(KEY, 1).into_future());
            let error = store_error(&charge);
            assert!(matches!(error, StoreError::NoRuntime(_)), "{error:?}");
            assert_serves(&multi_thread(1), &rejects);
            // Nothing was kept to be charged later.
            let sent = current_thread().block_on(rejects.shutdown(TEST_TIMEOUT));
            sent.expect("nothing is left");
            assert_eq!(used_now(&admits), used_units);
        }
    }
}

/// Makes decisions in a loop, beside a task that does nothing but count them: tokio gives a task 128 before it has to yield.
async fn assert_yields(what: &str, mut decide: impl AsyncFnMut()) {
    let (made, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let other = tokio::spawn({
        let (made, most) = (made.clone(), most.clone());
        async move {
            loop {
                let before = made.load(Ordering::Relaxed);
                yield_now().await;
                most.fetch_max(made.load(Ordering::Relaxed) - before, Ordering::Relaxed);
            }
        }
    });
    yield_now().await;
    for _ in 0..10_000 {
        decide().await;
        made.fetch_add(1, Ordering::Relaxed);
    }
    yield_now().await;
    other.abort();
    let most = most.load(Ordering::Relaxed);
    assert!(
        (1..=128).contains(&most),
        "{what}: {most} between two turns"
    );
}

#[tokio::test]
async fn decisions_that_are_made_without_a_call_leave_the_other_tasks_of_a_thread_their_turns() {
    let policy = |units| [Policy::new("p", Quota::requests(units).per_month())];
    let in_process = |units| stores::limiter(Limiter::builder(), policy(units));
    let [open, closed] = [1_000_000, 1].map(in_process);
    assert!(closed.check(KEY).await.is_admitted());
    let server = Server::start();
    let cached = RedisStore::builder().rejection_cache_staleness(secs(3_600));
    let cached = load::limiter(cached.url(server.url()).built(), policy(1));
    let failed = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let failed = load::limiter(failed, policy(1));
    until("a rejection is cached", async || {
        cached.check(KEY).await.source() == DecisionSource::RejectionCache
    })
    .await;
    // From then on no decision waits for a call: one that did would add to those of the turn in which it ends.
    until("the breaker is open", async || {
        store_error(&failed.check(KEY).await);
        let check = failed.check(KEY).into_future();
        check.now_or_never().is_some()
    })
    .await;
    for (what, limiter) in [
        ("admitted", &open),
        ("rejected", &closed),
        ("cached", &cached),
        ("failed", &failed),
    ] {
        assert_yields(what, async || drop(limiter.check(KEY).await)).await;
    }
    let late = async || drop(closed.wait(KEY, Duration::ZERO).await.expect_err("no room"));
    assert_yields("late", late).await;
    let mut decision = open.check(KEY).cost(10_000).await;
    let refund = async || drop(decision.refund(1).await.expect("a response"));
    assert_yields("refunded", refund).await;
}
