//! Stores and limiters, as most tests need them.

use testkit::Server;
use tollgate::{
    Limiter, ManualClock, MemoryStore, Policy, Quota, RedisStore, clock::Timestamp,
    limiter::LimiterBuilder, redis::RedisStoreBuilder,
};

use crate::world::{START, TEST_TIMEOUT};

/// A store on this server. No request is admitted uncounted because the machine is busy.
pub fn redis(server: &Server) -> RedisStore {
    let store = RedisStore::builder().url(server.url());
    store.timeout(TEST_TIMEOUT).built()
}

/// A store in process, and its clock, which only moves when it is set.
pub fn frozen() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(START as i64));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (store, clock)
}

/// A limiter under these policies, with the settings of `builder`.
#[track_caller]
pub fn limiter(builder: LimiterBuilder, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let builder = policies.into_iter().fold(builder, LimiterBuilder::policy);
    builder.built()
}

/// What a builder makes.
pub trait Built {
    type Output;

    /// Builds what a test takes for valid.
    fn built(self) -> Self::Output;
}

impl<T: From<Limiter>> Built for LimiterBuilder<T> {
    type Output = T;

    #[track_caller]
    fn built(self) -> T {
        self.build().expect("valid policies")
    }
}

impl Built for RedisStoreBuilder {
    type Output = RedisStore;

    #[track_caller]
    fn built(self) -> RedisStore {
        self.build().expect("a valid store")
    }
}

/// A quota in words, such as `5/min burst 9`.
#[track_caller]
pub fn quota(words: &str) -> Quota {
    words.parse().expect(words)
}
