//! The table of errors, against real servers in the state that each of them is about: the error that is returned, whether the breaker
//! opens for it, what becomes of the connection, and that all is well when it's over.

use std::{future::IntoFuture, thread, time::Duration};

use testkit::{Reply, Server};
use tollgate::{
    Key, Limiter, OnStoreError, Policy, RedisStore, StoreError, observe::DecisionSource,
    store::HealthIssue,
};

use crate::faults::{
    connections::Connection,
    support::{
        KEY, builder, is_open, opened, order, quota, rejecting, resumed, store, store_error, until,
        used_on_the_store,
    },
};

const UNITS: u64 = 1_000;

/// Whether the breaker opens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Breaker {
    Opens,
    StaysClosed,
}

/// Makes ten requests on a server in such a state: they fail with this code, until the breaker opens, if it does.
async fn assert_fails_with(limiter: &Limiter, code: &str, breaker: Breaker) {
    let mut failed = 0;
    for _ in 0..10 {
        let error = store_error(&limiter.check(KEY).await);
        match &error {
            StoreError::Server { code: said, .. } => {
                assert_eq!(&**said, code, "{error:?}");
                failed += 1;
            }
            StoreError::CircuitOpen { .. } => assert_eq!(breaker, Breaker::Opens, "for {code}"),
            _ => panic!("{error:?} in place of {code}"),
        }
    }
    assert_eq!(is_open(limiter), breaker == Breaker::Opens, "for {code}");
    assert!(failed >= 3, "{code} {failed} times");
}

/// What is not charged while a server is in such a state is not charged, and all is well afterwards.
async fn is_well_again(limiter: &Limiter, used: u64) {
    resumed(limiter).await;
    assert_eq!(used_on_the_store(limiter, KEY).await, used);
}

/// A limiter that has had a request admitted, and its connection.
async fn begun(server: &Server) -> (Limiter, Connection) {
    let store = builder(server.url()).max_overrides(0).build();
    began(server, store.expect("a store")).await
}

async fn began(server: &Server, store: RedisStore) -> (Limiter, Connection) {
    let limiter = rejecting(store, UNITS);
    assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    (limiter, Connection::only(server).await)
}

/// A replica of a master that isn't there.
const REPLICA: [&str; 3] = ["REPLICAOF", "127.0.0.1", "1"];

