//! Servers that are configured so that nothing can be counted there: unlike an outage, that admits no request by default.

use std::{
    future::{Future, IntoFuture},
    time::Duration,
};

use testkit::{Proxy, Server};
use tollgate::{
    Decision, DecisionKind, DecisionSource, Key, Limiter, ListWindow, LocalFallback,
    OnMisconfiguration, OnStoreError, Policy, RedisStore, StoreError,
};

use crate::faults::{
    error_codes::give_all_slots,
    support::{
        Log, TEST_TIMEOUT, admitted_in_process, builder, nowhere, opened, quota, store_error, until,
    },
};

const KEY: Key = Key::global();

/// A limiter with the default action on failures.
fn plain(store: RedisStore) -> Limiter {
    let limiter = Limiter::builder()
        .store(store)
        .policy(Policy::new("p", quota(1_000)));
    limiter.build().expect("a limiter")
}

/// A store whose calls take as long as they do: a timeout is an outage.
fn patient(url: impl Into<String>) -> RedisStore {
    builder(url).timeout(TEST_TIMEOUT).build().expect("a store")
}

fn store(server: &Server) -> RedisStore {
    patient(server.url())
}

fn as_user(server: &Server, password: &str) -> RedisStore {
    patient(server.url_as("gate", password))
}

#[track_caller]
fn code(decision: &Decision) -> String {
    match store_error(decision) {
        StoreError::Server { code, .. } => code.to_string(),
        other => panic!("{other:?} in place of a server's error"),
    }
}

#[tokio::test]
async fn a_user_without_the_right_to_run_scripts_has_every_request_rejected() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all -evalsha -eval");
    let limiter = plain(as_user(&server, "secret"));
    for _ in 0..10 {
        assert_eq!(code(&limiter.check(KEY).await), "NOPERM");
    }
}

#[tokio::test]
async fn a_user_without_a_right_that_scripts_need_has_every_request_rejected() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all -set -incrby");
    let limiter = plain(as_user(&server, "secret"));
    for _ in 0..10 {
        assert_eq!(code(&limiter.check(KEY).await), "NOPERM");
    }
}

/// Selecting a database is a part of the connection's set-up, of which redis-rs reports a failure without the server's code.
async fn is_rejected_at_all_times(server: &Server, user: &str, databases: &[&str], expected: &str) {
    for database in databases {
        let proxy = Proxy::to(server.addr());
        let url = format!("redis://{user}{}{database}", proxy.addr());
        let limiter = plain(patient(&url));
        let first = limiter.check(KEY).await;
        assert_eq!(code(&first), expected, "{url}");
        let health = limiter.health_check().await;
        assert!(!health.is_healthy(), "{url}");
        opened(&limiter).await;
        // However many probes go, the circuit breaker stays open.
        let (mut sent, mut probes) = (proxy.forwarded(), 0);
        until("four probes", async || {
            let error = store_error(&limiter.check(KEY).await);
            assert!(error.is_misconfiguration(), "{url}: {error}");
            let is_open = matches!(error, StoreError::CircuitOpen { .. });
            assert!(is_open, "{url}: {error}");
            probes += u32::from(proxy.forwarded() > sent);
            sent = proxy.forwarded();
            probes >= 4
        })
        .await;
    }
}

#[tokio::test]
async fn a_missing_password_rejects_every_request_with_and_without_a_database_number() {
    let server = Server::builder().password("secret").start();
    is_rejected_at_all_times(&server, "", &["", "/1"], "NOAUTH").await;
}

/// Of a client that has not logged in, the server reads ten arguments at most.
#[tokio::test]
async fn a_missing_password_rejects_a_request_under_many_policies_too() {
    let server = Server::builder().password("secret").start();
    let store = patient(format!("redis://{}", server.addr()));
    let names = (0..12).map(|index| format!("p{index}"));
    let builder = names.fold(Limiter::builder().store(store), |builder, name| {
        builder.policy(Policy::new(name, quota(9)))
    });
    let limiter = builder.build().expect("valid");
    assert_eq!(code(&limiter.check(KEY).await), "NOAUTH");
}

#[tokio::test]
async fn a_missing_right_to_select_a_database_rejects_every_request() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all -select");
    is_rejected_at_all_times(&server, "gate:secret@", &["/1"], "NOPERM").await;
}

