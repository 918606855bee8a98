//! What a probe checks: that a server counts, and not only that it runs. And how long a probe is waited for.

use std::{
    future::IntoFuture,
    io::{self, Read},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use testkit::{Proxy, Server};
use tollgate::{DecisionSource, Key, Limiter, OnStoreError, RedisStore, StoreError};

use crate::faults::support::{
    TEST_TIMEOUT, builder, limiter, opened, resumed, store, store_error, until, url,
};

fn rejecting(store: RedisStore) -> Limiter {
    limiter(store, 1_000, OnStoreError::Reject)
}

fn order(server: &Server, command: &[&str]) {
    server.command(command).ok();
}

/// How many probes a server has had, those included that it would not run.
fn probes(server: &Server) -> u64 {
    let line = server.info("commandstats", "cmdstat_eval");
    let line = line.unwrap_or_default();
    let fields = line.split(',').filter_map(|field| field.split_once('='));
    let counts = fields.filter(|(name, _)| ["calls", "rejected_calls"].contains(name));
    counts
        .filter_map(|(_, count)| count.parse::<u64>().ok())
        .sum()
}

fn is_open(limiter: &Limiter) -> bool {
    let check = limiter.check(Key::new("key")).into_future().now_or_never();
    check.is_some_and(|decision| matches!(store_error(&decision), StoreError::CircuitOpen { .. }))
}

/// However many probes go, the breaker stays open.
async fn stays_open(limiter: &Limiter, server: &Server) {
    opened(limiter).await;
    let before = probes(server);
    until("four more probes", async || {
        let check = limiter.check(Key::new("key")).into_future().now_or_never();
        let error = store_error(&check.expect("a result at once"));
        assert!(matches!(error, StoreError::CircuitOpen { .. }), "{error:?}");
        probes(server) >= before + 4
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_not_taken_for_healthy() {
    let server = Server::start();
    let limiter = rejecting(store(&server));
    resumed(&limiter).await;
    order(&server, &["SCRIPT", "FLUSH"]);
    let nowhere = testkit::free_port().to_string();
    order(&server, &["REPLICAOF", "127.0.0.1", &nowhere]);
    stays_open(&limiter, &server).await;
    order(&server, &["REPLICAOF", "NO", "ONE"]);
    resumed(&limiter).await;
}

#[tokio::test]
async fn a_node_without_slots_is_not_taken_for_healthy() {
    let server = Server::builder().arg("cluster-enabled", "yes").start();
    let limiter = rejecting(store(&server));
    stays_open(&limiter, &server).await;
    // One by one: Redis before 7.0 has no ranges.
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let add = ["CLUSTER", "ADDSLOTS"].into_iter();
    let add: Vec<_> = add.chain(slots.iter().map(String::as_str)).collect();
    order(&server, &add);
    resumed(&limiter).await;
}

/// It rejects a key whose quota is used up.
#[tokio::test]
async fn a_full_server_is_used_nevertheless() {
    let server = Server::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    let limiter = limiter(store(&server), 1, OnStoreError::Reject);
    assert!(limiter.check(Key::new("spent")).await.is_admitted());
    server.pause();
    opened(&limiter).await;
    server.resume();
    order(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    until("it is called again", async || {
        let decision = limiter.check(Key::new("spent")).await;
        decision.source() == DecisionSource::Store && !decision.is_admitted()
    })
    .await;
    let error = store_error(&limiter.check(Key::new("new")).await);
    assert!(
        matches!(&error, StoreError::Server { code, .. } if &**code == "OOM"),
        "{error:?}"
    );
}

/// A user with rights to the keys with the prefix alone, and none to remove them.
#[tokio::test]
async fn a_probe_needs_no_more_rights_than_counting_and_leaves_nothing_behind() {
    let server = Server::start();
    let rights = "~ab:* +@all -del -config";
    server.acl("gate", "secret", rights);
    let store = builder(server.url_as("gate", "secret")).prefix("ab:");
    let limiter = rejecting(store.build().expect("a store"));
    let nowhere = testkit::free_port().to_string();
    order(&server, &["REPLICAOF", "127.0.0.1", &nowhere]);
    stays_open(&limiter, &server).await;
    order(&server, &["REPLICAOF", "NO", "ONE"]);
    resumed(&limiter).await;
    assert_eq!(server.immortal_keys(), [""; 0]);
    until("nothing is left but what was counted", async || {
        server.keys() == ["ab:g3:p:whoever"]
    })
    .await;
}

/// Each reply takes longer than a probe is waited for before the next one goes, and there are two.
#[tokio::test]
async fn a_server_with_a_slow_network_is_found() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let store = builder(url(proxy.addr())).timeout(Duration::from_secs(10));
    let limiter = rejecting(store.build().expect("a store"));
    proxy.cut();
    opened(&limiter).await;
    proxy.delay(Duration::from_millis(700));
    resumed(&limiter).await;
}

/// Between the first probe, which is waited for no longer, and the second, which isn't due yet, the time is frozen.
#[tokio::test(start_paused = true)]
async fn a_late_reply_to_a_probe_closes_the_breaker_before_the_next_probe() {
    let server = Server::start();
    let store = builder(server.url()).timeout(Duration::from_secs(10));
    let limiter = rejecting(store.build().expect("a store"));
    // The server takes connections, and holds whatever may write.
    order(&server, &["CLIENT", "PAUSE", "600000", "WRITE"]);
    opened(&limiter).await;
    // From here on time goes on by steps: while a thread is busy, it doesn't leap.
    let (end, ended) = mpsc::channel::<()>();
    let busy = tokio::task::spawn_blocking(move || ended.recv());
    let step = async |ms: u64| {
        tokio::time::advance(Duration::from_millis(ms)).await;
        std::thread::sleep(Duration::from_millis(1));
    };
    // Requests are sent by `EVALSHA`.
    let is_probed = || {
        let clients = server.command(&["CLIENT", "LIST"]).text();
        let mut clients = clients.lines();
        clients.any(|client| client.contains(" flags=b ") && client.contains(" cmd=eval "))
    };
    assert!(!is_probed());
    step(50).await;
    let start = Instant::now();
    while !is_probed() {
        assert!(start.elapsed() < TEST_TIMEOUT, "there is no probe");
        step(0).await;
    }
    step(500).await;
    step(1).await;
    assert!(is_open(&limiter));
    order(&server, &["CLIENT", "UNPAUSE"]);
    let start = Instant::now();
    while is_open(&limiter) {
        assert!(start.elapsed() < TEST_TIMEOUT, "the answer changes nothing");
        step(0).await;
    }
    assert_eq!(probes(&server), 1);
    drop(end);
    busy.await.expect("a thread").expect_err("nothing was sent");
}

/// Takes connections on a server's port while it is away, and does not show that it is not the server.
struct Hole {
    listener: TcpListener,
    taken: Vec<TcpStream>,
    many: usize,
}

impl Hole {
    fn in_place_of(server: &Server) -> Self {
        let listener = TcpListener::bind(server.addr()).expect("its port is free");
        listener.set_nonblocking(true).expect("a listener");
        Self {
            listener,
            taken: Vec::new(),
            many: 0,
        }
    }

    fn taken(&mut self) -> usize {
        let come = std::iter::from_fn(|| match self.listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        });
        let before = self.taken.len();
        self.taken.extend(come);
        self.many += self.taken.len() - before;
        self.many
    }

    /// How many of them are open still.
    fn open(&mut self) -> usize {
        self.taken();
        self.taken.retain(|mut stream| {
            stream.set_nonblocking(true).expect("a socket");
            loop {
                match stream.read(&mut [0; 1024]) {
                    Ok(1..) => {}
                    Ok(0) => return false,
                    Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                }
            }
        });
        self.taken.len()
    }
}

/// A call that was sent to a server that was replaced gets no reply from its successor.
#[tokio::test]
async fn no_request_waits_until_its_deadline_for_a_probe_without_a_reply() {
    let server = Server::start();
    let deadline = Duration::from_secs(30);
    let store = builder(server.url()).timeout(deadline);
    let limiter = rejecting(store.build().expect("a store"));
    server.kill();
    opened(&limiter).await;
    let mut hole = Hole::in_place_of(&server);
    until("two probes without a reply", async || hole.taken() >= 2).await;
    let Hole {
        listener, taken, ..
    } = hole;
    drop(listener);
    server.restart();
    let back = Instant::now();
    resumed(&limiter).await;
    // Within two seconds, on a machine that has the time.
    assert!(back.elapsed() < deadline / 3, "{:?}", back.elapsed());
    drop(taken);
}

/// Though each is waited for as long as a request is, or nearly.
#[tokio::test]
async fn probes_do_not_pile_up_and_end_with_the_store() {
    let server = Server::start();
    let store = builder(server.url()).timeout(Duration::from_secs(20));
    let limiter = rejecting(store.build().expect("a store"));
    server.kill();
    opened(&limiter).await;
    let mut hole = Hole::in_place_of(&server);
    let mut most = 0;
    until("eight probes", async || {
        most = most.max(hole.open());
        hole.taken() >= 8
    })
    .await;
    assert!((2..=6).contains(&most), "{most} at once");
    drop(limiter);
    until("none is left", async || hole.open() == 0).await;
}
