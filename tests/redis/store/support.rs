//! What the tests share.

use testkit::Clock;
use tokio::task::JoinHandle;
use tollgate::redis::deadpool_redis::{Manager, Pool, Runtime};
pub(crate) use tollgate_tests::load::{hammer, limiter, used};
use tollgate_tests::prelude::*;

/// Neither on a second nor on a millisecond.
pub(crate) const START: u64 = 1_750_000_000_123_457;

/// A server whose clock only moves when it is set. Calendar windows and buckets are counted on one: by the real clock
/// they end at any moment, at a full hour and at the end of a month.
pub(crate) fn on_a_clock() -> (Clock, Server) {
    let clock = Clock::at(START);
    let server = Server::builder().clock(&clock).start();
    (clock, server)
}

/// Each strategy once: they share a server, and windows of other buckets would go on with what one has counted.
pub(crate) const EACH: [StrategyKind; StrategyKind::ALL.len() - 1] = {
    let [each @ .., _] = StrategyKind::ALL;
    each
};

/// One of each kind: a value that is complete by itself, and one that needs its TTL.
pub(crate) const TWO: [StrategyKind; 2] = [StrategyKind::Gcra, StrategyKind::Fixed];

/// Two in one decision: each comes first, each comes second, and beside strings and lists.
pub(crate) const PAIRS: [[StrategyKind; 2]; 10] = [
    [StrategyKind::Gcra, StrategyKind::Fixed],
    [StrategyKind::Fixed, StrategyKind::Gcra],
    [StrategyKind::Bucket, StrategyKind::List],
    [StrategyKind::List, StrategyKind::Bucket],
    [StrategyKind::Calendar, StrategyKind::Log],
    [StrategyKind::Log, StrategyKind::Calendar],
    [StrategyKind::Sliding(1), StrategyKind::Gcra],
    [StrategyKind::Fixed, StrategyKind::Sliding(1)],
    [StrategyKind::List, StrategyKind::Log],
    [StrategyKind::Log, StrategyKind::List],
];

/// With ten units a period, one comes back within seconds, minutes or days. GCRA moves a key's end seldom where units come
/// back within seconds, and with each charge otherwise.
pub(crate) const PERIODS: [&str; 3] = ["min", "h", "month"];

/// This many units per each of the periods.
pub(crate) fn quotas(units: u64) -> [String; 3] {
    PERIODS.map(|period| format!("{units}/{period}"))
}

/// Each of these with each of those.
pub(crate) fn each_with<A: Copy, B: Clone, const M: usize, const N: usize>(
    these: [A; M],
    those: [B; N],
) -> impl Iterator<Item = (A, B)> {
    let with_each = move |this| those.clone().map(|that| (this, that));
    these.into_iter().flat_map(with_each)
}

pub(crate) fn store(server: &Server) -> RedisStore {
    store_at(server.url())
}

pub(crate) fn store_at(url: String) -> RedisStore {
    // Rejections are cached by this process's clock, and only the server's is set.
    let store = RedisStore::builder().rejection_cache_staleness(Duration::ZERO);
    store.url(url).timeout(TEST_TIMEOUT).built()
}

/// A limiter on connections of its own, under one policy `p`.
pub(crate) fn single(server: &Server, strategy: StrategyKind, quota: &str) -> Limiter {
    limiter(store(server), [strategy.policy("p", quota)])
}

/// A limiter on connections of its own, under policies `first` and `second`.
pub(crate) fn pair(server: &Server, strategies: [StrategyKind; 2], quota: &str) -> Limiter {
    pair_on(store(server), strategies, quota)
}

/// A limiter under policies `first` and `second`.
pub(crate) fn pair_on(store: RedisStore, strategies: [StrategyKind; 2], quota: &str) -> Limiter {
    let [first, second] = strategies;
    let policies = [first.policy("first", quota), second.policy("second", quota)];
    limiter(store, policies)
}

/// A pool of connections with timeouts that are long enough for a busy machine. A command that is lost with its connection ends
/// by them.
pub(crate) fn pool_of(url: impl redis::IntoConnectionInfo, connections: usize) -> Pool {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(secs(10)))
        .set_response_timeout(Some(secs(10)));
    let manager = Manager::new_with_config(url, config).expect("a URL");
    let pool = Pool::builder(manager).max_size(connections);
    pool.runtime(Runtime::Tokio1).build().expect("a pool")
}

/// What a key holds and when it ends, whatever its type is.
pub(crate) fn contents(server: &Server, key: &str) -> (testkit::Reply, i64) {
    let dump = server.command(&["DUMP", key]).ok();
    (dump, server.expires_at(key))
}

/// Waits until so many units are used: a refund is not awaited where it is made.
#[track_caller]
pub(crate) fn until_used(
    limiter: &Limiter,
    key: impl Into<Key>,
    units: [u64; 1],
) -> impl Future<Output = ()> {
    let key = key.into();
    until("so many units are used", async move || {
        used(limiter, key).await == units
    })
}

/// Sends a request for each key at once; the decisions are in the order of the keys.
pub(crate) async fn check_at_once<K: Into<Keys>>(
    limiter: &Limiter,
    keys: impl IntoIterator<Item = K>,
) -> Vec<Decision> {
    let checks = keys.into_iter().map(|key| limiter.check(key).into_future());
    all(checks.map(tokio::spawn)).await
}

/// What each of these tasks returns.
pub(crate) async fn all<T>(tasks: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    // All of them are spawned before the first is awaited.
    let tasks: Vec<_> = tasks.into_iter().collect();
    let results = join_all(tasks).await.into_iter();
    results.map(|result| result.expect("no panic")).collect()
}
