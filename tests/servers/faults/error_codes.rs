//! The table of errors, against real servers in the state that each of them is about: the error that is returned, whether the breaker
//! opens for it, what becomes of the connection, and that all is well when it's over.

use testkit::Reply;
use tollgate::store::HealthIssue;

use crate::faults::support::*;

const UNITS: u64 = 1_000;

/// A connection of a store, by the number that the server gave it.
pub(crate) struct Connection(i64);

impl Connection {
    /// The only one besides the test's own. The server may not have noticed yet that an earlier one is closed.
    pub(crate) async fn only(server: &Server) -> Self {
        let own = server.command(&["CLIENT", "ID"]).int();
        let mut others = Vec::new();
        until("there is one other connection", async || {
            others = connections(server);
            others.retain(|number| *number != own);
            others.len() == 1
        })
        .await;
        Self(others[0])
    }

    #[track_caller]
    pub(crate) fn is_kept(&self, server: &Server) {
        let open = connections(server);
        assert!(open.contains(&self.0), "{} is not in {open:?}", self.0);
    }

    pub(crate) async fn is_dropped(&self, server: &Server) {
        let is_closed = async || !connections(server).contains(&self.0);
        until("the connection is closed", is_closed).await;
    }
}

/// The numbers of all connections.
fn connections(server: &Server) -> Vec<i64> {
    let list = server.command(&["CLIENT", "LIST"]).text();
    let numbers = list.lines().map(|line| {
        let number = line.split(['=', ' ']).nth(1);
        number.and_then(|number| number.parse().ok())
    });
    numbers.map(|number| number.expect("a number")).collect()
}

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
    let store = builder(server.url()).overrides(false).built();
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

/// Runs commands, which stand between semicolons.
fn run(server: &Server, commands: &str) {
    for command in commands.split("; ") {
        order(server, &command.split(' ').collect::<Vec<_>>());
    }
}

/// States that commands begin and end. Connections are kept unless the breaker opens.
#[tokio::test]
async fn passing_states() {
    use Breaker::{Opens, StaysClosed};
    let full = "CONFIG SET maxmemory-policy noeviction; CONFIG SET maxmemory 1";
    let alone = "CONFIG SET min-replicas-to-write 1";
    let no_rights = "ACL SETUSER default -evalsha -eval";
    let replica = "REPLICAOF 127.0.0.1 1";
    // One that has lost its master, and is not to serve stale data.
    let stale = "CONFIG SET replica-serve-stale-data no; REPLICAOF 127.0.0.1 1";
    for (code, begin, end, breaker) in [
        ("OOM", full, "CONFIG SET maxmemory 0", StaysClosed),
        (
            "NOREPLICAS",
            alone,
            "CONFIG SET min-replicas-to-write 0",
            StaysClosed,
        ),
        (
            "NOPERM",
            no_rights,
            "ACL SETUSER default +@all",
            StaysClosed,
        ),
        ("READONLY", replica, "REPLICAOF NO ONE", Opens),
        ("MASTERDOWN", stale, "REPLICAOF NO ONE", Opens),
    ] {
        let (_case, server) = (Case(code.to_owned()), Server::start());
        let (limiter, connection) = begun(&server).await;
        run(&server, begin);
        assert_fails_with(&limiter, code, breaker).await;
        run(&server, end);
        is_well_again(&limiter, 1).await;
        match breaker {
            Opens => connection.is_dropped(&server).await,
            StaysClosed => connection.is_kept(&server),
        }
    }
}

