//! Few script calls carry many requests, and no result gets lost.

use std::iter::repeat_n;

use tollgate_tests::prelude::*;

use crate::store::support::*;

/// Sends requests, of which the server answers none before all are there; returns how many were admitted.
async fn admitted_at_once<K: Into<Keys>>(
    server: &Server,
    limiter: &Limiter,
    keys: impl IntoIterator<Item = K>,
) -> usize {
    server.pause();
    let checks = keys.into_iter().map(|key| limiter.check(key).into_future());
    let mut checks: Vec<_> = checks.collect();
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
async fn ten_thousand_concurrent_requests_on_one_key_and_on_as_many_take_far_fewer_calls() {
    let server = Server::start();
    for strategy in TWO {
        let limiter = single(&server, strategy, "100/month");
        server.reset_stats();
        let admitted = admitted_at_once(&server, &limiter, repeat_n("hot", 10_000)).await;
        assert_eq!(admitted, 100);
        let [calls, gets] = ["evalsha", "get"].map(|command| server.calls(command));
        assert!((1..=50).contains(&calls), "{strategy:?}: {calls} calls");
        assert!(gets <= 50, "{strategy:?}: {gets} reads");
        server.flush();
        server.reset_stats();
        let admitted = admitted_at_once(&server, &limiter, 0..10_000_u64).await;
        assert_eq!(admitted, 10_000);
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
        let limiters = [single(&server, strategy, "1000/month")];
        let flusher = tokio::task::spawn_blocking({
            let server = server.clone();
            move || (0..50).for_each(|_| drop(server.command(&["SCRIPT", "FLUSH"]).ok()))
        });
        let admitted = hammer(&limiters, "key", 16, 1_600).await;
        flusher.await.expect("it flushes");
        assert_eq!(admitted, 1_000, "{strategy:?}");
        // Even if no flush met a request above.
        server.command(&["SCRIPT", "FLUSH"]).ok();
        assert!(!admitted_by_store(&limiters[0].check("key").await));
    }
    assert!(server.calls("eval") > 0);
}

/// What has not been sent by its deadline never is: a server that was silent for a while doesn't get a backlog of old
/// requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_on_a_silent_redis_is_dropped_at_its_deadline() {
    let server = Server::start();
    let store = RedisStore::builder().url(server.url()).timeout(secs(1));
    let limiter = limiter(store.built(), [StrategyKind::Gcra.policy("p", "1/h")]);
    let counts = async |key| limiter.check(key).await.source() == DecisionSource::Store;
    until("it's connected", async || counts("first").await).await;
    server.reset_stats();
    server.pause();
    for flood in 0..3 {
        let keys = (0..4_000).map(|key| format!("{flood}/{key}"));
        for decision in check_at_once(&limiter, keys).await {
            store_error(&decision);
        }
    }
    server.resume();
    until("it answers", async || counts("last").await).await;
    // Full batches of 128 keys, a few of which may be in flight when it falls silent, and one more for each deadline.
    let sent = server.keys().len();
    assert!(sent < 6_000, "{sent} of 12,000 questions were sent");
}