#[tokio::test]
async fn a_connection_that_may_select_its_database_and_run_scripts_counts_there() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all");
    let limiter = plain(patient(format!("{}/1", server.url_as("gate", "secret"))));
    assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    assert!(limiter.health_check().await.is_healthy());
}

/// Also once the breaker is open.
#[tokio::test]
async fn a_wrong_password_rejects_every_request() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all");
    let limiter = plain(as_user(&server, "wrong"));
    for _ in 0..20 {
        store_error(&limiter.check(KEY).await);
    }
    let health = limiter.health_check().await;
    assert!(!health.is_healthy(), "{health:?}");
}

/// What the store found out before its breaker opened may have changed since.
#[tokio::test]
async fn a_server_that_comes_back_with_another_password_rejects_every_request() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all");
    let limiter = plain(as_user(&server, "secret"));
    assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    server.kill();
    until("the outage is met", async || {
        limiter.check(KEY).await.source() == DecisionSource::Fallback
    })
    .await;
    assert!(limiter.check(KEY).await.is_admitted(), "an outage admits");
    server.restart();
    until("the password is known to be wrong", async || {
        !limiter.check(KEY).await.is_admitted()
    })
    .await;
    for _ in 0..20 {
        store_error(&limiter.check(KEY).await);
    }
    server.acl("gate", "secret", "~* +@all");
    crate::faults::support::resumed(&limiter).await;
}

#[tokio::test]
async fn a_server_without_a_command_that_scripts_need_rejects_every_request() {
    for command in ["EVALSHA", "SET"] {
        let server = Server::builder()
            .arg("rename-command", &format!("{command} \"\""))
            .start();
        let limiter = plain(store(&server));
        for _ in 0..10 {
            let error = store_error(&limiter.check(KEY).await);
            assert!(error.is_misconfiguration(), "{command}: {error}");
        }
        assert!(!limiter.health_check().await.is_healthy(), "{command}");
    }
}

#[tokio::test]
async fn a_cluster_node_used_as_a_single_server_rejects_requests_across_slots() {
    let server = Server::builder().arg("cluster-enabled", "yes").start();
    give_all_slots(&server);
    let limiter = Limiter::builder()
        .store(store(&server))
        .policy(Policy::new("a", quota(9)))
        .policy(Policy::new("b", quota(9)))
        .build()
        .expect("a limiter");
    until("it serves", async || {
        server.command(&["GET", "a"]) == testkit::Reply::Nil
    })
    .await;
    for _ in 0..10 {
        assert_eq!(code(&limiter.check(KEY).await), "CROSSSLOT");
    }
    let health = limiter.health_check().await;
    assert!(
        health
            .issues()
            .iter()
            .any(|issue| issue.to_string().contains("RedisStore::cluster")),
        "{health:?}"
    );
}

#[tokio::test]
async fn a_single_server_that_is_used_as_a_cluster_rejects_every_request() {
    let server = Server::start();
    let cluster = RedisStore::builder()
        .timeout(TEST_TIMEOUT)
        .cluster([server.url()]);
    let limiter = plain(cluster.build().expect("a store"));
    for _ in 0..10 {
        store_error(&limiter.check(KEY).await);
    }
    assert!(!limiter.health_check().await.is_healthy());
}

#[tokio::test]
async fn a_key_of_another_type_rejects_its_own_requests_alone() {
    let server = Server::start();
    let policy = Policy::new("p", quota(1_000)).strategy(ListWindow);
    let limiter = Limiter::builder().store(store(&server)).policy(policy);
    let limiter = limiter.build().expect("a limiter");
    assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    let key = server.keys().concat();
    server.command(&["SET", &key, "something else"]).ok();
    for _ in 0..10 {
        let (one, other) = tokio::join!(limiter.check(KEY), limiter.check(Key::new("other")));
        let error = store_error(&one);
        assert!(matches!(error, StoreError::CorruptKey { .. }), "{error:?}");
        assert!(other.is_admitted());
        assert_eq!(
            other.source(),
            DecisionSource::Store,
            "the breaker is closed"
        );
    }
}

#[test]
fn a_thread_without_a_runtime_is_rejected() {
    let limiter = plain(nowhere());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut check = limiter.check(KEY).into_future();
    match std::pin::Pin::new(&mut check).poll(&mut context) {
        std::task::Poll::Ready(decision) => drop(store_error(&decision)),
        std::task::Poll::Pending => panic!("it is answered at once"),
    }
}

