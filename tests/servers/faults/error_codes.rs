//! The table of errors, against real servers in the state that each of them is about: the error that is returned, whether the breaker
//! opens for it, what becomes of the connection, and that all is well when it's over.

use testkit::Reply;
use tollgate::store::HealthIssue;

use crate::faults::{connections::Connection, support::*};

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
    let store = builder(server.url()).max_overrides(0).built();
    began(server, store).await
}

async fn began(server: &Server, store: RedisStore) -> (Limiter, Connection) {
    let limiter = rejecting(store, UNITS);
    assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    (limiter, Connection::only(server).await)
}

/// Whether the server replies to a command with this error.
fn fails_with(server: &Server, command: &[&str], code: &str) -> bool {
    let reply = server.try_command(command);
    reply.is_ok_and(|reply| matches!(reply, Reply::Error(text) if text.starts_with(code)))
}

/// A replica of a master that isn't there.
const REPLICA: [&str; 3] = ["REPLICAOF", "127.0.0.1", "1"];
const MASTER: [&str; 3] = ["REPLICAOF", "NO", "ONE"];

/// A server whose state two commands begin and end. Its connections are kept unless the breaker opens.
async fn assert_passes(server: Server, [begin, end]: [&[&str]; 2], code: &str, breaker: Breaker) {
    let (limiter, connection) = begun(&server).await;
    order(&server, begin);
    assert_fails_with(&limiter, code, breaker).await;
    order(&server, end);
    is_well_again(&limiter, 1).await;
    match breaker {
        Breaker::Opens => connection.is_dropped(&server).await,
        Breaker::StaysClosed => connection.is_kept(&server),
    }
}

#[tokio::test]
async fn oom() {
    let server = Server::builder().arg("maxmemory-policy", "noeviction");
    let [full, free] = ["1", "0"].map(|bytes| ["CONFIG", "SET", "maxmemory", bytes]);
    assert_passes(server.start(), [&full, &free], "OOM", Breaker::StaysClosed).await;
}

#[tokio::test]
async fn noreplicas() {
    let set = |replicas| ["CONFIG", "SET", "min-replicas-to-write", replicas];
    let states: [&[&str]; 2] = [&set("1"), &set("0")];
    assert_passes(Server::start(), states, "NOREPLICAS", Breaker::StaysClosed).await;
}

#[tokio::test]
async fn readonly() {
    let states: [&[&str]; 2] = [&REPLICA, &MASTER];
    assert_passes(Server::start(), states, "READONLY", Breaker::Opens).await;
}

/// A replica that has lost its master, and is not to serve stale data.
#[tokio::test]
async fn masterdown() {
    let server = Server::builder().arg("replica-serve-stale-data", "no");
    let states: [&[&str]; 2] = [&REPLICA, &MASTER];
    assert_passes(server.start(), states, "MASTERDOWN", Breaker::Opens).await;
}

/// A background save that failed.
#[tokio::test]
async fn misconf() {
    let server = Server::builder().arg("save", "3600 1");
    let server = server.arg("dbfilename", "no-file").start();
    let (limiter, connection) = begun(&server).await;
    // A folder of that name can't be replaced by a file.
    let folder = server.folder().join("no-file");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("filler"), "").expect("a file");
    order(&server, &["BGSAVE"]);
    let status = || server.info("persistence", "rdb_last_bgsave_status");
    let has_failed = async || status().as_deref() == Some("err");
    until("the save has failed", has_failed).await;
    assert_fails_with(&limiter, "MISCONF", Breaker::StaysClosed).await;
    let tolerate = ["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"];
    order(&server, &tolerate);
    is_well_again(&limiter, 1).await;
    connection.is_kept(&server);
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
    tokio::time::sleep(ms(1_100)).await;
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
        fails_with(&server, &["SCRIPT", "KILL"], "UNKILLABLE")
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
        let clients = server.command(&["CLIENT", "LIST"]).text();
        let client = clients.lines().find(|line| line.contains(" flags=b "))?;
        let id = client.strip_prefix("id=")?.split(' ').next()?;
        Some(id.to_owned())
    };
    until("it waits", async || waiting().is_some()).await;
    let id = waiting().expect("it waits");
    let unblocked = server.command(&["CLIENT", "UNBLOCK", &id, "ERROR"]).int();
    let mut used = 1;
    if unblocked == 1 {
        let error = store_error(&sent.await.expect("a response"));
        assert_contains(&error, ["UNBLOCKED"]);
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
        fails_with(&server, &["GET", "filler"], "LOADING")
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
    let (limiter, connection) = began(&server, store.built()).await;
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
    let (limiter, _) = began(&server, store.built()).await;
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
    let others = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    order(&server, &others);
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
        assert_eq!(decision.used("p"), used);
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
        assert_eq!(store_error(&one).code(), "corrupt_key");
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
    let limiter = limiter.on_store_error(OnStoreError::Reject);
    let limiter = limiter.policy(Policy::new("a", quota(9)));
    let limiter = limiter.policy(Policy::new("b", quota(9))).built();
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
