//! A server that is gone, silent, full or unwilling: no request hangs, nothing is half charged, and service resumes.

use tokio::time::timeout;
use tollgate_tests::prelude::*;

use crate::store::support::*;

const TIMEOUT: Duration = ms(200);

/// More than any test requests. Units refill within microseconds, or within seconds.
const FAST: &str = "1000000/min";
const SLOW: &str = "1000000/month";

/// Without a breaker: each request finds out for itself.
fn impatient(server: &Server, response: OnStoreError, quota: &str) -> Limiter {
    without_breaker(server, response, quota, TIMEOUT)
}

fn without_breaker(
    server: &Server,
    response: OnStoreError,
    quota: &str,
    deadline: Duration,
) -> Limiter {
    let store = RedisStore::builder().url(server.url()).timeout(deadline);
    let store = store.no_circuit_breaker();
    Limiter::builder()
        .store(store.build().expect("a store"))
        .policy(StrategyKind::Gcra.policy("p", quota))
        .on_store_error(response)
        .build()
        .expect("a limiter")
}

async fn resumed(limiter: &Limiter) {
    // Each worker may have to find out for itself.
    for key in 0..16 {
        resumed_on(limiter, &key.to_string()).await;
    }
}

async fn resumed_on(limiter: &Limiter, key: &str) {
    until("the store counts again", async || {
        limiter.check(Key::new(key)).await.source() == DecisionSource::Store
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_killed_redis_the_configured_action_applies_until_it_is_back() {
    let server = Server::start();
    let admitting = without_breaker(&server, OnStoreError::Admit, FAST, TEST_TIMEOUT);
    let rejecting = without_breaker(&server, OnStoreError::Reject, SLOW, TEST_TIMEOUT);
    for _ in 0..2 {
        resumed(&admitting).await;
        resumed(&rejecting).await;
        server.kill();
        for key in 0..16 {
            let key = Key::new(key.to_string());
            let decision = admitting.check(key).await;
            assert!(decision.is_admitted(), "{decision:?}");
            assert_eq!(decision.source(), DecisionSource::Fallback);
            assert_eq!(decision.policies().len(), 0);

            let decision = rejecting.check(key).await;
            assert_eq!(decision.source(), DecisionSource::Fallback);
            let error = store_error(&decision);
            assert!(matches!(error, StoreError::Connection(_)), "{error:?}");
        }
        server.restart();
    }
    resumed(&admitting).await;
    resumed(&rejecting).await;
    // What was admitted without being counted was charged nowhere: the second restart emptied the server.
    assert_eq!(server.immortal_keys(), [""; 0]);
}

/// One failed request is what it takes to see that a connection is dead; the next one has a new connection.
#[tokio::test]
async fn a_restarted_redis_costs_a_key_one_request_at_most() {
    let server = Server::start();
    for quota in quotas(100) {
        let limiter = single(&server, StrategyKind::Gcra, &quota);
        for _ in 0..3 {
            assert!(admitted_by_store(&limiter.check("key").await));
            server.restart();
            let first = limiter.check("key").await;
            if first.source() != DecisionSource::Store {
                assert!(matches!(store_error(&first), StoreError::Connection(_)));
            }
            assert!(admitted_by_store(&limiter.check("key").await));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_amid_traffic_leaves_no_request_without_a_result() {
    let server = Server::start();
    let limiter = impatient(&server, OnStoreError::Reject, FAST);
    resumed(&limiter).await;
    let is_down = Arc::new(AtomicBool::new(false));
    let met = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..32)
        .map(|task: u64| {
            let (limiter, is_down, met) = (limiter.clone(), is_down.clone(), met.clone());
            tokio::spawn(async move {
                let (mut by_store, mut faults) = (0, 0);
                while by_store < 100 || faults == 0 {
                    let was_down = is_down.load(Ordering::SeqCst);
                    let check = limiter.check(Key::new(task.to_string()));
                    let decision = timeout(TEST_TIMEOUT, check.into_future()).await;
                    match decision.expect("a result").source() {
                        DecisionSource::Store => by_store += 1,
                        _ if !was_down => {}
                        _ => {
                            met.fetch_add(u64::from(faults == 0), Ordering::SeqCst);
                            faults += 1;
                        }
                    }
                }
            })
        })
        .collect();
    tokio::task::block_in_place(|| server.kill());
    is_down.store(true, Ordering::SeqCst);
    until("each task has met it", async || {
        met.load(Ordering::SeqCst) == 32
    })
    .await;
    server.restart();
    for task in tasks {
        task.await.expect("a task ends well");
    }
}

/// A charge whose reply was lost stays charged; nothing else is lost, and no key gets more than the quota.
///
/// A command that is handed to redis-rs at the moment at which its connection closes may never get a reply, nor an error: the
/// channel's receiver is gone, and does not drop a value that comes after it (tokio issue 7714). Only its timeout ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_amid_traffic_admit_no_request_beyond_the_quota() {
    let (_clock, server) = on_a_clock();
    for quota in ["1000/min", "1000/month"] {
        server.flush();
        let limiters = [0, 1].map(|_| {
            let store = RedisStore::builder().url(server.url()).timeout(TIMEOUT);
            // Rejections are cached by this process's clock, and only the server's is set.
            let store = store.rejection_cache_staleness(Duration::ZERO);
            limiter(
                store.build().expect("a store"),
                [StrategyKind::Gcra.policy("p", quota)],
            )
        });
        let tasks: Vec<_> = (0..32)
            .map(|task| {
                let limiter = limiters[task % 2].clone();
                tokio::spawn(async move {
                    let (mut admitted, mut faults) = (0, 0);
                    for _ in 0..200 {
                        let decision = limiter.check("key").await;
                        match decision.source() {
                            DecisionSource::Store => admitted += u64::from(decision.is_admitted()),
                            _ => faults += 1,
                        }
                    }
                    (admitted, faults)
                })
            })
            .collect();
        for _ in 0..20 {
            tokio::task::block_in_place(|| {
                server
                    .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
                    .ok();
            });
        }
        let (mut admitted, mut faults) = (0, 0);
        for task in tasks {
            let (more, failed) = task.await.expect("a response");
            (admitted, faults) = (admitted + more, faults + failed);
        }
        let patient = single(&server, StrategyKind::Gcra, quota);
        resumed_on(&patient, "key").await;
        let [used] = used(&patient, "key").await[..] else {
            panic!("one policy")
        };
        assert!(
            admitted <= used && used <= 1_000,
            "{admitted} admitted, {used} used"
        );
        assert!(
            used <= admitted + faults,
            "{admitted} admitted, {faults} failed, {used} used"
        );
    }
}

/// A server that was made a replica behind its clients' backs rejects writes, until they connect elsewhere or it is a
/// master again.
#[tokio::test]
async fn a_demoted_master_charges_nothing_and_is_used_again_once_promoted() {
    let (_clock, server) = on_a_clock();
    for (order, quota) in each_with(PAIRS, quotas(10)) {
        let both = pair(&server, order, &quota);
        server.flush();
        assert!(admitted_by_store(&both.check("key").await));
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).ok();
        let error = store_error(&both.check("key").await);
        assert!(
            matches!(&error, StoreError::Server { code, .. } if &**code == "READONLY"),
            "{order:?}, {quota}: {error:?}"
        );
        assert_eq!(used(&both, "key").await, [1, 1]);
        server.command(&["REPLICAOF", "NO", "ONE"]).ok();
        assert!(admitted_by_store(&both.check("key").await));
        assert_eq!(used(&both, "key").await, [2, 2]);
    }
}

#[tokio::test]
async fn behind_a_layer_a_store_failure_is_a_503_or_admitted_as_configured() {
    let server = Server::start();
    server.kill();
    for (answer, status) in [
        (OnStoreError::Reject, StatusCode::SERVICE_UNAVAILABLE),
        (OnStoreError::Admit, StatusCode::OK),
    ] {
        let policy = StrategyKind::Gcra
            .policy("p", "10/h")
            .key(extract::global());
        let layer = RateLimitLayer::builder()
            .store(store(&server))
            .policy(policy)
            .on_store_error(answer);
        let service = layer.build().expect("a layer").layer(service_fn(hello));
        let Ok(response) = service.oneshot(Request::new(())).await;
        assert_eq!(response.status(), status);
    }
}

/// Two hundred requests, while the server is silent.
async fn all_decided(limiter: &Limiter) {
    let start = Instant::now();
    let tasks: Vec<_> = (0..200)
        .map(|task: u64| {
            let key = Key::new((task % 50).to_string());
            tokio::spawn(limiter.check(key).into_future())
        })
        .collect();
    for task in tasks {
        let decision = task.await.expect("a response");
        assert_eq!(decision.source(), DecisionSource::Fallback, "{decision:?}");
        assert!(matches!(store_error(&decision), StoreError::Timeout));
    }
    assert!(start.elapsed() >= TIMEOUT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_accepts_and_never_replies_holds_no_request_past_the_deadline() {
    let server = Server::start();
    let limiter = impatient(&server, OnStoreError::Reject, FAST);
    // First it hangs before there is a connection, then with all connections made.
    for _ in 0..2 {
        server.pause();
        all_decided(&limiter).await;
        all_decided(&limiter).await;
        server.resume();
        resumed(&limiter).await;
    }
}

/// Each request's deadline counts from its own arrival, not from its batch's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_request_has_as_long_for_a_silent_redis() {
    let server = Server::start();
    let limiter = impatient(&server, OnStoreError::Reject, FAST);
    resumed(&limiter).await;
    server.pause();
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let limiter = limiter.clone();
        tasks.push(tokio::spawn(async move {
            let start = Instant::now();
            let decision = limiter.check("key").await;
            assert!(matches!(store_error(&decision), StoreError::Timeout));
            start.elapsed()
        }));
        tokio::time::sleep(TIMEOUT / 20).await;
    }
    for task in tasks {
        assert!(task.await.expect("a response") >= TIMEOUT);
    }
    server.resume();
}
