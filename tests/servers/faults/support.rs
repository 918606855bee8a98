//! What the tests share.

use tokio::runtime::Handle;
use tollgate::{limiter::LimitStatus, redis::RedisStoreBuilder};
use tollgate_tests::results::CallResult;
pub(crate) use tollgate_tests::{clocks::StillTime, prelude::*};

pub(crate) const KEY: Key = Key::global();

/// For stores whose servers are made silent. Calls to servers that are well may take longer, where the machine is busy.
pub(crate) const SHORT_TIMEOUT: Duration = ms(300);

/// Where nothing listens: a port that needs rights, so that no other test's server gets it.
pub(crate) const NOWHERE: &str = "redis://127.0.0.1:1";

pub(crate) fn url(addr: impl std::fmt::Display) -> String {
    format!("redis://{addr}")
}

/// A store that calls Redis for each request, also for rejected keys, and waits for replies as long as it takes.
pub(crate) fn builder(url: impl Into<String>) -> RedisStoreBuilder {
    RedisStore::builder()
        .url(url)
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO)
}

pub(crate) fn store(server: &Server) -> RedisStore {
    builder(server.url()).built()
}

/// A store whose IO is done by the test's own thread: in the test's time, in turns with its tasks, and logged where it keeps its log.
pub(crate) fn here(builder: RedisStoreBuilder) -> RedisStore {
    builder.runtime(Handle::current()).built()
}

/// A store whose calls time out soon.
pub(crate) fn hasty(url: impl Into<String>) -> RedisStore {
    builder(url).timeout(SHORT_TIMEOUT).built()
}

/// A store at whose address nothing listens.
pub(crate) fn nowhere() -> RedisStore {
    builder(NOWHERE).built()
}

/// A server, and the network before it. A network that cuts connections makes calls fail at once.
pub(crate) fn network() -> (Server, Arc<Proxy>) {
    let server = Server::start();
    let proxy = Arc::new(Proxy::to(server.addr()));
    (server, proxy)
}

pub(crate) fn through(network: &Proxy) -> RedisStore {
    builder(url(network.addr())).built()
}

pub(crate) fn through_here(network: &Proxy) -> RedisStore {
    here(builder(url(network.addr())))
}

/// Has a server hold what may write. It replies to all else, such as `PING`.
pub(crate) const PAUSE_WRITES: [&str; 4] = ["CLIENT", "PAUSE", "600000", "WRITE"];
pub(crate) const UNPAUSE: [&str; 2] = ["CLIENT", "UNPAUSE"];

/// Makes a server the replica of a master that isn't there, and a master again.
pub(crate) const DEMOTE: [&str; 3] = ["REPLICAOF", "127.0.0.1", "1"];
pub(crate) const PROMOTE: [&str; 3] = ["REPLICAOF", "NO", "ONE"];

#[track_caller]
pub(crate) fn order(server: &Server, command: &[&str]) {
    server.command(command).ok();
}

/// How many connections a server has had.
pub(crate) fn connected(server: &Server) -> u64 {
    let connected = server.info("stats", "total_connections_received");
    let connected = connected.and_then(|connected| connected.parse().ok());
    connected.expect("a number")
}

/// How many clients wait for this command of theirs until a server's pause ends.
pub(crate) fn held_by_pause(server: &Server, command: &str) -> usize {
    let clients = server.command(&["CLIENT", "LIST"]).text();
    let command = format!(" cmd={command} ");
    let is_held = |client: &&str| client.contains(" flags=b ") && client.contains(&command);
    clients.lines().filter(is_held).count()
}

/// Refills so slowly that a test sees nothing of it.
pub(crate) fn quota(units: u64) -> Quota {
    Quota::requests(units).per_month()
}

pub(crate) fn policy(units: u64) -> Policy {
    Policy::new("p", quota(units))
}

/// Every strategy that counts a rate.
pub(crate) fn every(units: u64) -> [Policy; 7] {
    // A window that ends in 2049, whatever the day of the test is.
    let forty_years = Quota::requests(units).per(secs(40 * 365 * 86_400));
    [
        policy(units).strategy(Gcra),
        policy(units).strategy(TokenBucket),
        policy(units).strategy(FixedWindow),
        Policy::new("p", forty_years).strategy(CalendarWindow::utc()),
        policy(units).strategy(ListWindow),
        policy(units).strategy(SlidingLog),
        policy(units).strategy(SlidingWindow::new()),
    ]
}

