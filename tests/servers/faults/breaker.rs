//! The breaker: an outage costs no deadlines, one probe finds out when it is over, and rejections are no failures.

use crate::faults::support::*;
use http::header::RETRY_AFTER;
use tokio::{task::JoinSet, time::sleep};
use tollgate::observe::{BreakerState, Event, Observer};

const UNITS: u64 = 1_000_000;

fn is_connection_error(decision: &Decision) -> bool {
    matches!(store_error(decision), StoreError::Connection(_))
}

#[tokio::test]
async fn while_open_no_request_waits_and_redis_is_not_called() {
    let server = Server::start();
    let limiter = rejecting(store(&server), UNITS);
    resumed(&limiter).await;
    server.kill();
    opened(&limiter).await;
    for _ in 0..1_000 {
        match error_at_once(&limiter) {
            Some(StoreError::CircuitOpen { retry_after, .. }) => {
                assert!(retry_after <= secs(1))
            }
            other => panic!("{other:?}"),
        }
    }
    server.restart();
    resumed(&limiter).await;
}

/// A paused server replies to `PING`, and holds what may write: a probe has to do what requests do.
#[tokio::test]
async fn no_request_waits_until_its_deadline_for_a_probe_that_fails() {
    let server = Server::start();
    let limiter = rejecting(hasty(server.url()), UNITS);
    resumed(&limiter).await;
    order(&server, &["CLIENT", "PAUSE", "600000", "WRITE"]);
    opened(&limiter).await;
    // Several probes get no reply.
    let start = Instant::now();
    while start.elapsed() < 5 * SHORT_TIMEOUT {
        assert!(is_open(&limiter));
        sleep(ms(1)).await;
    }
    order(&server, &["CLIENT", "UNPAUSE"]);
    resumed(&limiter).await;
}

#[tokio::test]
async fn three_consecutive_failures_open_it_and_two_do_not() {
    let (_server, proxy) = network();
    let limiter = rejecting(through(&proxy), UNITS);
    for _ in 0..3 {
        proxy.cut();
        for _ in 0..2 {
            assert!(is_connection_error(&limiter.check(KEY).await));
        }
        proxy.pass();
        assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    }
    proxy.cut();
    for _ in 0..3 {
        store_error(&limiter.check(KEY).await);
    }
    assert!(is_open(&limiter));
}

