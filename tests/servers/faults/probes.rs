//! What a probe checks: that a server counts, and not only that it runs. And how long a probe is waited for.

use std::{
    io::{self, Read},
    net::{TcpListener, TcpStream},
};

use crate::faults::{error_codes::give_all_slots, support::*};

const UNITS: u64 = 1_000;

/// A replica of a master that isn't there.
const REPLICA: [&str; 3] = ["REPLICAOF", "127.0.0.1", "1"];

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

/// However many probes go, the breaker stays open.
async fn stays_open(limiter: &Limiter, server: &Server) {
    opened(limiter).await;
    let before = probes(server);
    until("four more probes", async || {
        assert!(is_open(limiter));
        probes(server) >= before + 4
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_not_taken_for_healthy() {
    let server = Server::start();
    let limiter = rejecting(store(&server), UNITS);
    resumed(&limiter).await;
    order(&server, &["SCRIPT", "FLUSH"]);
    order(&server, &REPLICA);
    stays_open(&limiter, &server).await;
    order(&server, &["REPLICAOF", "NO", "ONE"]);
    resumed(&limiter).await;
}

#[tokio::test]
async fn a_node_without_slots_is_not_taken_for_healthy() {
    let server = Server::builder().arg("cluster-enabled", "yes").start();
    let limiter = rejecting(store(&server), UNITS);
    stays_open(&limiter, &server).await;
    give_all_slots(&server);
    resumed(&limiter).await;
}

/// It rejects a key whose quota is used up.
#[tokio::test]
async fn a_full_server_is_used_nevertheless() {
    let server = Server::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    let proxy = Proxy::to(server.addr());
    let limiter = rejecting(through(&proxy), 1);
    assert!(limiter.check(Key::new("spent")).await.is_admitted());
    proxy.cut();
    opened(&limiter).await;
    order(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    proxy.pass();
    until("it is called again", async || {
        let decision = limiter.check(Key::new("spent")).await;
        decision.source() == DecisionSource::Store && !decision.is_admitted()
    })
    .await;
    let error = store_error(&limiter.check(Key::new("new")).await);
    assert_eq!(error.code(), "oom");
}

/// A user with rights to the keys with the prefix alone, and none to remove them.
#[tokio::test]
async fn a_probe_needs_no_more_rights_than_counting_and_leaves_nothing_behind() {
    let server = Server::start();
    let rights = "~ab:* +@all -del -config";
    server.acl("gate", "secret", rights);
    let store = builder(server.url_as("gate", "secret")).prefix("ab:");
    let limiter = rejecting(store.built(), UNITS);
    order(&server, &REPLICA);
    stays_open(&limiter, &server).await;
    order(&server, &["REPLICAOF", "NO", "ONE"]);
    resumed(&limiter).await;
    assert_eq!(server.immortal_keys(), [""; 0]);
    let is_clean = async || server.keys() == ["ab:g3:p:whoever"];
    until("nothing is left but what was counted", is_clean).await;
}

/// Each reply takes longer than a probe is waited for before the next one goes, and there are two.
#[tokio::test]
async fn a_server_with_a_slow_network_is_found() {
    let (_server, proxy) = network();
    let limiter = rejecting(through(&proxy), UNITS);
    proxy.cut();
    opened(&limiter).await;
    proxy.delay(ms(700));
    resumed(&limiter).await;
}

#[tokio::test]
async fn a_late_reply_to_a_probe_closes_the_breaker() {
    let server = Server::start();
    let limiter = rejecting(hasty(server.url()), UNITS);
    resumed(&limiter).await;
    // The server takes connections, and holds whatever may write. Requests are sent by `EVALSHA`.
    order(&server, &["CLIENT", "PAUSE", "600000", "WRITE"]);
    opened(&limiter).await;
    until("there is a probe", async || {
        let clients = server.command(&["CLIENT", "LIST"]).text();
        let mut clients = clients.lines();
        clients.any(|client| client.contains(" flags=b ") && client.contains(" cmd=eval "))
    })
    .await;
    order(&server, &["CLIENT", "UNPAUSE"]);
    until("its reply closes it", async || !is_open(&limiter)).await;
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
    let limiter = rejecting(store(&server), UNITS);
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
    println!("resumed {:?} after the server's return", back.elapsed());
    assert!(back.elapsed() < TEST_TIMEOUT / 3);
    drop(taken);
}

/// Though each is waited for as long as a request is, or nearly.
#[tokio::test]
async fn probes_do_not_pile_up_and_end_with_the_store() {
    let server = Server::start();
    let limiter = rejecting(store(&server), UNITS);
    server.kill();
    opened(&limiter).await;
    let mut hole = Hole::in_place_of(&server);
    let mut most = 0;
    until("eight probes", async || {
        most = most.max(hole.open());
        hole.taken() >= 8
    })
    .await;
    assert!(most <= 6, "{most} at once");
    drop(limiter);
    until("none is left", async || hole.open() == 0).await;
}
