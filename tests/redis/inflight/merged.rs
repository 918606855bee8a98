//! Requests of one batch, some of which are dropped before their result.

use futures_util::future::join3;
use tokio::runtime::Handle;
use tollgate_tests::prelude::*;

use tollgate_tests::servers::a_client_waits;

use crate::inflight::support::*;

/// A store whose IO is on the test's thread: requests of one turn share a batch.
fn store(url: String) -> RedisStore {
    let store = RedisStore::builder().rejection_cache_staleness(Duration::ZERO);
    let store = store.url(url).timeout(TEST_TIMEOUT);
    store.runtime(Handle::current()).built()
}

/// Makes `n` requests in one turn.
async fn at_once(limiter: &Limiter, n: usize) -> Vec<Result<Admission, Rejected>> {
    let spawn = |_| tokio::spawn(limiter.admit(KEY).into_future());
    let tasks: Vec<_> = (0..n).map(spawn).collect();
    let results = join_all(tasks).await.into_iter();
    let results = results.map(|result| result.expect("a task that ends well"));
    results.collect()
}

fn members(server: &Server) -> HashSet<String> {
    holders(server).into_iter().map(|(name, _)| name).collect()
}

#[tokio::test]
async fn of_fifty_merged_requests_ten_get_a_permit_each_and_release_it_each() {
    let world = World::redis_on_this_runtime();
    let server = world.server();
    let limiter = world.limiter([permit_policy(LONG_TTL)]);
    free(&limiter).await;
    server.reset_stats();
    let results = at_once(&limiter, 50).await;
    let calls = server.calls("evalsha") + server.calls("eval");
    assert_eq!(calls, 1, "they were merged, or this test says nothing");

    let mut held: Vec<_> = results.into_iter().filter(admitted_by_store).collect();
    assert_eq!(held.len() as u64, MAX_PERMITS);
    assert_eq!(stored_permits(server), MAX_PERMITS);
    let mut known = members(server);
    for left in (1..MAX_PERMITS).rev() {
        drop(held.pop());
        until_free(&limiter, MAX_PERMITS - left).await;
        let now = members(server);
        assert_eq!(known.difference(&now).count(), 1, "one went, no other");
        assert!(now.is_subset(&known));
        known = now;
    }
    drop(held);
    until_free(&limiter, MAX_PERMITS).await;
}

#[tokio::test]
async fn merged_requests_for_several_permits_each_hold_their_own() {
    let world = World::redis_on_this_runtime();
    let server = world.server();
    let limiter = world.limiter([permit_policy(LONG_TTL).cost(2)]);
    let results = at_once(&limiter, 7).await.into_iter();
    let mut held: Vec<_> = results.filter(admitted_by_store).collect();
    assert_eq!((held.len(), stored_permits(server)), (5, 10));
    drop(held.pop());
    until_free(&limiter, 2).await;
    drop(held);
    until_free(&limiter, 10).await;
}

/// In one turn: a request for another key, the release, and the request that follows it.
#[tokio::test]
async fn a_request_finds_the_permit_that_was_released_before_it() {
    let world = World::redis_on_this_runtime();
    let server = world.server();
    let one = Policy::new("permits", Quota::concurrent(1));
    let one = one.strategy(Concurrency::with_ttl(LONG_TTL));
    let limiter = build(Limiter::builder().store(store(server.url())), [one]);
    let held = limiter.admit("k").await;
    assert!(admitted_by_store(&held));
    let send = |key: &'static str| limiter.admit(Key::new(key)).into_future();
    let next = async {
        drop(held);
        send("k").await
    };
    let (first, other, next) = join3(send("first"), send("other"), next).await;
    for result in [first, other, next] {
        assert!(admitted_by_store(&result), "{result:?}");
    }
}

/// Makes requests, of which the server sends no results before this returns.
async fn sent(
    server: &Server,
    limiter: &Limiter,
    requests: usize,
) -> Vec<tokio::task::JoinHandle<Result<Admission, Rejected>>> {
    server.command(&["CLIENT", "PAUSE", "600000", "WRITE"]).ok();
    let tasks = (0..requests).map(|_| tokio::spawn(limiter.admit(KEY).into_future()));
    let tasks = tasks.collect();
    let are_sent = async || a_client_waits(server);
    until("the questions have been sent", are_sent).await;
    tasks
}

/// A server on which nothing has been done but to open the limiter's connection and load its script.
async fn warm(policies: impl IntoIterator<Item = Policy>) -> (Server, Limiter) {
    let server = Server::start();
    let limiter = build(Limiter::builder().store(store(server.url())), policies);
    drop(admit(&limiter).await);
    until("all is as new", async || server.keys().is_empty()).await;
    (server, limiter)
}

/// The dropped requests and the others share one batch.
#[tokio::test]
async fn a_result_whose_waiter_was_dropped_releases_its_permits_and_no_others() {
    // Of fifty requests, of one for eight permits, and of half of eight requests.
    for (requests, cost, dropped) in [(50, 1, 1), (1, 8, 1), (8, 1, 2)] {
        let (server, limiter) = warm([permit_policy(LONG_TTL).cost(cost)]).await;
        server.reset_stats();
        let tasks = sent(&server, &limiter, requests).await;
        for task in tasks.iter().step_by(dropped) {
            task.abort();
        }
        server.command(&["CLIENT", "UNPAUSE"]).ok();
        let mut held = Vec::new();
        for task in tasks {
            held.extend(task.await.ok());
        }
        assert_eq!(held.len(), requests - requests.div_ceil(dropped));
        until("they were taken", async || server.calls("zadd") > 0).await;
        until_free(&limiter, MAX_PERMITS - held.len() as u64).await;
        drop(held);
        until_free(&limiter, MAX_PERMITS).await;
        assert_eq!(server.keys(), [""; 0]);
    }
}

/// The first policy has acquired its permits when the second fails to write.
#[tokio::test]
async fn merged_requests_that_fail_half_way_hold_no_permit() {
    for n in [1, 10, 50] {
        let server = Server::start();
        server.acl("half", "secret", "~* +@all -set");
        let rate = Policy::new("rate", Quota::requests(1_000).per_hour());
        let rate = rate.key(extract::global()).strategy(Gcra);
        let store = store(server.url_as("half", "secret"));
        let policies = [permit_policy(LONG_TTL), rate];
        let limiter = build(Limiter::builder().store(store), policies);
        for result in at_once(&limiter, n).await {
            assert!(result.is_err(), "{result:?}");
        }
        assert_eq!(server.keys(), [""; 0], "{n} requests at once");
    }
}
