//! The breaker: an outage costs no deadlines, one probe finds out when it is over, and rejections are no failures.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use testkit::{Proxy, Server};
use tokio::task::coop::unconstrained;
use tollgate::{
    DecisionKind, DecisionSource, Key, Limiter, OnStoreError, RateLimitLayer, RedisStore,
    StoreError, extract,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::faults::support::{
    TIMEOUT, builder, limiter, nowhere, opened, policy, resumed, store, store_error, until, url,
};

/// The decision, which is made at once, without waiting. Many in turn would use up the budget of a tokio task.
#[track_caller]
fn decide_at_once(limiter: &Limiter) -> StoreError {
    let check = unconstrained(limiter.check(Key::new("whoever")).into_future());
    store_error(&check.now_or_never().expect("a result at once"))
}

fn rejecting(store: RedisStore) -> Limiter {
    limiter(store, 1_000_000, OnStoreError::Reject)
}

fn calls(server: &Server) -> u64 {
    server
        .info("commandstats", "cmdstat_evalsha")
        .and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok())
        .unwrap_or(0)
}

#[tokio::test]
async fn while_open_no_request_waits_and_redis_is_not_called() {
    let server = Server::start();
    let limiter = rejecting(store(&server));
    resumed(&limiter).await;
    server.kill();
    opened(&limiter).await;
    for _ in 0..1_000 {
        let error = decide_at_once(&limiter);
        let StoreError::CircuitOpen { retry_after, .. } = error else {
            panic!("{error:?}")
        };
        assert!(retry_after <= Duration::from_secs(1));
    }
    server.restart();
    resumed(&limiter).await;
}

/// A paused server replies to `PING`, and holds what may write: a probe has to do what requests do.
#[tokio::test]
async fn no_request_waits_until_its_deadline_for_a_probe_that_fails() {
    let server = Server::start();
    let limiter = rejecting(store(&server));
    resumed(&limiter).await;
    server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]).ok();
    opened(&limiter).await;
    // Several probes get no reply.
    let start = Instant::now();
    while start.elapsed() < 5 * TIMEOUT {
        decide_at_once(&limiter);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.command(&["CLIENT", "UNPAUSE"]).ok();
    resumed(&limiter).await;
}

#[tokio::test]
async fn three_consecutive_failures_open_it_and_two_do_not() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let store = builder(url(proxy.addr())).build().expect("a store");
    let limiter = rejecting(store);
    let check = || limiter.check(Key::new("key"));
    for _ in 0..3 {
        proxy.cut();
        for _ in 0..2 {
            let error = store_error(&check().await);
            assert!(matches!(error, StoreError::Connection(_)), "{error:?}");
        }
        proxy.pass();
        assert_eq!(check().await.source(), DecisionSource::Store);
    }
    proxy.cut();
    for _ in 0..3 {
        store_error(&check().await);
    }
    assert!(matches!(
        decide_at_once(&limiter),
        StoreError::CircuitOpen { .. }
    ));
}

#[tokio::test]
async fn rejections_and_errors_of_one_key_do_not_open_it() {
    let server = Server::start();
    let limiter = limiter(store(&server), 1, OnStoreError::Reject);
    let check = async |key: &str| limiter.check(Key::new(key)).await;
    assert!(check("mine").await.is_admitted());
    let [key] = &server.keys()[..] else {
        panic!("one key")
    };
    server.command(&["SET", key, "something else"]).ok();
    let _ = check("spent").await;
    for _ in 0..20 {
        let error = store_error(&check("mine").await);
        assert!(matches!(error, StoreError::CorruptKey { .. }), "{error:?}");
        let rejected = check("spent").await;
        assert_eq!(rejected.source(), DecisionSource::Store);
        assert!(matches!(rejected.kind(), DecisionKind::Rejected));
    }
    for _ in 0..20 {
        store_error(&check("mine").await);
    }
    assert!(check("fresh").await.is_admitted());
}

/// Requests that wait for a batch when it opens are decided, too.
#[tokio::test]
async fn a_request_queued_when_it_opens_does_not_wait_for_its_deadline() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let store = builder(url(proxy.addr())).timeout(Duration::from_secs(20));
    let limiter = rejecting(store.circuit_breaker_threshold(1).build().expect("a store"));
    resumed(&limiter).await;
    proxy.hold();
    let check = || tokio::spawn(limiter.check(Key::new("key")).into_future());
    let first = check();
    // It is in flight now, and the few others wait for it.
    tokio::task::yield_now().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let others: Vec<_> = (0..20).map(|_| check()).collect();
    tokio::task::yield_now().await;
    proxy.cut();
    proxy.hold();
    let error = store_error(&first.await.expect("a response"));
    assert!(matches!(error, StoreError::Connection(_)), "{error:?}");
    for other in others {
        let error = store_error(&other.await.expect("a response"));
        assert!(matches!(error, StoreError::CircuitOpen { .. }), "{error:?}");
    }
}

