//! A server that is gone, silent, full or unwilling: no request hangs, nothing is half charged, and service resumes.

use tollgate_tests::prelude::*;

use crate::store::support::*;

const TIMEOUT: Duration = ms(200);

/// More than any test requests. Units refill within microseconds, or within seconds.
const FAST: &str = "1000000/min";
const SLOW: &str = "1000000/month";

/// Without a breaker: each request finds out for itself.
fn without_breaker(
    server: &Server,
    response: OnStoreError,
    quota: &str,
    timeout: Duration,
) -> Limiter {
    let store = RedisStore::builder().url(server.url()).timeout(timeout);
    let builder = Limiter::builder().store(store.no_circuit_breaker().built());
    let policies = [StrategyKind::Gcra.policy("p", quota)];
    stores::limiter(builder.on_store_error(response), policies)
}

fn impatient(server: &Server) -> Limiter {
    without_breaker(server, OnStoreError::Reject, FAST, TIMEOUT)
}

async fn resumed(limiter: &Limiter) {
    // Each worker may have to find out for itself.
    for key in 0..16_u64 {
        resumed_on(limiter, key).await;
    }
}

async fn resumed_on(limiter: &Limiter, key: impl Into<Key>) {
    let key = key.into();
    let counts = async || limiter.check(key).await.source() == DecisionSource::Store;
    until("the store counts again", counts).await;
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
        for key in 0..16_u64 {
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
        let is_read_only =
            matches!(&error, StoreError::Server { code, .. } if &**code == "READONLY");
        assert!(is_read_only, "{order:?}, {quota}: {error:?}");
        assert_eq!(used(&both, "key").await, [1, 1]);
        server.command(&["REPLICAOF", "NO", "ONE"]).ok();
        assert!(admitted_by_store(&both.check("key").await));
        assert_eq!(used(&both, "key").await, [2, 2]);
    }
}

/// Two hundred requests, while the server is silent.
async fn all_decided(limiter: &Limiter) {
    let start = Instant::now();
    let keys = (0..200_u64).map(|task| task % 50);
    for decision in check_at_once(limiter, keys).await {
        assert!(matches!(store_error(&decision), StoreError::Timeout));
    }
    assert!(start.elapsed() >= TIMEOUT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_accepts_and_never_replies_holds_no_request_past_the_deadline() {
    let server = Server::start();
    let limiter = impatient(&server);
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
    let limiter = impatient(&server);
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
    assert!(all(tasks).await.iter().all(|time| *time >= TIMEOUT));
    server.resume();
}