/// The server quotes the arguments of the call, which are binary, in its error.
#[tokio::test]
async fn an_unknown_command() {
    let server = Server::builder().arg("rename-command", "EVALSHA \"\"");
    let server = server.start();
    let store = builder(server.url()).overrides(false).built();
    let limiter = rejecting(store, UNITS);
    assert_fails_with(&limiter, "ERR", Breaker::StaysClosed).await;
    let connection = Connection::only(&server).await;
    assert_fails_with(&limiter, "ERR", Breaker::StaysClosed).await;
    connection.is_kept(&server);
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

/// Another client's script does not end. One that has written can be ended with the server only.
#[tokio::test]
async fn busy() {
    for (write, command, code) in [
        ("", &["PING"][..], "BUSY"),
        (
            "redis.call('SET', 'written', 1)",
            &["SCRIPT", "KILL"],
            "UNKILLABLE",
        ),
    ] {
        let server = Server::builder().arg("lua-time-limit", "1").start();
        let (limiter, _) = begun(&server).await;
        let mut other = server.connect().expect("a connection");
        let script = format!("{write} while true do end");
        let script = thread::spawn(move || other.call(&["EVAL", &script, "0"]));
        until(code, async || fails_with(&server, command, code)).await;
        assert_fails_with(&limiter, "BUSY", Breaker::Opens).await;
        if code == "BUSY" {
            order(&server, &["SCRIPT", "KILL"]);
            let killed = script.join().expect("it ends").expect("a reply");
            assert!(matches!(killed, Reply::Error(_)));
            is_well_again(&limiter, 1).await;
        } else {
            server.restart();
            script.join().expect("it ends").expect_err("no reply");
            is_well_again(&limiter, 0).await;
        }
    }
}

/// An operator unblocks a client that waits for the end of a pause. Some servers reply with an error and still run its
/// command when the pause is over, so its connection is of no use any more; others don't.
#[tokio::test]
async fn unblocked() {
    let server = Server::start();
    let (limiter, _) = begun(&server).await;
    order(&server, &PAUSE_WRITES);
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
        order(&server, &UNPAUSE);
    } else {
        order(&server, &UNPAUSE);
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

/// A password that was changed, and one that a client does not send.
#[tokio::test]
async fn wrongpass_and_noauth() {
    let create = "ACL SETUSER gate on >secret ~* +@all";
    let change = "ACL DELUSER gate; ACL SETUSER gate on >another ~* +@all";
    let require = "CONFIG SET requirepass secret; CLIENT KILL TYPE normal SKIPME yes";
    for (user, begin, end) in [
        (
            "gate:secret@",
            change,
            format!("ACL DELUSER gate; {create}"),
        ),
        ("", require, "CONFIG SET requirepass ".to_owned()),
    ] {
        let (_case, server) = (Case(begin.to_owned()), Server::start());
        run(&server, create);
        let store = builder(format!("redis://{user}{}", server.addr()));
        let (limiter, _) = began(&server, store.overrides(false).built()).await;
        run(&server, begin);
        opened(&limiter).await;
        run(&server, &end);
        is_well_again(&limiter, 1).await;
    }
}

/// Each request opens another connection, which may bring the right password by then.
#[tokio::test]
async fn an_unauthenticated_connection_is_dropped() {
    let server = Server::start();
    // The test's own connection is open before, and stays so.
    order(&server, &["PING"]);
    let store = builder(server.url()).overrides(false).no_circuit_breaker();
    let limiter = rejecting(store.built(), UNITS);
    run(&server, "CONFIG SET requirepass secret");
    let before = connected(&server);
    for connections in 1..=20 {
        let error = store_error(&limiter.check(KEY).await);
        assert_eq!(error.code(), "noauth");
        assert_eq!(connected(&server), before + connections);
    }
}

fn give_all_slots(server: &Server) {
    let slots: Vec<_> = (0..16_384).map(|slot: u32| slot.to_string()).collect();
    let mut all = vec!["CLUSTER", "ADDSLOTS"];
    all.extend(slots.iter().map(String::as_str));
    order(server, &all);
}

/// A node of a cluster that has no slots: other nodes may serve.
#[tokio::test]
async fn clusterdown() {
    let server = Server::builder().arg("cluster-enabled", "yes").start();
    let store = builder(server.url()).overrides(false).built();
    let limiter = rejecting(store, UNITS);
    assert_fails_with(&limiter, "CLUSTERDOWN", Breaker::StaysClosed).await;
    let connection = Connection::only(&server).await;
    give_all_slots(&server);
    is_well_again(&limiter, 0).await;
    connection.is_kept(&server);
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

/// A network sends a reply twice: each that follows on the connection would be taken for the reply to another request.
#[tokio::test]
async fn a_repeated_reply_decides_no_other_request() {
    for policy in [policy as fn(u64) -> Policy, permits] {
        let (server, network) = network();
        // The version of overrides is read over a connection of its own.
        let one = builder(url(network.addr())).overrides(false);
        let limiter = under(policy(1), one.built(), OnStoreError::Reject);
        let other = under(policy(1), store(&server), OnStoreError::Reject);
        let admit = async |limiter: &Limiter, key| limiter.admit(Key::new(key)).await;
        let used = admit(&other, "used").await;
        let free = admit(&limiter, "free").await;
        assert!(used.is_ok() && free.is_ok());
        network.repeat();
        let garbled = admit(&limiter, "used").await;
        assert_eq!(store_error(&garbled).code(), "garbled");
        // Over a new connection.
        assert!(!admitted_by_store(&admit(&limiter, "used").await));
        assert!(admit(&limiter, "new").await.is_ok());
    }
}
