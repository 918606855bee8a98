//! Servers that are configured so that nothing can be counted there: unlike an outage, that admits no request by default.

use crate::faults::support::*;
use testkit::Reply;
use tollgate::limiter::OnMisconfiguration;

/// A limiter with the default action on failures.
fn plain(store: RedisStore) -> Limiter {
    let limiter = Limiter::builder().store(store).policy(policy(1_000));
    limiter.built()
}

fn at(url: impl Into<String>) -> RedisStore {
    builder(url).built()
}

fn as_user(server: &Server, password: &str) -> RedisStore {
    at(server.url_as("gate", password))
}

/// A server with a user that may not run scripts.
fn without_scripts() -> (Server, RedisStore) {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all -evalsha -eval");
    let store = as_user(&server, "secret");
    (server, store)
}

#[track_caller]
fn code(decision: &Decision) -> String {
    match store_error(decision) {
        StoreError::Server { code, .. } => code.to_string(),
        other => panic!("{other:?} in place of a server's error"),
    }
}

#[tokio::test]
async fn a_user_without_a_right_that_scripts_need_has_every_request_rejected() {
    let server = Server::start();
    for rights in ["~* +@all -evalsha -eval", "~* +@all -set -incrby"] {
        server.acl("gate", "secret", rights);
        let limiter = plain(as_user(&server, "secret"));
        for _ in 0..10 {
            assert_eq!(code(&limiter.check(KEY).await), "NOPERM", "{rights}");
        }
    }
}

/// The command, which removes expired permits, comes after the one that stores the permit.
#[tokio::test]
async fn a_request_that_fails_for_a_missing_right_holds_no_permit() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all -zrem");
    let [limiter, other] = [as_user(&server, "secret"), at(server.url())].map(|store| {
        let policy = Policy::new("p", Quota::concurrent(1));
        let limiter = Limiter::builder().store(store).policy(policy);
        limiter.built()
    });
    let _held = other.admit(KEY).await.expect("a permit");
    let key = server.only_key();
    let members = server.command(&["ZRANGE", &key, "0", "-1"]).list();
    let mut members = members.into_iter().map(Reply::text);
    let permit = members.find(|member| !member.ends_with('='));
    let expires = ["ZADD", &key, "XX", "1", &permit.expect("a permit")];
    server.command(&expires);
    assert_eq!(code(&limiter.check(KEY).await), "NOPERM");
    assert!(other.check(KEY).await.is_admitted());
}

/// Selecting a database is a part of the connection's set-up, of which redis-rs reports a failure without the server's code.
async fn is_rejected_at_all_times(server: &Server, user: &str, databases: &[&str], expected: &str) {
    for database in databases {
        let proxy = Proxy::to(server.addr());
        let url = format!("redis://{user}{}{database}", proxy.addr());
        let limiter = plain(at(&url));
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
            assert!(is_open(&limiter), "{url}: {error}");
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
    let store = at(format!("redis://{}", server.addr()));
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
    let limiter = plain(at(format!("{}/1", server.url_as("gate", "secret"))));
    assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    assert!(limiter.health_check().await.is_healthy());
}

#[tokio::test]
async fn a_wrong_password_rejects_every_request() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all");
    is_rejected_at_all_times(&server, "gate:wrong@", &[""], "WRONGPASS").await;
}

/// What the store found out before its breaker opened may have changed since.
#[tokio::test]
async fn a_server_that_comes_back_with_another_password_rejects_every_request() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all");
    let limiter = plain(as_user(&server, "secret"));
    assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    server.kill();
    let is_met = async || limiter.check(KEY).await.source() == DecisionSource::Fallback;
    until("the outage is met", is_met).await;
    assert!(limiter.check(KEY).await.is_admitted(), "an outage admits");
    server.restart();
    let is_wrong = async || !limiter.check(KEY).await.is_admitted();
    until("the password is known to be wrong", is_wrong).await;
    for _ in 0..20 {
        store_error(&limiter.check(KEY).await);
    }
    server.acl("gate", "secret", "~* +@all");
    resumed(&limiter).await;
}

#[tokio::test]
async fn a_server_without_a_command_that_scripts_need_rejects_every_request() {
    for command in ["EVALSHA", "SET"] {
        let server = Server::builder().arg("rename-command", &format!("{command} \"\""));
        let server = server.start();
        let limiter = plain(store(&server));
        for _ in 0..10 {
            let error = store_error(&limiter.check(KEY).await);
            assert!(error.is_misconfiguration(), "{command}: {error}");
        }
        assert!(!limiter.health_check().await.is_healthy(), "{command}");
    }
}

