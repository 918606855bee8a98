//! What the tests share.

use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Request, Response};
use testkit::{Clock, Server};
use tollgate::{
    CalendarWindow, Decision, FixedWindow, Gcra, Key, Limiter, ListWindow, OnStoreError, Policy,
    RedisStore, Ruling, SlidingLog, SlidingWindow, Source, StoreError, TokenBucket,
};

/// The machine may be busy; where counting is tested, time is not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Neither on a second nor on a millisecond.
pub(crate) const START: u64 = 1_750_000_000_123_457;

/// A server whose clock stands still.
pub(crate) fn on_a_clock() -> (Clock, Server) {
    let clock = Clock::at(START);
    let server = Server::builder().clock(&clock).start();
    (clock, server)
}

/// How a policy is counted: whatever is promised holds for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Gcra,
    Bucket,
    Window,
    Calendar,
    List,
    Log,
    Sliding,
}

impl By {
    pub(crate) const ALL: [Self; 7] = [
        Self::Gcra,
        Self::Bucket,
        Self::Window,
        Self::Calendar,
        Self::List,
        Self::Log,
        Self::Sliding,
    ];
    /// One of each kind: a value that says it all, and one that needs its time to live.
    pub(crate) const TWO: [Self; 2] = [Self::Gcra, Self::Window];
    /// Two in one decision: each comes first, each comes second, and beside strings and lists.
    pub(crate) const PAIRS: [[Self; 2]; 10] = [
        [Self::Gcra, Self::Window],
        [Self::Window, Self::Gcra],
        [Self::Bucket, Self::List],
        [Self::List, Self::Bucket],
        [Self::Calendar, Self::Log],
        [Self::Log, Self::Calendar],
        [Self::Sliding, Self::Gcra],
        [Self::Window, Self::Sliding],
        [Self::List, Self::Log],
        [Self::Log, Self::List],
    ];

    pub(crate) fn policy(self, name: &str, quota: &str) -> Policy {
        let policy = Policy::new(name, quota.parse().expect(quota));
        match self {
            Self::Gcra => policy.strategy(Gcra),
            Self::Bucket => policy.strategy(TokenBucket),
            Self::Window => policy.strategy(FixedWindow),
            Self::Calendar => policy.strategy(CalendarWindow::utc()),
            Self::List => policy.strategy(ListWindow),
            Self::Log => policy.strategy(SlidingLog),
            Self::Sliding => policy.strategy(SlidingWindow::new()),
        }
    }
}

pub(crate) fn store(server: &Server) -> RedisStore {
    store_at(server.url())
}

pub(crate) fn store_at(url: String) -> RedisStore {
    // Refusals are remembered by this process's clock, and the server's is set by hand.
    let store = RedisStore::builder()
        .url(url)
        .deadline(PATIENCE)
        .denials(Duration::ZERO);
    store.build().expect("a store")
}

/// A limiter that shows faults.
pub(crate) fn limiter(store: RedisStore, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let limiter = policies
        .into_iter()
        .fold(Limiter::builder().store(store), |builder, policy| {
            builder.policy(policy)
        });
    let limiter = limiter.on_store_error(OnStoreError::Refuse);
    limiter.build().expect("a limiter")
}

/// A limiter on connections of its own, under one policy `p`.
pub(crate) fn single(server: &Server, by: By, quota: &str) -> Limiter {
    limiter(store(server), [by.policy("p", quota)])
}

/// A limiter on connections of its own, under policies `first` and `second`.
pub(crate) fn pair(server: &Server, [first, second]: [By; 2], quota: &str) -> Limiter {
    let policies = [first.policy("first", quota), second.policy("second", quota)];
    limiter(store(server), policies)
}

/// Whether it was admitted, by the store itself.
#[track_caller]
pub(crate) fn counted(decision: &Decision) -> bool {
    assert_eq!(decision.source(), Source::Store, "{decision:?}");
    decision.is_admitted()
}

/// The store error that a request was refused for.
#[track_caller]
pub(crate) fn fault(decision: &Decision) -> StoreError {
    match decision.ruling() {
        Ruling::Fault(error) => error.clone(),
        other => panic!("{other:?} in place of a fault"),
    }
}

/// What is used of each policy's quota.
pub(crate) async fn used(limiter: &Limiter, keys: impl Into<tollgate::Keys>) -> Vec<u64> {
    let seen = limiter.peek(keys).await;
    assert_eq!(seen.source(), Source::Store, "{seen:?}");
    seen.verdicts()
        .map(|verdict| verdict.limit() - verdict.remaining())
        .collect()
}

/// Sends `requests` requests for `key` from `tasks` tasks, each over one of the limiters in turn; returns how many were
/// admitted.
pub(crate) async fn hammer(limiters: &[Limiter], key: Key, tasks: usize, requests: u64) -> u64 {
    let tickets = Arc::new(AtomicU64::new(requests));
    let tasks: Vec<_> = limiters
        .iter()
        .cycle()
        .take(tasks)
        .map(|limiter| {
            let (limiter, tickets) = (limiter.clone(), tickets.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                let next = |left: u64| left.checked_sub(1);
                while tickets
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
                    .is_ok()
                {
                    admitted += u64::from(counted(&limiter.check(key).await));
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("a task ends well");
    }
    admitted
}

/// A handler.
pub(crate) async fn hello(_: Request<()>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".to_owned()))
}

/// Asks until it is so, for as long as [`PATIENCE`] lasts.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut probe: impl FnMut() -> F) {
    let start = Instant::now();
    while !probe().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The one key in the server.
#[track_caller]
pub(crate) fn only_key(server: &Server) -> String {
    let keys = server.keys();
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.concat()
}

/// What a key holds and when it ends, whatever its type is.
pub(crate) fn contents(server: &Server, key: &str) -> [testkit::Reply; 2] {
    let dump = server.command(&["DUMP", key]).ok();
    [dump, server.command(&["PEXPIRETIME", key]).ok()]
}