#[test]
fn a_health_check_on_a_thread_without_a_runtime_says_so() {
    let limiter = plain(nowhere());
    let health = futures_util::FutureExt::now_or_never(limiter.health_check());
    let health = health.expect("a result at once");
    assert!(
        health
            .issues()
            .iter()
            .any(|issue| issue.to_string().contains("tokio runtime")),
        "{health:?}"
    );
}

#[tokio::test]
async fn an_outage_admits_by_default() {
    let limiter = plain(nowhere());
    for _ in 0..10 {
        assert!(matches!(
            limiter.check(KEY).await.kind(),
            DecisionKind::Admitted
        ));
    }
}

/// Both the default and each action for an outage, where it is configured for both.
#[tokio::test]
async fn misconfiguration_is_handled_like_an_outage_where_configured() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all -evalsha -eval");
    for (response, admitted) in [
        (OnStoreError::Admit, 10),
        (OnStoreError::Reject, 0),
        (LocalFallback::shared_by(2).into(), 2),
    ] {
        let limiter = |misconfigured| {
            let limiter = Limiter::builder().store(as_user(&server, "secret"));
            let limiter = limiter
                .policy(Policy::new("p", quota(4)))
                .on_store_error(response);
            let limiter = limiter.on_misconfiguration(misconfigured);
            limiter.build().expect("a limiter")
        };
        let alike = limiter(OnMisconfiguration::AsStoreError);
        assert_eq!(
            admitted_in_process(&alike, KEY, 10).await,
            admitted,
            "{response:?}"
        );
        let rejecting = limiter(OnMisconfiguration::Reject);
        assert_eq!(
            admitted_in_process(&rejecting, KEY, 10).await,
            0,
            "{response:?}"
        );
    }
}

#[tokio::test]
async fn shadow_policies_reject_nothing_on_misconfiguration() {
    let policy = Policy::new("p", quota(4)).shadow();
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all -evalsha -eval");
    let limiter = Limiter::builder()
        .store(as_user(&server, "secret"))
        .policy(policy);
    let limiter = limiter.build().expect("a limiter");
    assert_eq!(admitted_in_process(&limiter, KEY, 10).await, 10);
}

/// Also where it is configured to admit.
#[tokio::test]
async fn outgoing_calls_do_not_wait_on_misconfiguration() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all -evalsha -eval");
    let limiter = plain(as_user(&server, "secret"));
    let rejected = limiter
        .wait(KEY, Duration::MAX)
        .await
        .expect_err("it is rejected");
    assert_eq!(code(rejected.decision()), "NOPERM");
}

#[tokio::test]
async fn misconfiguration_is_logged_with_its_remedy_once_in_ten_seconds() {
    let log = Log::get();
    let server = Server::start();
    let limiter = plain(store(&server));
    let key = Key::new("logged_as_misconfigured");
    assert!(limiter.check(key).await.is_admitted());
    server.command(&["DEL", &server.keys().concat()]).ok();
    server
        .command(&["SADD", "tg:g3:p:logged_as_misconfigured", "x"])
        .ok();
    for _ in 0..100 {
        store_error(&limiter.check(key).await);
    }
    let lines = log.matching("logged_as_misconfigured");
    let [line] = &lines[..] else {
        panic!("{lines:?}")
    };
    for part in [
        "ERROR",
        "rate limit store is misconfigured",
        "action=Reject",
        "suppressed=0",
        "RedisStoreBuilder::prefix",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
}

#[tokio::test]
async fn an_outage_is_logged_as_a_warning_once_in_ten_seconds() {
    let log = Log::get();
    let port = testkit::free_port();
    let limiter = plain(
        builder(format!("redis://127.0.0.1:{port}"))
            .no_circuit_breaker()
            .build()
            .expect("a store"),
    );
    for _ in 0..100 {
        assert!(limiter.check(KEY).await.is_admitted());
    }
    // Other tests' limiters log the like.
    let lines = log.matching("rate limit store failed");
    assert!(
        !lines.is_empty() && lines.len() < 100,
        "{} lines",
        lines.len()
    );
    for part in ["WARN", "error=", "action=", "suppressed="] {
        assert!(lines[0].contains(part), "{part} in {}", lines[0]);
    }
}
