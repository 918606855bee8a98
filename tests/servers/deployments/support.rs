//! What the tests share.

use tollgate::redis::RedisStoreBuilder;
use tollgate_tests::load;
pub(crate) use tollgate_tests::prelude::*;

/// A limiter under one policy `p` of `n` a week, which reports store failures.
pub(crate) fn limiter(store: RedisStore, quota: u64) -> Limiter {
    load::limiter(store, [Policy::new("p", Quota::requests(quota).per_week())])
}

/// A store that waits for replies as long as it takes.
pub(crate) fn patient(store: RedisStoreBuilder) -> RedisStore {
    store.timeout(TEST_TIMEOUT).built()
}

/// A limiter on the server that `url` names.
pub(crate) fn at(url: &str) -> Limiter {
    limiter(patient(RedisStore::builder().url(url)), 3)
}

pub(crate) fn key() -> Key {
    Key::new("k")
}

/// Admits three, and no more.
pub(crate) async fn counts(limiter: &Limiter) {
    for _ in 0..3 {
        assert!(admitted_by_store(&limiter.check(key()).await));
    }
    assert!(!admitted_by_store(&limiter.check(key()).await));
}
