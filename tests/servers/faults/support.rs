//! What the tests share.

use std::{
    future::IntoFuture,
    io::Write,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use futures_util::FutureExt;
use testkit::Server;
use tollgate::{
    CalendarWindow, Decision, DecisionKind, DecisionSource, Key, LimitStatus, Limiter,
    LocalFallback, OnStoreError, Policy, Quota, RedisStore, RedisStoreBuilder, StoreError,
};

pub(crate) use crate::faults::until::{TEST_TIMEOUT, until};

/// Longer than the default: the machine may be busy.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(300);

pub(crate) fn url(addr: impl std::fmt::Display) -> String {
    format!("redis://{addr}")
}

/// A store that calls Redis for each request, also for rejected keys.
pub(crate) fn builder(url: impl Into<String>) -> RedisStoreBuilder {
    RedisStore::builder()
        .url(url)
        .timeout(TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO)
}

pub(crate) fn store(server: &Server) -> RedisStore {
    builder(server.url()).build().expect("a store")
}

/// Refills so slowly that a test sees nothing of it.
pub(crate) fn quota(units: u64) -> Quota {
    Quota::requests(units).per_month()
}

/// A policy in a calendar window that ends in 2049, whatever the day of the test is.
pub(crate) fn calendar(units: u64) -> Policy {
    let forty_years = Duration::from_secs(40 * 365 * 86_400);
    Policy::new("p", Quota::requests(units).per(forty_years)).strategy(CalendarWindow::utc())
}

pub(crate) fn policy(units: u64) -> Policy {
    Policy::new("p", quota(units))
}

/// A limiter under one policy.
pub(crate) fn limiter(store: RedisStore, units: u64, response: impl Into<OnStoreError>) -> Limiter {
    let limiter = Limiter::builder().store(store).policy(policy(units));
    let limiter = limiter.on_store_error(response);
    limiter.build().expect("a limiter")
}

/// A limiter that is one of several processes.
pub(crate) fn sharing(store: RedisStore, units: u64, processes: u32) -> Limiter {
    limiter(store, units, LocalFallback::shared_by(processes))
}

/// A store at whose address nothing listens.
pub(crate) fn nowhere() -> RedisStore {
    let port = testkit::free_port();
    let store = builder(format!("redis://127.0.0.1:{port}"));
    store.build().expect("a store")
}

#[track_caller]
pub(crate) fn store_error(decision: &Decision) -> StoreError {
    assert_eq!(decision.source(), DecisionSource::Fallback);
    match decision.kind() {
        DecisionKind::StoreFailed(error) => error.clone(),
        other => panic!("{other:?} in place of a fault"),
    }
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

/// Sends requests until the breaker is open.
pub(crate) async fn opened(limiter: &Limiter) {
    until("the breaker opens", async || {
        matches!(
            limiter.check(Key::new("whoever")).await.kind(),
            DecisionKind::StoreFailed(StoreError::CircuitOpen { .. })
        )
    })
    .await;
}

/// Sends requests until the fallback decides.
pub(crate) async fn opened_in_process(limiter: &Limiter) {
    until("the store fails", async || {
        let key = Key::new("whoever");
        limiter.check(key).cost(0).await.source() == DecisionSource::Fallback
            && limiter
                .check(key)
                .cost(0)
                .into_future()
                .now_or_never()
                .is_some()
    })
    .await;
}

/// The store's state of `key` under the policy `p`. On a busy machine a call may miss its deadline.
pub(crate) async fn seen_by_the_store(limiter: &Limiter, key: Key) -> LimitStatus {
    let mut seen = None;
    until("the store replies", async || {
        seen = limiter.peek(key).await.ok();
        seen.is_some()
    })
    .await;
    seen.expect("a decision")
}

/// How many units of policy `p` are used, by the store's count.
pub(crate) async fn used_on_the_store(limiter: &Limiter, key: Key) -> u64 {
    let seen = seen_by_the_store(limiter, key).await;
    let policy = seen.policy("p").expect("a policy");
    policy.limit() - policy.remaining()
}

/// Sends requests until the store decides.
pub(crate) async fn resumed(limiter: &Limiter) {
    until("the store counts again", async || {
        limiter.check(Key::new("whoever")).await.source() == DecisionSource::Store
    })
    .await;
}

/// What all of these tests log. For all threads: whether a callsite is enabled may be decided by a thread that listens
/// for nothing.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn get() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let start = || {
            let log = Self(Arc::default());
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_writer(move || writer.clone())
                .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
                .with_ansi(false)
                .finish();
            tracing::subscriber::set_global_default(subscriber).expect("the first one");
            log
        };
        LOG.get_or_init(start).clone()
    }

    /// How many lines contain `text`.
    pub(crate) fn lines(&self, text: &str) -> usize {
        self.matching(text).len()
    }

    /// The lines that contain `text`.
    pub(crate) fn matching(&self, text: &str) -> Vec<String> {
        let log = self.0.lock().expect("a log");
        let log = String::from_utf8_lossy(&log);
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a log").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
