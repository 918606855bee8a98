//! A store's mistakes are found when it is built, and its settings are used as given.

use testkit::Clock;
use tollgate::{
    ConfigError,
    store::{
        RedisStoreBuilder,
        deadpool_redis::{Config, Pool, PoolConfig},
    },
};
use tollgate_tests::prelude::*;

use crate::store::support::*;

#[track_caller]
fn mistake(store: Result<RedisStore, ConfigError>, value: &str, valid: &str) {
    let error = store.expect_err(value);
    assert_eq!(error.policy(), None);
    let text = error.to_string();
    assert!(text.contains(value) && text.contains(valid), "{text}");
}

fn anywhere() -> RedisStoreBuilder {
    RedisStore::builder().url("redis://127.0.0.1:6379")
}

#[test]
fn a_pool_that_the_workers_would_use_up_is_a_config_error() {
    for connections in [0, 1] {
        let value = format!("a pool with max_size = {connections}");
        let pool = pool_of("redis://127.0.0.1:6379", connections);
        mistake(RedisStore::from_pool(pool), &value, "at least 2");
        let mut config = Config::from_url("redis://127.0.0.1:6379");
        config.pool = Some(PoolConfig::new(connections));
        mistake(RedisStore::from_config(config), &value, "at least 2");
    }
    assert!(RedisStore::from_pool(pool_of("redis://127.0.0.1:6379", 2)).is_ok());
}

#[test]
fn an_invalid_url_is_a_config_error_that_hides_its_password() {
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
        let both = [
            RedisStore::open(url),
            RedisStore::from_config(Config::from_url(url)),
        ];
        for store in both {
            let error = store.map(|_| ()).expect_err(url);
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hun"), "{text}");
            assert!(text.contains("redis://user:password@host:6379"), "{text}");
        }
    }
}

#[test]
fn the_debug_form_of_a_store_hides_its_password() {
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
        (anywhere().connections(0), "0 connections", "1 to 64"),
        (anywhere().connections(65), "65 connections", "1 to 64"),
        (RedisStore::builder(), "without a server", "a URL"),
    ] {
        mistake(builder.build(), value, valid);
    }
    assert!(anywhere().connections(1).build().is_ok());
    for prefix in [
        "much-too-long-as-it-is:",
        "{a}:",
        "a b:",
        "a\n:",
        "ä:",
        "tg",
        "g2:",
        "a:x1:",
    ] {
        let quoted = format!("{prefix:?}");
        mistake(
            anywhere().prefix(prefix).build(),
            &quoted,
            "A-Z a-z 0-9 : . _ -",
        );
    }
    let mut config = Config::from_url("redis://127.0.0.1:6379");
    config.connection = Some(Default::default());
    mistake(RedisStore::from_config(config), "both", "one of them");
}