/// A request that is sent late has less than half of its time left. The first call takes most of the second one's time.
#[tokio::test]
async fn a_request_that_is_sent_with_little_time_left_does_not_open_it() {
    const TIME: Duration = Duration::from_secs(2);
    for _ in 0..5 {
        let server = Server::start();
        let proxy = Proxy::to(server.addr());
        let store = builder(url(proxy.addr()))
            .timeout(TIME)
            .circuit_breaker_threshold(1);
        let limiter = rejecting(store.build().expect("a store"));
        resumed(&limiter).await;
        let check = || tokio::spawn(limiter.check(Key::new("whoever")).into_future());
        proxy.delay(TIME * 7 / 10);
        let first = check();
        until("its reply is under way", async || proxy.delayed() == 1).await;
        let second = check();
        let first = first.await.expect("a response");
        let second = second.await.expect("a response");
        proxy.pass();
        if first.source() == DecisionSource::Store {
            assert!(matches!(store_error(&second), StoreError::Timeout));
            let next = limiter.check(Key::new("whoever")).await;
            assert_eq!(next.source(), DecisionSource::Store, "{next:?}");
            return;
        }
        // The machine is busy: the first reply came too late as well, which counts.
    }
    panic!("no reply came within {TIME:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_probe_at_a_time_is_sent_whatever_the_number_of_requests() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let store = builder(url(proxy.addr())).build().expect("a store");
    let limiters = [(); 4].map(|()| rejecting(store.clone()));
    for limiter in &limiters {
        resumed(limiter).await;
    }
    let before = calls(&server);
    proxy.halve();
    opened(&limiters[0]).await;
    let (start, mut sent, mut most) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_secs(2) {
        for limiter in &limiters {
            decide_at_once(limiter);
            sent += 1;
        }
        most = most.max(proxy.connections());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Half a reply to the first command on each connection: none of them ever sends a request.
    assert!(calls(&server) - before <= 3, "{}", calls(&server) - before);
    assert!(sent > 100 && most <= 1, "{most} connections at once");
    proxy.pass();
    resumed(&limiters[3]).await;
}

#[tokio::test]
async fn a_store_is_used_again_although_no_request_came_meanwhile() {
    let server = Server::start();
    let limiter = rejecting(store(&server));
    server.kill();
    opened(&limiter).await;
    server.restart();
    // The probe's is the only connection besides this one.
    until("a probe", async || {
        let clients = server.command(&["CLIENT", "LIST"]).text();
        clients.lines().count() > 1
    })
    .await;
    until("its result", async || server.calls("eval") > 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        limiter.check(Key::new("first")).await.source(),
        DecisionSource::Store
    );
}

#[test]
fn probing_continues_when_the_runtime_that_probed_ends() {
    let server = Server::start();
    let limiter = rejecting(store(&server));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let builder = builder.worker_threads(1).enable_all();
        builder.build().expect("a runtime")
    };
    let first = runtime();
    first.block_on(resumed(&limiter));
    server.kill();
    first.block_on(opened(&limiter));
    drop(first);
    server.restart();
    runtime().block_on(resumed(&limiter));
}

/// Such as one that is driven now and then, or whose thread is busy with something else.
#[test]
fn a_stalled_runtime_keeps_no_other_from_probing() {
    let server = Server::start();
    let limiter = rejecting(store(&server));
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let (still, other) = (runtime(), runtime());
    server.kill();
    still.block_on(opened(&limiter));
    server.restart();
    other.block_on(resumed(&limiter));
}

#[tokio::test]
async fn a_store_dropped_while_open_is_not_probed_any_more() {
    let limiter = rejecting(nowhere());
    opened(&limiter).await;
    drop(limiter);
    until("all tasks have ended", async || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
            == 0
    })
    .await;
}

#[tokio::test]
async fn without_a_breaker_each_request_calls_redis() {
    let store = builder("redis://127.0.0.1:1").no_circuit_breaker();
    let limiter = rejecting(store.build().expect("a store"));
    for _ in 0..20 {
        let error = store_error(&limiter.check(Key::new("key")).await);
        assert!(matches!(error, StoreError::Connection(_)), "{error:?}");
    }
}

#[test]
fn a_breaker_threshold_of_zero_is_a_config_error() {
    let error = builder("redis://127.0.0.1")
        .circuit_breaker_threshold(0)
        .build()
        .unwrap_err();
    assert_eq!(error.value(), "a circuit breaker with a threshold of 0");
}

#[tokio::test]
async fn a_request_rejected_while_open_has_a_retry_after_of_a_second() {
    let layer = RateLimitLayer::builder()
        .store(nowhere())
        .policy(policy(1).key(extract::global()))
        .on_store_error(OnStoreError::Reject)
        .build()
        .expect("a layer");
    opened(layer.limiter()).await;
    let hello = async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(()));
    let service = layer.layer(service_fn(hello));
    let Ok(response) = service.oneshot(Request::new(())).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()[RETRY_AFTER], "1");
}

#[tokio::test]
async fn a_refund_while_open_fails_at_once() {
    let server = Server::start();
    let limiter = rejecting(store(&server));
    let charged = limiter.check(Key::new("key")).cost(5).await;
    assert_eq!(charged.source(), DecisionSource::Store);
    server.pause();
    opened(&limiter).await;
    let mut charged = charged;
    let refund = charged.refund(5).now_or_never();
    let error = refund
        .expect("a result at once")
        .expect_err("a store error");
    assert!(matches!(error, StoreError::CircuitOpen { .. }), "{error:?}");
    server.resume();
    resumed(&limiter).await;
    let seen = limiter.peek(Key::new("key")).await.expect("a response");
    let policy = seen.policy("p").expect("a policy");
    assert_eq!(policy.limit() - policy.remaining(), 5);
}
