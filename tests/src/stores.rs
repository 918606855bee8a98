//! Stores and limiters, as most tests need them.

use testkit::Server;
use tollgate::{
    Limiter, ManualClock, MemoryStore, Policy, RedisStore, clock::Timestamp,
    limiter::LimiterBuilder,
};

use crate::world::{START, TEST_TIMEOUT};

/// A store on this server. No request is admitted uncounted because the machine is busy.
pub fn redis(server: &Server) -> RedisStore {
    let store = RedisStore::builder().url(server.url());
    store.timeout(TEST_TIMEOUT).build().expect("a store")
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
    builder.build().expect("a limiter")
}