/// No instant lies that far ahead; a request must not be the first to notice.
#[tokio::test]
async fn a_timeout_past_all_time_is_a_config_error_or_works() {
    let server = Server::start();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(Duration::MAX);
    if let Ok(store) = store.build() {
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
    let limiter = limiter(
        store.build().expect("a store"),
        [StrategyKind::Gcra.policy("p", "9/h")],
    );
    for key in 0..20 {
        assert!(admitted_by_store(
            &limiter.check(Key::new(key.to_string())).await
        ));
    }
    let clients = server.command(&["CLIENT", "LIST"]).text();
    // The pool's two, and that of this command.
    assert!(clients.lines().count() <= 3, "{clients}");
}

#[tokio::test]
async fn a_url_may_name_a_socket_a_database_or_a_protocol() {
    let clock = Clock::at(START);
    let server = Server::builder().clock(&clock).unix_socket().start();
    let tcp = format!("redis://127.0.0.1:{}", server.port());
    for url in [
        server.url(),
        format!("{tcp}/3"),
        format!("{tcp}/4?protocol=resp3"),
    ] {
        let limiter = limiter(
            store_at(url),
            EACH.map(|strategy| strategy.policy(&format!("{strategy:?}"), "1/h")),
        );
        assert!(admitted_by_store(&limiter.check("key").await));
        assert!(!admitted_by_store(&limiter.check("key").await));
    }
    let held = server.command(&["INFO", "keyspace"]).text();
    for database in ["db0:", "db3:", "db4:"] {
        assert!(
            held.contains(&format!("{database}keys={}", EACH.len())),
            "{held}"
        );
    }
}

#[tokio::test]
async fn a_prefix_keeps_applications_apart() {
    let server = Server::start();
    for prefix in ["", "a:", "b:"] {
        let store = RedisStore::builder()
            .url(server.url())
            .prefix(prefix)
            .timeout(TEST_TIMEOUT);
        let limiter = limiter(
            store.build().expect("a store"),
            [StrategyKind::Gcra.policy("p", "1/h")],
        );
        assert!(admitted_by_store(&limiter.check("key").await));
        assert!(!admitted_by_store(&limiter.check("key").await));
    }
    let mut keys = server.keys();
    // That of the epoch, which is read after a rejection.
    keys.retain(|key| !key.ends_with("gen"));
    assert_eq!(keys, ["a:g3:p:key", "b:g3:p:key", "g3:p:key"]);
}

/// Traffic until `stop` is set, of which at least a request of each task is counted.
fn traffic(limiter: &Limiter, stop: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<()>> {
    let tasks = (0..8).map(|task: u64| {
        let (limiter, stop) = (limiter.clone(), stop.clone());
        tokio::spawn(async move {
            let mut sent = 0;
            while sent == 0 || !stop.load(Ordering::Relaxed) {
                let decision = limiter.check(Key::new(task.to_string())).await;
                sent += u64::from(decision.source() == DecisionSource::Store);
            }
        })
    });
    tasks.collect()
}

async fn six_for_the_application(pool: &Pool, when: &str) {
    let mut held = Vec::new();
    for number in 1..=6 {
        let got = tokio::time::timeout(TEST_TIMEOUT, pool.get()).await;
        let mut connection = got
            .unwrap_or_else(|_| panic!("connection {number} of the application, {when}"))
            .expect("a connection");
        let pong: String = redis::cmd("PING")
            .query_async(&mut connection)
            .await
            .expect("a response");
        assert_eq!(pong, "PONG");
        held.push(connection);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_leave_three_quarters_of_a_shared_pool_to_the_application() {
    let server = Server::start();
    let pool = pool_of(server.url(), 8);
    let store = RedisStore::builder()
        .pool(pool.clone())
        .timeout(TEST_TIMEOUT);
    let limiter = limiter(
        store.connections(64).build().expect("a store"),
        [StrategyKind::Gcra.policy("p", "1000000/month")],
    );
    let stop = Arc::new(AtomicBool::new(false));
    let tasks = traffic(&limiter, &stop);
    six_for_the_application(&pool, "while workers are busy").await;

    // Workers of another runtime at the same time: their connections come on top.
    let other = std::thread::spawn({
        let limiter = limiter.clone();
        move || {
            let runtime = current_thread();
            for key in 0..20 {
                let check = limiter.check(Key::new(key.to_string()));
                assert!(admitted_by_store(&runtime.block_on(check.into_future())));
            }
            runtime
        }
    });
    let other = tokio::task::block_in_place(|| other.join().expect("it ends well"));
    six_for_the_application(&pool, "while two runtimes have workers").await;

    for _ in 0..5 {
        server
            .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .ok();
        six_for_the_application(&pool, "after the workers lost their connections").await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task ends well");
    }
    six_for_the_application(&pool, "when all is quiet").await;
    assert!(pool.status().size <= 8);
    other.shutdown_background();
}

/// An application that shares a pool may hold all of it for a while; that is a failure like any other, and passes.
#[tokio::test]
async fn a_shared_pool_that_the_application_exhausts_fails_requests_until_it_recovers() {
    let server = Server::start();
    let pool = pool_of(server.url(), 2);
    let store = RedisStore::builder()
        .pool(pool.clone())
        .timeout(ms(100))
        .build()
        .expect("a store");
    let limiter = limiter(store, [StrategyKind::Gcra.policy("p", "10/h")]);
    let held = [pool.get().await, pool.get().await];
    let decision = limiter.check("key").await;
    assert!(!decision.is_admitted(), "{decision:?}");
    drop(held);
    until("nothing is charged", async || {
        let seen = limiter.peek("key").await;
        seen.is_ok_and(|seen| {
            seen.policies()
                .all(|policy| policy.remaining() == policy.limit())
        })
    })
    .await;
}