#[tokio::test]
async fn oom() {
    let server = Server::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    let (limiter, connection) = begun(&server).await;
    order(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_fails_with(&limiter, "OOM", Breaker::StaysClosed).await;
    order(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    is_well_again(&limiter, 1).await;
    connection.is_kept(&server);
}

/// A background save that failed.
#[tokio::test]
async fn misconf() {
    let server = Server::builder()
        .arg("save", "3600 1")
        .arg("dbfilename", "no-file")
        .start();
    let (limiter, connection) = begun(&server).await;
    // A folder of that name can't be replaced by a file.
    let folder = server.folder().join("no-file");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("filler"), "").expect("a file");
    order(&server, &["BGSAVE"]);
    until("the save has failed", async || {
        server
            .info("persistence", "rdb_last_bgsave_status")
            .as_deref()
            == Some("err")
    })
    .await;
    assert_fails_with(&limiter, "MISCONF", Breaker::StaysClosed).await;
    let tolerate = ["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"];
    order(&server, &tolerate);
    is_well_again(&limiter, 1).await;
    connection.is_kept(&server);
}

#[tokio::test]
async fn noreplicas() {
    let server = Server::start();
    let (limiter, connection) = begun(&server).await;
    order(&server, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_fails_with(&limiter, "NOREPLICAS", Breaker::StaysClosed).await;
    order(&server, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    is_well_again(&limiter, 1).await;
    connection.is_kept(&server);
}

#[tokio::test]
async fn readonly() {
    let server = Server::start();
    let (limiter, connection) = begun(&server).await;
    order(&server, &REPLICA);
    assert_fails_with(&limiter, "READONLY", Breaker::Opens).await;
    order(&server, &["REPLICAOF", "NO", "ONE"]);
    is_well_again(&limiter, 1).await;
    connection.is_dropped(&server).await;
}

/// A replica that has lost its master, and is not to serve stale data.
#[tokio::test]
async fn masterdown() {
    let server = Server::builder()
        .arg("replica-serve-stale-data", "no")
        .start();
    let (limiter, connection) = begun(&server).await;
    order(&server, &REPLICA);
    assert_fails_with(&limiter, "MASTERDOWN", Breaker::Opens).await;
    order(&server, &["REPLICAOF", "NO", "ONE"]);
    is_well_again(&limiter, 1).await;
    connection.is_dropped(&server).await;
}

/// Another client's script does not end.
#[tokio::test]
async fn busy() {
    let server = Server::builder().arg("lua-time-limit", "1").start();
    let (limiter, connection) = begun(&server).await;
    let mut other = server.connect().expect("a connection");
    let script = thread::spawn(move || other.call(&["EVAL", "while true do end", "0"]));
    until("it is busy", async || {
        let busy = server.try_command(&["PING"]);
        busy.is_ok_and(|reply| matches!(reply, Reply::Error(text) if text.starts_with("BUSY")))
    })
    .await;
    // A connection that was idle for more than a second is checked before it is used.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_fails_with(&limiter, "BUSY", Breaker::Opens).await;
    order(&server, &["SCRIPT", "KILL"]);
    let killed = script.join().expect("it ends").expect("a reply");
    assert!(matches!(killed, Reply::Error(_)));
    is_well_again(&limiter, 1).await;
    connection.is_kept(&server);
}

/// Another client's script runs, and has written: it can't be ended, but with the server.
#[tokio::test]
async fn unkillable() {
    let server = Server::builder().arg("lua-time-limit", "1").start();
    let (limiter, _) = begun(&server).await;
    let mut other = server.connect().expect("a connection");
    const SCRIPT: &str = "redis.call('SET', 'written', 1) while true do end";
    let script = thread::spawn(move || other.call(&["EVAL", SCRIPT, "0"]));
    until("it has written, and is busy", async || {
        let kill = server.try_command(&["SCRIPT", "KILL"]);
        kill.is_ok_and(
            |reply| matches!(reply, Reply::Error(text) if text.starts_with("UNKILLABLE")),
        )
    })
    .await;
    // A request by itself fails in the same way.
    assert_fails_with(&limiter, "BUSY", Breaker::Opens).await;
    server.restart();
    script.join().expect("it ends").expect_err("no reply");
    is_well_again(&limiter, 0).await;
}

/// An operator unblocks a client that waits for the end of a pause. Some servers reply with an error and still run its
/// command when the pause is over, so its connection is of no use any more; others don't.
#[tokio::test]
async fn unblocked() {
    let server = Server::start();
    let (limiter, _) = begun(&server).await;
    order(&server, &["CLIENT", "PAUSE", "600000", "WRITE"]);
    let sent = tokio::spawn(limiter.check(KEY).into_future());
    let waiting = || {
        let list = server.command(&["CLIENT", "LIST"]).text();
        let clients: Vec<_> = list.lines().map(str::to_owned).collect();
        let client = clients
            .into_iter()
            .find(|line| line.contains(" flags=b "))?;
        let id = client.strip_prefix("id=")?.split(' ').next()?;
        Some(id.to_owned())
    };
    until("it waits", async || waiting().is_some()).await;
    let id = waiting().expect("it waits");
    let unblocked = server.command(&["CLIENT", "UNBLOCK", &id, "ERROR"]).int();
    let mut used = 1;
    if unblocked == 1 {
        let error = store_error(&sent.await.expect("a response"));
        assert!(
            matches!(&error, StoreError::Server { code, .. } if &**code == "UNBLOCKED"),
            "{error:?}"
        );
        until("its connection is gone", async || waiting().is_none()).await;
        order(&server, &["CLIENT", "UNPAUSE"]);
    } else {
        order(&server, &["CLIENT", "UNPAUSE"]);
        assert!(sent.await.expect("a response").is_admitted());
        used += 1;
    }
    assert_eq!(used_on_the_store(&limiter, KEY).await, used);
}

/// A server that reads a large file, slowly.
#[tokio::test]
async fn loading() {
    let server = Server::builder()
        .arg("key-load-delay", "2000")
        .arg("rdbcompression", "no")
        .debug_command()
        .start();
    // Each key takes two milliseconds to load, and the server replies in between: before 7.0 after each 2 MB.
    let (limiter, connection) = begun(&server).await;
    let events = "loading-process-events-interval-bytes";
    let (keys, size) = match server.version() {
        (..7, _) => ("2000", "40000"),
        _ => {
            order(&server, &["CONFIG", "SET", events, "1024"]);
            ("50000", "10")
        }
    };
    let fill = "for i = 1, ARGV[1] do
        redis.call('SET', 'filler' .. i, string.rep('x', ARGV[2]))
    end";
    order(&server, &["EVAL", fill, "0", keys, size]);
    order(&server, &["SAVE"]);
    let mut other = server.connect().expect("a connection");
    let reload = thread::spawn(move || other.call(&["DEBUG", "RELOAD", "NOSAVE"]));
    until("it is loading", async || {
        let reply = server.try_command(&["GET", "filler"]);
        reply.is_ok_and(|reply| matches!(reply, Reply::Error(text) if text.starts_with("LOADING")))
    })
    .await;
    assert_fails_with(&limiter, "LOADING", Breaker::Opens).await;
    // To be done sooner, which before 7.0 is rejected.
    server.command(&["CONFIG", "SET", "key-load-delay", "0"]);
    drop(reload.join());
    is_well_again(&limiter, 1).await;
    connection.is_dropped(&server).await;
}

#[tokio::test]
async fn noperm() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all");
    let store = builder(server.url_as("gate", "secret")).max_overrides(0);
    let store = store.build();
    let (limiter, connection) = began(&server, store.expect("a store")).await;
    server.acl("gate", "secret", "~* +@all -evalsha -eval");
    assert_fails_with(&limiter, "NOPERM", Breaker::StaysClosed).await;
    server.acl("gate", "secret", "~* +@all");
    is_well_again(&limiter, 1).await;
    connection.is_kept(&server);
}

/// A password that was changed.
#[tokio::test]
async fn wrongpass() {
    let server = Server::start();
    server.acl("gate", "secret", "~* +@all");
    let store = builder(server.url_as("gate", "secret")).max_overrides(0);
    let store = store.build();
    let (limiter, _) = began(&server, store.expect("a store")).await;
    order(&server, &["ACL", "DELUSER", "gate"]);
    server.acl("gate", "another", "~* +@all");
    opened(&limiter).await;
    order(&server, &["ACL", "DELUSER", "gate"]);
    server.acl("gate", "secret", "~* +@all");
    is_well_again(&limiter, 1).await;
}

/// A server that wants a password from a client that sends none.
#[tokio::test]
async fn noauth() {
    let server = Server::start();
    let (limiter, _) = begun(&server).await;
    order(&server, &["CONFIG", "SET", "requirepass", "secret"]);
    order(
        &server,
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    );
    opened(&limiter).await;
    order(&server, &["CONFIG", "SET", "requirepass", ""]);
    is_well_again(&limiter, 1).await;
}

/// A script that the server has lost is sent again, and no request notices.
#[tokio::test]
async fn noscript() {
    let server = Server::start();
    let (limiter, connection) = begun(&server).await;
    for used in 2..5 {
        order(&server, &["SCRIPT", "FLUSH"]);
        let decision = limiter.check(KEY).await;
        assert_eq!(decision.source(), DecisionSource::Store);
        let remaining = decision.policy("p").expect("a policy").remaining();
        assert_eq!(1_000 - remaining, used);
    }
    connection.is_kept(&server);
}

/// A value under one key does not affect the others.
#[tokio::test]
async fn wrongtype() {
    let server = Server::start();
    let (limiter, connection) = begun(&server).await;
    let key = server.only_key();
    order(&server, &["DEL", &key]);
    order(&server, &["SADD", &key, "something else"]);
    for _ in 0..10 {
        let (one, other) = tokio::join!(limiter.check(KEY), limiter.check(Key::new("other")));
        let error = store_error(&one);
        assert!(matches!(error, StoreError::CorruptKey { .. }), "{error:?}");
        assert_eq!(other.source(), DecisionSource::Store);
    }
    connection.is_kept(&server);
}

pub(crate) fn give_all_slots(server: &Server) {
    let slots: Vec<_> = (0..16_384).map(|slot: u32| slot.to_string()).collect();
    let mut all = vec!["CLUSTER", "ADDSLOTS"];
    all.extend(slots.iter().map(String::as_str));
    order(server, &all);
}

/// A node of a cluster that has no slots.
#[tokio::test]
async fn clusterdown() {
    let server = Server::builder().arg("cluster-enabled", "yes").start();
    let limiter = rejecting(store(&server), UNITS);
    assert_fails_with(&limiter, "CLUSTERDOWN", Breaker::Opens).await;
    give_all_slots(&server);
    is_well_again(&limiter, 0).await;
}

/// A node of a cluster, by a store that is not configured as one: the keys of one call are in many slots.
#[tokio::test]
async fn crossslot() {
    let server = Server::builder().arg("cluster-enabled", "yes").start();
    give_all_slots(&server);
    let limiter = Limiter::builder().store(store(&server));
    let limiter = limiter
        .policy(Policy::new("a", quota(9)))
        .policy(Policy::new("b", quota(9)))
        .on_store_error(OnStoreError::Reject);
    let limiter = limiter.build().expect("a limiter");
    until("it serves", async || {
        let error = store_error(&limiter.check(KEY).await);
        matches!(&error, StoreError::Server { code, .. } if &**code != "CLUSTERDOWN")
    })
    .await;
    assert_fails_with(&limiter, "CROSSSLOT", Breaker::StaysClosed).await;
    assert!(store_error(&limiter.check(KEY).await).is_misconfiguration());
    let health = limiter.health_check().await;
    let advice = |issue: &HealthIssue| issue.to_string().contains("RedisStore::cluster");
    assert!(health.issues().iter().any(advice), "{health:?}");
    assert_eq!(server.keys(), [""; 0]);
}