#[tokio::test]
async fn rejections_and_errors_of_one_key_do_not_open_it() {
    let server = Server::start();
    let limiter = rejecting(store(&server), 1);
    let check = async |key: &str| limiter.check(Key::new(key)).await;
    assert!(check("mine").await.is_admitted());
    order(&server, &["SET", &server.only_key(), "something else"]);
    let _ = check("spent").await;
    for _ in 0..20 {
        let error = store_error(&check("mine").await);
        assert_eq!(error.code(), "corrupt_key");
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
    let (server, proxy) = network();
    // Nothing else is sent.
    let store = builder(url(proxy.addr())).max_overrides(0);
    let limiter = rejecting(store.circuit_breaker_threshold(1).built(), UNITS);
    resumed(&limiter).await;
    server.pause();
    let check = || tokio::spawn(limiter.check(KEY).into_future());
    let before = proxy.forwarded();
    let first = check();
    until("it is in flight", async || proxy.forwarded() > before).await;
    let others: Vec<_> = (0..20).map(|_| check()).collect();
    tokio::task::yield_now().await;
    proxy.cut();
    proxy.hold();
    assert!(is_connection_error(&first.await.expect("a response")));
    for other in others {
        let error = store_error(&other.await.expect("a response"));
        assert_eq!(error.code(), "circuit_open");
    }
}

/// A request that is sent late has less than half of its time left, since the one before it took most of it.
#[tokio::test]
async fn a_request_that_is_sent_with_little_time_left_does_not_open_it() {
    let time = StillTime::new();
    let server = Server::start();
    let store = builder(server.url()).circuit_breaker_threshold(1);
    let limiter = rejecting(store.built(), UNITS);
    let check = || tokio::spawn(limiter.check(KEY).into_future());
    let calls = || server.calls("evalsha");
    loop {
        let known = check().await.expect("a response");
        assert_eq!(known.source(), DecisionSource::Store);
        let before = calls();
        server.pause();
        let first = check();
        time.settle().await;
        time.advance(TEST_TIMEOUT / 10).await;
        let second = check();
        time.settle().await;
        time.advance(TEST_TIMEOUT * 7 / 10).await;
        // The reply to the first is there before this thread reads it and sends the second. A connection that was idle for a second
        // is checked before: then the tasks have to run.
        server.resume();
        for spins in 0.. {
            if calls() > before {
                break;
            } else if spins > 100 {
                time.settle().await;
            }
        }
        // A reply may be written after that of a later command.
        order(&server, &["PING"]);
        server.pause();
        let first = first.await.expect("a response");
        assert_eq!(first.source(), DecisionSource::Store, "{first:?}");
        time.settle().await;
        time.advance(TEST_TIMEOUT * 35 / 100).await;
        let second = second.await.expect("a response");
        server.resume();
        if second.source() != DecisionSource::Store {
            assert_eq!(store_error(&second).code(), "timeout");
            break;
        }
    }
    let next = limiter.check(KEY).await;
    assert_eq!(next.source(), DecisionSource::Store, "{next:?}");
}

/// More requests of different keys come than the batches in flight hold, so that each later batch is sent with little time left.
#[tokio::test]
async fn a_silent_server_opens_it_however_many_requests_come() {
    const TIMEOUT: Duration = secs(2);
    let server = Server::start();
    let store = builder(server.url()).timeout(TIMEOUT).connections(1);
    let limiter = rejecting(store.built(), UNITS);
    resumed(&limiter).await;
    server.pause();
    let (start, mut checks) = (Instant::now(), JoinSet::new());
    let mut sent = 0;
    until("it opens", async || {
        // 1,000 a second.
        while sent < start.elapsed().as_millis() {
            checks.spawn(limiter.check(Key::new(format!("{sent}"))).into_future());
            sent += 1;
        }
        sleep(ms(5)).await;
        is_open(&limiter)
    })
    .await;
    println!("open after {:.1?}", start.elapsed());
    server.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_probe_at_a_time_is_sent_whatever_the_number_of_requests() {
    let (server, proxy) = network();
    let store = builder(url(proxy.addr())).max_overrides(0).built();
    let limiters = [(); 4].map(|()| rejecting(store.clone(), UNITS));
    for limiter in &limiters {
        resumed(limiter).await;
    }
    let connected = || {
        let connected = server.info("stats", "total_connections_received");
        let connected = connected.and_then(|connected| connected.parse::<u64>().ok());
        connected.expect("a number")
    };
    let calls = server.calls("evalsha");
    // Half a reply to the first command on each connection: none of them ever sends a request.
    proxy.halve();
    opened(&limiters[0]).await;
    let (before, mut most) = (connected(), 0);
    until("four probes", async || {
        assert!(limiters.iter().all(is_open));
        most = most.max(proxy.connections());
        connected() >= before + 4
    })
    .await;
    let calls = server.calls("evalsha") - calls;
    assert!(calls <= 3, "{calls}");
    // The next one goes after half a second, though the last one has no result yet.
    assert!(most <= 6, "{most} connections at once");
    proxy.pass();
    resumed(&limiters[3]).await;
}

#[tokio::test]
async fn a_store_is_used_again_although_no_request_came_meanwhile() {
    let (log, _guard) = Log::of_info();
    let server = Server::start();
    let limiter = rejecting(store(&server), UNITS);
    server.kill();
    opened(&limiter).await;
    server.restart();
    let has_closed = async || !log.lines("circuit breaker closed").is_empty();
    until("a probe has a reply", has_closed).await;
    assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
}

/// Such as one that is driven now and then, or whose thread is busy with something else.
#[test]
fn a_stalled_runtime_keeps_no_other_from_probing() {
    let server = Server::start();
    let limiter = rejecting(store(&server), UNITS);
    let (still, other) = (current_thread(), current_thread());
    server.kill();
    still.block_on(opened(&limiter));
    server.restart();
    other.block_on(resumed(&limiter));
}

#[tokio::test]
async fn without_a_breaker_each_request_calls_redis() {
    let store = builder(NOWHERE).no_circuit_breaker().built();
    let limiter = rejecting(store, UNITS);
    for _ in 0..20 {
        let error = store_error(&limiter.check(Key::new("key")).await);
        assert_eq!(error.code(), "connection");
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
        .built();
    opened(layer.limiter()).await;
    let hello = async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(()));
    let service = layer.layer(service_fn(hello));
    let Ok(response) = service.oneshot(Request::new(())).await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()[RETRY_AFTER], "1");
}

/// Its caller does not wait, and must not repeat it.
#[tokio::test]
async fn a_refund_while_open_is_kept_and_fails_at_once() {
    let (_server, proxy) = network();
    let limiter = rejecting(through(&proxy), UNITS);
    let mut charged = limiter.check(KEY).cost(5).await;
    assert_eq!(charged.source(), DecisionSource::Store);
    proxy.cut();
    opened(&limiter).await;
    let refund = charged.refund(5).now_or_never();
    let error = refund.expect("a result at once").expect_err("an outage");
    let StoreError::Deferred { cause, .. } = error else {
        panic!("{error:?}");
    };
    assert!(matches!(&*cause, StoreError::CircuitOpen { .. }));
    let again = charged.refund(5).await.expect("nothing is left");
    assert!(again.iter().all(|refund| refund.units() == 0));
    proxy.pass();
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&limiter, KEY).await, 0);
}

#[tokio::test]
async fn one_thread_probes_for_all_stores_of_a_process() {
    let limiters: Vec<_> = (0..300).map(|_| rejecting(nowhere(), UNITS)).collect();
    join_all(limiters.iter().map(opened)).await;
    let threads = fs::read_dir("/proc/self/task").expect("Linux");
    let names = threads.map(|thread| {
        let name = thread.expect("a thread").path().join("comm");
        fs::read_to_string(name).unwrap_or_default()
    });
    assert_eq!(names.filter(|name| name.trim() == "tollgate").count(), 1);
}

/// Holds the last reference to a store until its circuit breaker is probed.
#[derive(Debug, Default)]
struct Owner(Mutex<Option<Limiter>>);

impl Observer for Owner {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::BreakerChanged {
            state: BreakerState::HalfOpen,
            ..
        } = event
        {
            drop(self.0.lock().expect("no panic").take());
        }
    }
}

#[tokio::test]
async fn an_observer_may_drop_the_last_reference_to_the_store_that_is_probed() {
    let owner = Arc::new(Owner::default());
    let limiter = Limiter::builder()
        .store(nowhere())
        .policy(policy(UNITS))
        .on_store_error(OnStoreError::Reject)
        .observe(owner.clone())
        .built();
    opened(&limiter).await;
    *owner.0.lock().expect("no panic") = Some(limiter);
    let is_dropped = async || owner.0.lock().expect("no panic").is_none();
    until("the store is dropped", is_dropped).await;
    // The thread goes on.
    let server = Server::start();
    let limiter = rejecting(store(&server), UNITS);
    server.kill();
    opened(&limiter).await;
    server.restart();
    resumed(&limiter).await;
}