#[tokio::test]
async fn a_single_server_that_is_used_as_a_cluster_rejects_every_request() {
    let server = Server::start();
    let cluster = RedisStore::builder()
        .timeout(TEST_TIMEOUT)
        .cluster([server.url()]);
    let limiter = plain(cluster.built());
    for _ in 0..10 {
        store_error(&limiter.check(KEY).await);
    }
    assert!(!limiter.health_check().await.is_healthy());
}

#[test]
fn a_thread_without_a_runtime_is_rejected_and_a_health_check_says_so() {
    let limiter = plain(nowhere());
    let decision = limiter.check(KEY).into_future().now_or_never();
    store_error(&decision.expect("a decision at once"));
    let health = limiter.health_check().now_or_never();
    let health = health.expect("a result at once");
    let [issue] = health.issues() else {
        panic!("{health:?}");
    };
    assert_contains(issue.to_string(), ["tokio runtime"]);
}

#[tokio::test]
async fn an_outage_admits_by_default() {
    let limiter = plain(nowhere());
    for _ in 0..10 {
        let decision = limiter.check(KEY).await;
        assert!(matches!(decision.kind(), DecisionKind::Admitted));
    }
}

/// Both the default and each action for an outage, where it is configured for both.
#[tokio::test]
async fn misconfiguration_is_handled_like_an_outage_where_configured() {
    let (_server, store) = without_scripts();
    for (response, admitted) in [
        (OnStoreError::Admit, 10),
        (OnStoreError::Reject, 0),
        (LocalFallback::shared_by(2).into(), 2),
    ] {
        let limiter = |misconfigured| {
            let limiter = Limiter::builder().store(store.clone()).policy(policy(4));
            let limiter = limiter.on_store_error(response);
            let limiter = limiter.on_misconfiguration(misconfigured);
            limiter.built()
        };
        for (misconfigured, expected) in [
            (OnMisconfiguration::AsStoreError, admitted),
            (OnMisconfiguration::Reject, 0),
        ] {
            let admitted = admitted_in_process(&limiter(misconfigured), KEY, 10).await;
            assert_eq!(admitted, expected, "{response:?} {misconfigured:?}");
        }
    }
}

#[tokio::test]
async fn shadow_policies_reject_nothing_on_misconfiguration() {
    let (_server, store) = without_scripts();
    let limiter = Limiter::builder().store(store).policy(policy(4).shadow());
    let limiter = limiter.built();
    assert_eq!(admitted_in_process(&limiter, KEY, 10).await, 10);
}

/// Also where it is configured to admit.
#[tokio::test]
async fn outgoing_calls_do_not_wait_on_misconfiguration() {
    let (_server, store) = without_scripts();
    let rejected = plain(store).wait(KEY, Duration::MAX).await;
    let rejected = rejected.expect_err("it is rejected");
    assert_eq!(code(rejected.decision()), "NOPERM");
}

#[tokio::test]
async fn misconfiguration_is_logged_with_its_remedy_once_in_ten_seconds() {
    let ((log, _guard), start) = (Log::of_warnings(), Instant::now());
    let server = Server::start();
    let limiter = plain(store(&server));
    assert!(limiter.check(Key::new("key")).await.is_admitted());
    let key = server.only_key();
    order(&server, &["DEL", &key]);
    order(&server, &["SADD", &key, "x"]);
    for _ in 0..100 {
        store_error(&limiter.check(Key::new("key")).await);
    }
    let parts = [
        "ERROR",
        "rate limit store is misconfigured",
        "action=Reject",
        "suppressed=0",
        "RedisStoreBuilder::prefix",
        &key,
    ];
    assert_contains(log.throttled("store is misconfigured", start), parts);
}

#[tokio::test]
async fn an_outage_is_logged_as_a_warning_once_in_ten_seconds() {
    let ((log, _guard), start) = (Log::of_warnings(), Instant::now());
    let store = builder(NOWHERE).no_circuit_breaker().build();
    let limiter = plain(store.expect("a store"));
    for _ in 0..100 {
        assert!(limiter.check(KEY).await.is_admitted());
    }
    let parts = ["WARN", "error=", "action=", "suppressed="];
    assert_contains(log.throttled("rate limit store failed", start), parts);
}
