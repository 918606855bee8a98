//! A store's mistakes are found when it is built, and its settings are used as given.

use tollgate::{
    ConfigError,
    redis::{
        RedisStoreBuilder,
        deadpool_redis::{Config, PoolConfig},
    },
};
use tollgate_tests::prelude::*;

use crate::store::support::*;

const ANYWHERE: &str = "redis://127.0.0.1:6379";

#[track_caller]
fn mistake(store: Result<RedisStore, ConfigError>, value: &str, valid: &str) {
    let error = store.expect_err(value);
    assert_eq!(error.policy(), None);
    assert_contains(error, [value, valid]);
}

fn anywhere() -> RedisStoreBuilder {
    RedisStore::builder().url(ANYWHERE)
}

/// A limiter under a policy `p`.
fn limiter_on(store: RedisStoreBuilder, quota: &str) -> Limiter {
    limiter(store.built(), [StrategyKind::Gcra.policy("p", quota)])
}

#[test]
fn no_error_and_no_debug_form_shows_the_password_of_a_url() {
    for url in [
        "",
        "127.0.0.1:6379",
        "http://user:hunter2@127.0.0.1:6379",
        "redis://user:hunter2@127.0.0.1:port",
        "redis://user:hunter2@127.0.0.1:99999",
        "redis://user:hunter2@",
        "redis://user:hunter2@127.0.0.1:6379/no-number",
        "redis//user:hunter2@127.0.0.1:6379",
        "redis://user:hun%ter2%zz@[::1",
    ] {
        let by_config = RedisStore::from_config(Config::from_url(url));
        for store in [RedisStore::open(url), by_config] {
            let error = store.map(|_| ()).expect_err(url);
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hun"), "{text}");
            assert_contains(text, ["redis://user:password@host:6379"]);
        }
    }
    // And so does the debug form of a store.
    let store = RedisStore::open("redis://user:hunter2@127.0.0.1:6379").expect("a store");
    let limiter = limiter(store.clone(), [StrategyKind::Gcra.policy("p", "1/s")]);
    let text = format!("{store:?} {limiter:?}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn settings_out_of_range_are_config_errors() {
    let timeout = |micros| anywhere().timeout(Duration::from_micros(micros));
    for (builder, value, valid) in [
        (timeout(0), "a timeout of", "at least 1 ms"),
        (timeout(999), "a timeout of", "at least 1 ms"),
        (RedisStore::builder(), "without a server", "a URL"),
    ] {
        mistake(builder.build(), value, valid);
    }
    for prefix in "much-too-long-as-it-is:|{a}:|a b:|a\n:|ä:|tg|g2:|a:x1:".split('|') {
        let built = anywhere().prefix(prefix).build();
        mistake(built, &format!("{prefix:?}"), "A-Z a-z 0-9 : . _ -");
    }
    let mut config = Config::from_url(ANYWHERE);
    config.connection = Some(Default::default());
    mistake(RedisStore::from_config(config), "both", "one of them");
}

/// No instant lies that far ahead; a request must not be the first to notice.
#[tokio::test]
async fn a_timeout_past_all_time_is_a_config_error_or_works() {
    let server = Server::start();
    let store = RedisStore::builder().url(server.url());
    if let Ok(store) = store.timeout(Duration::MAX).build() {
        let limiter = limiter(store, [StrategyKind::Gcra.policy("p", "1/s")]);
        assert!(admitted_by_store(&limiter.check("key").await));
    }
}

#[tokio::test]
async fn a_deadpool_configuration_makes_a_store() {
    let server = Server::builder().password("p@ss").start();
    let mut config = Config::from_url(server.url());
    config.pool = Some(PoolConfig::new(2));
    let store = RedisStore::builder().config(config).timeout(TEST_TIMEOUT);
    let limiter = limiter_on(store, "9/h");
    for key in 0..20 {
        assert!(admitted_by_store(&limiter.check(key.to_string()).await));
    }
    let clients = server.command(&["CLIENT", "LIST"]).text();
    // One for requests, one for other commands, and that of this command.
    assert!(clients.lines().count() <= 3, "{clients}");
}

#[tokio::test]
async fn every_strategy_counts_by_the_protocol_that_a_url_names() {
    let (_clock, server) = on_a_clock();
    let policies = EACH.map(|strategy| strategy.policy(&format!("{strategy:?}"), "1/h"));
    let url = format!("{}/0?protocol=resp3", server.url());
    let limiter = limiter(store_at(url), policies);
    for is_admitted in [true, false] {
        assert_eq!(admitted_by_store(&limiter.check("key").await), is_admitted);
    }
}

/// The store opens connections of its own by the pool's manager.
#[test]
fn a_shared_pool_that_is_exhausted_on_a_runtime_that_stands_still_delays_no_request() {
    let server = Server::start();
    let pool = pool_of(server.url(), 2);
    let still = current_thread();
    let held = still.block_on(async { [pool.get().await, pool.get().await] });
    assert!(held.iter().all(Result::is_ok));
    let store = RedisStore::builder().pool(pool).timeout(TEST_TIMEOUT);
    let check = limiter_on(store, "10/h").check("key").into_future();
    let decision = current_thread().block_on(check);
    assert!(admitted_by_store(&decision), "{decision:?}");
}
