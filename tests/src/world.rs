//! A store of either kind on a clock that only moves when it is set.

use std::{thread, time::Duration};

use testkit::{Clock as ServerClock, Server};
use tollgate::{
    Key, Limiter, MemoryStore, OnStoreError, Policy, RateLimitLayer, RedisStore,
    limiter::LimiterBuilder,
};

pub use crate::until::TEST_TIMEOUT;
use crate::{strategy_kind::StrategyKind, two_clocks::TwoClocks};

/// A full hour, 2027-01-15 08:00:00 UTC.
pub const START: u64 = 1_800_000_000_000_000;

pub const KEY: Key = Key::global();

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A store and its clock.
pub struct World {
    store: Backing,
    time: Time,
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("failed on {}", self.name());
        }
    }
}

enum Backing {
    Memory(MemoryStore),
    Redis(RedisStore, Server),
}

enum Time {
    Local(TwoClocks),
    Server(ServerClock),
}

impl World {
    pub fn memory() -> Self {
        let clock = TwoClocks::at(START as i64);
        Self {
            store: Backing::Memory(MemoryStore::builder().clock(clock.clone()).build()),
            time: Time::Local(clock),
        }
    }

    /// Without overrides, so that the server is called for requests alone.
    pub fn redis() -> Self {
        Self::on_redis(false)
    }

    fn on_redis(overrides: bool) -> Self {
        let clock = ServerClock::at(START);
        let server = Server::builder().clock(&clock).start();
        let store = RedisStore::builder()
            .url(server.url())
            .overrides(overrides)
            .timeout(TEST_TIMEOUT)
            // Rejections are cached by this process's clock, and only the server's is set.
            .rejection_cache_staleness(Duration::ZERO);
        Self {
            store: Backing::Redis(store.build().expect("a store"), server),
            time: Time::Server(clock),
        }
    }

    /// One on each store, one after the other: the one in which a test panics prints its name.
    pub fn both() -> impl Iterator<Item = Self> {
        [Self::memory, Self::redis].into_iter().map(|world| world())
    }

    pub fn both_with_overrides() -> impl Iterator<Item = Self> {
        let on_redis = || Self::on_redis(true);
        [Self::memory, on_redis].into_iter().map(|world| world())
    }

    pub fn name(&self) -> &'static str {
        match self.store {
            Backing::Memory(_) => "memory",
            Backing::Redis(..) => "redis",
        }
    }

    /// The server, if there is one.
    pub fn redis_server(&self) -> Option<&Server> {
        match &self.store {
            Backing::Memory(_) => None,
            Backing::Redis(_, server) => Some(server),
        }
    }

    #[track_caller]
    pub fn server(&self) -> &Server {
        self.redis_server().expect("a world on Redis")
    }

    pub fn builder(&self) -> LimiterBuilder {
        let builder = Limiter::builder().on_store_error(OnStoreError::Reject);
        match &self.store {
            Backing::Memory(store) => builder.store(store.clone()),
            Backing::Redis(store, _) => builder.store(store.clone()),
        }
    }

    /// A limiter on this store that reports store failures.
    #[track_caller]
    pub fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        let policies = policies.into_iter();
        let builder = policies.fold(self.builder(), LimiterBuilder::policy);
        builder.build().expect("a limiter")
    }

    /// A limiter under one policy `p`.
    #[track_caller]
    pub fn single(&self, strategy: StrategyKind, quota: &str) -> Limiter {
        self.limiter([strategy.policy("p", quota)])
    }

    /// A layer on this store that reports store failures.
    #[track_caller]
    pub fn layer(&self, policies: impl IntoIterator<Item = Policy>) -> RateLimitLayer {
        RateLimitLayer::new(self.limiter(policies))
    }

    /// Every key on the server ends by itself.
    #[track_caller]
    pub fn no_key_is_immortal(&self) {
        if let Some(server) = self.redis_server() {
            assert_eq!(server.immortal_keys(), Vec::<String>::new());
        }
    }

    /// How many permits were renewed and released; in process, how many calls were made.
    pub fn renewals(&self) -> u64 {
        match (&self.time, self.redis_server()) {
            (Time::Local(clock), _) => clock.reads(),
            // The server's own count of what is done to each permit.
            (_, server) => server.map_or(0, |server| server.calls("zmscore")),
        }
    }

    pub fn set(&self, micros: u64) {
        match &self.time {
            Time::Local(clock) => clock.pass(micros as i64 - clock.micros()),
            Time::Server(clock) => clock.set(micros),
        }
    }

    pub fn now(&self) -> u64 {
        match &self.time {
            Time::Local(clock) => clock.micros() as u64,
            Time::Server(clock) => clock.micros(),
        }
    }

    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by.as_micros() as u64);
    }
}
