//! Concurrent requests share a call, in which they are decided one after the other, and none undoes another. No result gets lost.

use std::iter::repeat_n;

use tokio::join;
use tollgate_tests::prelude::*;

use crate::store::support::*;

/// A store whose IO is on this runtime, of one thread.
fn store_on(runtime: &Runtime, server: &Server) -> RedisStore {
    let store = RedisStore::builder().rejection_cache_staleness(Duration::ZERO);
    let store = store.url(server.url()).timeout(TEST_TIMEOUT);
    store.runtime(runtime.handle().clone()).built()
}

/// Requests that one task makes before any of them is sent share a batch, in this order.
fn in_one_batch(server: &Server, requests: impl FnOnce()) {
    server.reset_stats();
    requests();
    let calls = server.calls("evalsha") + server.calls("eval");
    assert!(calls <= 2, "{calls} calls were no single batch");
}

/// A tenant's key is part of many entries. One that another policy rejects must not end it early for those that follow.
#[test]
fn a_rejection_by_one_policy_does_not_shorten_the_ttl_of_a_key_that_others_share() {
    let (clock, server) = on_a_clock();
    let runtime = current_thread();
    let keys = |user| [("tenant", Key::new("acme")), ("user", Key::new(user))];
    for strategy in EACH {
        let policies = [("tenant", "10/h"), ("user", "5/h")];
        let policies = policies.map(|(name, quota)| strategy.policy(name, quota));
        let limiter = limiter(store_on(&runtime, &server), policies);
        let check = |user, cost| limiter.check(keys(user)).cost(cost).into_future();
        assert!(admitted_by_store(&runtime.block_on(check("a", 4))));
        in_one_batch(&server, || {
            let checks = join_all([check("a", 5), check("b", 5)]);
            let decisions = runtime.block_on(checks);
            let admitted: Vec<_> = decisions.iter().map(admitted_by_store).collect();
            assert_eq!(admitted, [false, true]);
        });
        // By the first four units alone, the tenant would be idle by now.
        clock.advance(secs(25 * 60));
        let left = match strategy.is_even() {
            true => 9 - 25 / 6,
            false => 9,
        };
        let tenant = runtime.block_on(used(&limiter, keys("c")));
        assert_eq!(tenant[0], left, "{strategy:?}");
    }
}

/// However many requests there are for one key, a later one for another goes with them, and equal ones are served first come, first
/// served.
#[test]
fn a_hot_key_delays_no_other_key() {
    let (_clock, server) = on_a_clock();
    let runtime = current_thread();
    for strategy in EACH {
        let policy = strategy.policy("p", "3/h");
        let limiter = limiter(store_on(&runtime, &server), [policy]);
        let check = |key: String| limiter.check(key).into_future();
        in_one_batch(&server, || {
            let hot = join_all((0..5_000).map(|_| check("hot".into())));
            let others = join_all((0..127).map(|key: u32| check(key.to_string())));
            let (hot, others) = runtime.block_on(async { join!(hot, others) });
            let hot = hot
                .iter()
                .map(|one| (admitted_by_store(one), one.left("p")));
            let first = [(true, 2), (true, 1), (true, 0)];
            let expected = first.into_iter().chain(repeat_n((false, 0), 4_997));
            assert!(hot.eq(expected), "{strategy:?}");
            assert!(others.iter().all(admitted_by_store), "{strategy:?}");
        });
        server.flush();
    }
}

/// A sum past all numbers would fail all requests of the batch.
#[test]
fn a_check_for_more_requests_than_can_be_counted_is_admitted_what_is_left() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "10/h");
    current_thread().block_on(async {
        let all = || limiter.check("key").times(u64::MAX);
        let (first, second, other) = join!(all(), all(), limiter.check("other"));
        let admitted = [first, second, other].map(|one| (admitted_by_store(&one), one.admitted()));
        assert_eq!(admitted, [(true, 10), (false, 0), (true, 1)]);
    });
}

#[test]
fn requests_of_many_kinds_in_one_batch_all_get_their_own_results() {
    let server = Server::start();
    let runtime = current_thread();
    let store = store_on(&runtime, &server);
    let a = StrategyKind::Gcra.policy("a", "100/h");
    let b = StrategyKind::Fixed.policy("b", "50/h");
    let both = limiter(store.clone(), [a, b.clone()]);
    let one = limiter(store, [b]);
    in_one_batch(&server, || {
        runtime.block_on(async {
            let (x, y, z, charged, seen) = join!(
                both.check("key").cost_for("a", 7),
                one.check("key").cost(40),
                both.check("key").cost(10),
                one.charge("key", 4),
                both.peek("key"),
            );
            let (charged, seen) = (charged.expect("a response"), seen.expect("a response"));
            assert!(admitted_by_store(&x) && admitted_by_store(&y) && admitted_by_store(&charged));
            assert!(!admitted_by_store(&z), "41 of 50 are taken: {z:?}");
            assert_eq!([x.left("a"), x.left("b")], [93, 49]);
            assert_eq!([z.left("a"), z.left("b")], [93, 9]);
            assert_eq!([seen.left("a"), seen.left("b")], [93, 5]);
            assert_eq!([y.left("b"), charged.left("b")], [9, 5]);
            assert_eq!([y.policies().len(), charged.policies().len()], [1, 1]);
        });
    });
}

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
    let admitted = decisions.iter().filter(|one| admitted_by_store(one));
    admitted.count()
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
