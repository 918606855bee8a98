//! What the tests share.

use std::time::Duration;

use testkit::{Clock as ServerClock, Server};
use tollgate::{
    Clock, Decision, DecisionSource, Key, Limiter, ManualClock, MemoryStore, OnStoreError, Policy,
    RedisStore, RetryAfter, Timestamp,
};

pub(crate) const SECOND: i64 = 1_000_000;
pub(crate) const HOUR: i64 = 3_600 * SECOND;

/// A store of either kind, on a clock that only moves when it is set.
pub(crate) enum World {
    Memory(MemoryStore, ManualClock),
    Redis(Server, ServerClock),
}

impl World {
    /// One of each, whose clocks show `micros` since 1970.
    pub(crate) fn both(micros: i64) -> [Self; 2] {
        [Self::memory(micros), Self::redis(micros)]
    }

    pub(crate) fn memory(micros: i64) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(micros));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        Self::Memory(store, clock)
    }

    pub(crate) fn redis(micros: i64) -> Self {
        let clock = ServerClock::at(micros as u64);
        let server = Server::builder().clock(&clock).start();
        Self::Redis(server, clock)
    }

    /// A limiter of these policies that reports store failures; on Redis with its own connections and its own estimate
    /// of the server's time.
    pub(crate) fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        let builder = match self {
            Self::Memory(store, _) => Limiter::builder().store(store.clone()),
            Self::Redis(server, _) => {
                // Rejections are cached by this process's clock, and only the server's is set.
                let store = RedisStore::builder()
                    .url(server.url())
                    .rejection_cache_staleness(Duration::ZERO);
                // The machine may be busy; these tests are about counting.
                let store = store.timeout(Duration::from_secs(20)).build();
                Limiter::builder().store(store.expect("a store"))
            }
        };
        let builder = policies.into_iter().fold(builder, |b, p| b.policy(p));
        let builder = builder.on_store_error(OnStoreError::Reject);
        builder.build().expect("a limiter")
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Memory(..) => "in process",
            Self::Redis(..) => "on Redis",
        }
    }

    pub(crate) fn set(&self, micros: i64) {
        match self {
            Self::Memory(_, clock) => clock.set(Timestamp::from_micros(micros)),
            Self::Redis(_, clock) => clock.set(micros as u64),
        }
    }

    pub(crate) fn now(&self) -> i64 {
        match self {
            Self::Memory(_, clock) => clock.now().as_micros(),
            Self::Redis(_, clock) => clock.micros() as i64,
        }
    }

    /// Moves the clock, back if `micros` is negative.
    pub(crate) fn step(&self, micros: i64) {
        self.set(self.now() + micros);
    }

    #[track_caller]
    pub(crate) fn holds_nothing_immortal(&self) {
        if let Self::Redis(server, _) = self {
            assert_eq!(server.immortal_keys(), [""; 0]);
        }
    }
}

/// Whether the store itself admitted it.
#[track_caller]
pub(crate) fn admitted_by_store(decision: &Decision) -> bool {
    assert_eq!(decision.source(), DecisionSource::Store, "{decision:?}");
    decision.is_admitted()
}

pub(crate) async fn check(limiter: &Limiter, key: Key) -> bool {
    admitted_by_store(&limiter.check(key).await)
}

/// Sends requests until one is rejected; returns how many were admitted, and the wait of the rejected one, in
/// microseconds.
pub(crate) async fn exhaust(limiter: &Limiter, key: Key, max: u64) -> (u64, i64) {
    let mut admitted = 0;
    loop {
        let decision = limiter.check(key).await;
        if !admitted_by_store(&decision) {
            let RetryAfter::In(wait) = decision.retry_after() else {
                panic!("{decision:?}");
            };
            return (admitted, wait.as_micros() as i64);
        }
        admitted += 1;
        assert!(admitted <= max, "there is no end to it");
    }
}
