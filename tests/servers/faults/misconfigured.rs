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

/// Each in a way of its own, with every request and also once the breaker is open. A server reads ten arguments at most of a client that
/// has not logged in: fewer than a request under many policies has.
#[tokio::test]
async fn a_server_that_cannot_count_has_every_request_rejected_and_is_not_healthy() {
    let plain_server = Server::start();
    let with_password = Server::builder().password("secret").start();
    let lacking = |command: &str| {
        let server = Server::builder();
        let server = server.arg("rename-command", &format!("{command} \"\""));
        server.start()
    };
    let [no_evalsha, no_set] = ["EVALSHA", "SET"].map(lacking);
    for (user, rights) in [
        ("no-scripts", "~* +@all -evalsha -eval"),
        ("no-writes", "~* +@all -set -incrby"),
    ] {
        plain_server.acl(user, "secret", rights);
    }
    let cluster = RedisStore::builder().timeout(TEST_TIMEOUT);
    let cluster = cluster.cluster([plain_server.url()]).built();
    let user = |name, password| at(plain_server.url_as(name, password));
    let no_password = at(url(with_password.addr()));
    for (what, store, code) in [
        (
            "no right to run scripts",
            user("no-scripts", "secret"),
            "noperm",
        ),
        ("no right to write", user("no-writes", "secret"), "noperm"),
        ("no password", no_password, "noauth"),
        ("no command EVALSHA", store(&no_evalsha), ""),
        ("no command SET", store(&no_set), ""),
        ("a server that is no cluster", cluster, ""),
    ] {
        let _case = Case(what.to_owned());
        let builder = Limiter::builder().store(store);
        let policies = (0..12).map(|n| Policy::new(format!("p{n}"), quota(1_000)));
        let limiter = stores::limiter(builder, policies);
        for number in 0..20 {
            let error = store_error(&limiter.check(KEY).await);
            assert!(error.is_misconfiguration(), "{error}");
            if number == 0 && !code.is_empty() {
                assert_eq!(error.code(), code);
            }
        }
        assert!(!limiter.health_check().await.is_healthy());
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
    assert_eq!(store_error(&limiter.admit(KEY).await).code(), "noperm");
    assert!(other.admit(KEY).await.is_ok());
}

/// Selecting a database is a part of the connection's set-up, of which redis-rs reports a failure without the server's code.
#[tokio::test]
async fn however_many_probes_go_the_circuit_breaker_of_a_misconfigured_server_stays_open() {
    let with_password = Server::builder().password("secret").start();
    let no_select = Server::start();
    no_select.acl("gate", "secret", "~* +@all -select");
    for (server, user, database, code) in [
        (&with_password, "", "/1", "noauth"),
        (&no_select, "gate:secret@", "/1", "noperm"),
        (&no_select, "gate:wrong@", "", "wrongpass"),
    ] {
        let proxy = Proxy::to(server.addr());
        let url = format!("redis://{user}{}{database}", proxy.addr());
        let (_case, limiter) = (Case(url.clone()), plain(at(&url)));
        let first = limiter.check(KEY).await;
        assert_eq!(store_error(&first).code(), code);
        opened(&limiter).await;
        let (mut sent, mut probes) = (proxy.forwarded(), 0);
        until("four probes", async || {
            let error = store_error(&limiter.check(KEY).await);
            assert!(error.is_misconfiguration() && is_open(&limiter), "{error}");
            probes += u32::from(proxy.forwarded() > sent);
            sent = proxy.forwarded();
            probes >= 4
        })
        .await;
    }
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
async fn outgoing_calls_do_not_wait_on_misconfiguration_and_shadows_reject_nothing() {
    let (_server, store) = without_scripts();
    let rejected = plain(store.clone()).wait(KEY, Duration::MAX).await;
    let rejected = rejected.expect_err("it is rejected");
    assert_eq!(store_error(rejected.decision()).code(), "noperm");
    let shadow = Limiter::builder().store(store).policy(policy(4).shadow());
    assert_eq!(admitted_in_process(&shadow.built(), KEY, 10).await, 10);
}

#[tokio::test]
async fn misconfiguration_is_logged_with_its_remedy_and_an_outage_as_a_warning_once_in_ten_seconds()
{
    let ((log, _guard), start) = (Log::of_warnings(), Instant::now());
    let server = Server::start();
    let limiter = plain(store(&server));
    assert!(limiter.check(Key::new("key")).await.is_admitted());
    let key = server.only_key();
    order(&server, &["DEL", &key]);
    order(&server, &["SADD", &key, "x"]);
    let failing = plain(builder(NOWHERE).no_circuit_breaker().built());
    for _ in 0..100 {
        store_error(&limiter.check(Key::new("key")).await);
        assert!(failing.check(KEY).await.is_admitted());
    }
    let misconfigured = log.throttled("store is misconfigured", start);
    let parts = [
        "ERROR",
        "action=Reject",
        "suppressed=0",
        "RedisStoreBuilder::prefix",
        &key,
    ];
    assert_contains(misconfigured, parts);
    let failed = log.throttled("rate limit store failed", start);
    assert_contains(failed, ["WARN", "error=", "action=", "suppressed="]);
}