/// Permits that are not free again by themselves within a test.
pub(crate) fn permits(many: u64) -> Policy {
    let hour = Concurrency::with_ttl(secs(3_600));
    Policy::new("p", Quota::concurrent(many)).strategy(hour)
}

/// A limiter under one policy.
pub(crate) fn under(
    policy: Policy,
    store: RedisStore,
    response: impl Into<OnStoreError>,
) -> Limiter {
    let limiter = Limiter::builder().store(store).policy(policy);
    let limiter = limiter.on_store_error(response);
    limiter.built()
}

/// A limiter of so many requests that reports store failures.
pub(crate) fn rejecting(store: RedisStore, units: u64) -> Limiter {
    under(policy(units), store, OnStoreError::Reject)
}

/// A limiter of so many permits that reports store failures.
pub(crate) fn permit_policy(store: RedisStore, many: u64) -> Limiter {
    under(permits(many), store, OnStoreError::Reject)
}

/// A limiter that is one of several processes.
pub(crate) fn sharing(store: RedisStore, units: u64, processes: u32) -> Limiter {
    under(policy(units), store, LocalFallback::shared_by(processes))
}

#[track_caller]
pub(crate) fn store_error(result: &impl CallResult) -> StoreError {
    assert_eq!(result.outcome().1, DecisionSource::Fallback);
    tollgate_tests::results::store_error(result)
}

/// As many permits of [`KEY`].
pub(crate) async fn take(limiter: &Limiter, many: usize) -> Vec<Admission> {
    let mut held = Vec::new();
    for _ in 0..many {
        held.push(limiter.admit(KEY).await.expect("a permit"));
    }
    held
}

/// How many of these requests are admitted, none of them by the store.
pub(crate) async fn admitted_in_process(limiter: &Limiter, key: Key, requests: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..requests {
        let decision = limiter.check(key).await;
        assert_eq!(decision.source(), DecisionSource::Fallback, "{decision:?}");
        admitted += u64::from(decision.is_admitted());
    }
    admitted
}

/// The error of a request that is decided at once. `None` if it has to wait for the store.
pub(crate) fn error_at_once(limiter: &Limiter) -> Option<StoreError> {
    let admit = limiter.admit(Key::new("whoever")).into_future();
    // Many in turn would use up the budget of a tokio task.
    let result = tokio::task::coop::unconstrained(admit).now_or_never()?;
    // The store may have replied by then.
    let is_by_store = result.decision().source() == DecisionSource::Store;
    (!is_by_store).then(|| store_error(&result))
}

pub(crate) fn is_open(limiter: &Limiter) -> bool {
    matches!(error_at_once(limiter), Some(StoreError::CircuitOpen { .. }))
}

/// Sends requests until the breaker is open. They take no permit, whose refund would be kept.
pub(crate) async fn opened(limiter: &Limiter) {
    until("the breaker opens", async || {
        let seen = limiter.peek(KEY).await;
        matches!(seen, Err(CallError::Store(StoreError::CircuitOpen { .. })))
    })
    .await;
}

/// Sends requests until the fallback decides at once.
pub(crate) async fn opened_in_process(limiter: &Limiter) {
    let admit = || limiter.admit(Key::new("whoever")).cost(0).into_future();
    until("the store fails", async || {
        admit().await.decision().source() == DecisionSource::Fallback
            && admit().now_or_never().is_some()
    })
    .await;
}

/// Sends requests until the store decides.
pub(crate) async fn resumed(limiter: &Limiter) {
    until("the store counts again", async || {
        let decision = limiter.admit(Key::new("whoever")).await.decision();
        decision.source() == DecisionSource::Store
    })
    .await;
}

/// The store's state of `key` under the policy `p`.
pub(crate) async fn seen_by_the_store(limiter: &Limiter, key: Key) -> LimitStatus {
    let mut seen = None;
    until("the store replies", async || {
        seen = limiter.peek(key).await.ok();
        seen.is_some()
    })
    .await;
    seen.expect("a decision")
}

/// How many units of policy `p` are left, by the store's count.
pub(crate) async fn left_on_the_store(limiter: &Limiter, key: Key) -> u64 {
    let seen = seen_by_the_store(limiter, key).await;
    seen.left("p")
}

/// How many units of policy `p` are used, by the store's count.
pub(crate) async fn used_on_the_store(limiter: &Limiter, key: Key) -> u64 {
    let seen = seen_by_the_store(limiter, key).await;
    seen.used("p")
}

/// Waits until every queued operation was sent.
pub(crate) async fn flushed(limiter: &Limiter) {
    let sent = limiter.shutdown(TEST_TIMEOUT).await;
    sent.expect("the store replies");
}
