//! Few script calls carry many requests, and no result gets lost.

use tollgate_tests::prelude::*;

use crate::store::support::*;

/// Sends requests for these keys, of which the server answers none before all are there; returns how many were admitted.
async fn all_at_once(server: &Server, limiter: &Limiter, keys: impl Iterator<Item = Key>) -> usize {
    server.pause();
    let mut checks: Vec<_> = keys.map(|key| limiter.check(key).into_future()).collect();
    for check in &mut checks {
        assert!(check.now_or_never().is_none());
    }
    server.resume();
    let decisions = join_all(checks).await;
    decisions
        .iter()
        .filter(|one| admitted_by_store(one))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_concurrent_requests_on_one_key_take_far_fewer_calls() {
    let server = Server::start();
    for strategy in TWO {
        let limiter = single(&server, strategy, "100/month");
        server.reset_stats();
        let keys = (0..10_000).map(|_| Key::new("hot"));
        assert_eq!(all_at_once(&server, &limiter, keys).await, 100);
        let calls = server.calls("evalsha");
        assert!((1..=50).contains(&calls), "{strategy:?}: {calls} calls");
        let gets = server.calls("get");
        assert!(gets <= 50, "{strategy:?}: {gets} reads");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_concurrent_requests_on_as_many_keys_share_calls() {
    let server = Server::start();
    for strategy in TWO {
        let limiter = single(&server, strategy, "100/h");
        server.flush();
        server.reset_stats();
        let keys = (0..10_000).map(|key| Key::new(key.to_string()));
        assert_eq!(all_at_once(&server, &limiter, keys).await, 10_000);
        let calls = server.calls("evalsha");
        // 128 keys a call at most.
        assert!((79..=150).contains(&calls), "{strategy:?}: {calls} calls");
        assert_eq!(server.keys().len(), 10_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_of_scripts_amid_traffic_loses_no_request() {
    let server = Arc::new(Server::start());
    for strategy in TWO {
        let limiter = single(&server, strategy, "1000/month");
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..100 {
                        admitted += u64::from(admitted_by_store(&limiter.check("key").await));
                    }
                    admitted
                })
            })
            .collect();
        let flusher = tokio::task::spawn_blocking({
            let server = server.clone();
            move || (0..50).for_each(|_| drop(server.command(&["SCRIPT", "FLUSH"]).ok()))
        });
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("a response");
        }
        flusher.await.expect("it flushes");
        assert_eq!(admitted, 1_000, "{strategy:?}");
        // Even if no flush met a request above.
        server.command(&["SCRIPT", "FLUSH"]).ok();
        assert!(!admitted_by_store(&limiter.check("key").await));
    }
    assert!(server.calls("eval") > 0);
}

/// What has not been sent by its deadline never is: a server that was silent for a while doesn't get a backlog of old
/// requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_on_a_silent_redis_is_dropped_at_its_deadline() {
    let server = Server::start();
    let store = tollgate::RedisStore::builder()
        .url(server.url())
        .timeout(secs(1));
    let limiter = limiter(
        store.build().expect("a store"),
        [StrategyKind::Gcra.policy("p", "1/h")],
    );
    until("it's connected", async || {
        counted_or_fault(&limiter, Key::new("first")).await
    })
    .await;
    server.reset_stats();
    server.pause();
    for flood in 0..3 {
        let keys = (0..4_000).map(|key| Key::new(format!("{flood}/{key}")));
        let asked: Vec<_> = keys
            .map(|key| tokio::spawn(limiter.check(key).into_future()))
            .collect();
        for asked in asked {
            store_error(&asked.await.expect("a response"));
        }
    }
    server.resume();
    until("it answers", async || {
        counted_or_fault(&limiter, Key::new("last")).await
    })
    .await;
    // Full batches of 128 keys, a few of which may be in flight when it falls silent, and one more for each deadline.
    let sent = server.keys().len();
    assert!(sent < 6_000, "{sent} of 12,000 questions were sent");
}

async fn counted_or_fault(limiter: &Limiter, key: Key) -> bool {
    limiter.check(key).await.source() == DecisionSource::Store
}
