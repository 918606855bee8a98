//! A store of either kind on a clock that only moves when it is set.

use std::time::Duration;

use testkit::{Clock as ServerClock, Server};
use tollgate::{
    Key, Limiter, LimiterBuilder, ManualClock, MemoryStore, OnStoreError, Policy, RedisStore,
    Timestamp,
};

/// The machine may be busy; where counting is tested, time is not.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A full hour, 2027-01-15 08:00:00 UTC.
pub(crate) const START: u64 = 1_800_000_000_000_000;

pub(crate) const KEY: Key = Key::global();

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A store and its clock.
pub(crate) struct World {
    store: Backing,
    time: Time,
}

#[expect(clippy::large_enum_variant, reason = "there are few")]
enum Backing {
    Memory(MemoryStore),
    Redis(RedisStore, Server),
}

enum Time {
    Local(ManualClock),
    Server(ServerClock),
}

impl World {
    pub(crate) fn memory() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(START as i64));
        Self {
            store: Backing::Memory(MemoryStore::builder().clock(clock.clone()).build()),
            time: Time::Local(clock),
        }
    }

    pub(crate) fn redis() -> Self {
        let clock = ServerClock::at(START);
        let server = Server::builder().clock(&clock).start();
        let store = RedisStore::builder()
            .url(server.url())
            .timeout(TEST_TIMEOUT)
            // Rejections are cached by this process's clock, and only the server's is set.
            .rejection_cache_staleness(Duration::ZERO);
        Self {
            store: Backing::Redis(store.build().expect("a store"), server),
            time: Time::Server(clock),
        }
    }

    pub(crate) fn both() -> [Self; 2] {
        [Self::memory(), Self::redis()]
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.store {
            Backing::Memory(_) => "memory",
            Backing::Redis(..) => "redis",
        }
    }

    /// The server, if there is one.
    pub(crate) fn redis_server(&self) -> Option<&Server> {
        match &self.store {
            Backing::Memory(_) => None,
            Backing::Redis(_, server) => Some(server),
        }
    }

    pub(crate) fn builder(&self) -> LimiterBuilder {
        let builder = Limiter::builder().on_store_error(OnStoreError::Reject);
        match &self.store {
            Backing::Memory(store) => builder.store(store.clone()),
            Backing::Redis(store, _) => builder.store(store.clone()),
        }
    }

    /// A limiter on this store that reports store failures.
    #[track_caller]
    pub(crate) fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        let policies = policies.into_iter();
        let builder = policies.fold(self.builder(), LimiterBuilder::policy);
        builder.build().expect("a limiter")
    }

    pub(crate) fn set(&self, micros: u64) {
        match &self.time {
            Time::Local(clock) => clock.set(Timestamp::from_micros(micros as i64)),
            Time::Server(clock) => clock.set(micros),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        match &self.time {
            Time::Local(clock) => tollgate::Clock::now(clock).as_micros() as u64,
            Time::Server(clock) => clock.micros(),
        }
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.set(self.now() + by.as_micros() as u64);
    }
}
