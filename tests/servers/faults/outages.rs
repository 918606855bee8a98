//! Each way in which a store can go away and come back, under a steady load from two processes.

use std::time::{Duration, Instant};

use testkit::{Proxy, Server};
use tollgate::{DecisionSource, Key, Limiter};

use crate::faults::{
    load::{Load, Log},
    support::{TIMEOUT, builder, sharing, until, url, used_on_the_store},
};

/// What the shared key is allowed: it is used up before the outage, and again in it.
const QUOTA: u64 = 101;
/// Each process's half, rounded up.
const SHARE: u64 = 51;

/// Two limiters on connections of their own: one, and four.
fn two(url: &str) -> [Limiter; 2] {
    [1, 4].map(|connections| {
        let store = builder(url).connections(connections).build();
        sharing(store.expect("a store"), QUOTA, 2)
    })
}

/// Whether every call fails during the outage, or rejections of keys whose quota is used up still come.
#[derive(Clone, Copy, PartialEq)]
enum StoreReplies {
    Nothing,
    Rejections,
}

/// Loads both limiters, has the store struck and mended, and checks what every outage has in common.
async fn outage(
    limiters: &[Limiter; 2],
    replies: StoreReplies,
    begin: impl FnOnce(),
    end: impl FnOnce(),
) -> Log {
    let load = Load::start(limiters);
    load.wait_for_decisions(DecisionSource::Store, 200).await;
    tokio::task::block_in_place(begin);
    load.wait_for_decisions(DecisionSource::Fallback, 400).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    tokio::task::block_in_place(end);
    let back = Instant::now();
    // Until it is all over, and a while longer.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    load.wait_for_decisions(DecisionSource::Store, 200).await;
    let log = load.stop().await;
    let test = std::thread::current();
    log.print(test.name().unwrap_or_default(), back);
    log.assert_in_time();
    log.assert_resumed(back);
    let in_process = log.admitted(DecisionSource::Fallback, true);
    match replies {
        StoreReplies::Nothing => {
            assert_eq!(in_process, 2 * SHARE, "all of the shares, and no more")
        }
        StoreReplies::Rejections if log.is_calm() => {
            assert_eq!(in_process, 0, "it was used up, and the store says so")
        }
        // The machine held requests up for longer than their deadline.
        StoreReplies::Rejections => assert!(in_process <= 2 * SHARE, "{in_process}"),
    }
    for limiter in [0, 1] {
        let requests = log
            .requests
            .iter()
            .filter(|request| request.limiter == limiter);
        assert!(requests.count() > 1_000, "a steady load");
    }
    log
}

/// The store itself never admits more than the quota, nor loses more than the charges whose replies were lost.
async fn assert_counted(log: &Log, limiter: &Limiter) {
    let admitted = log.admitted(DecisionSource::Store, true);
    assert!(admitted <= QUOTA, "{admitted} of {QUOTA}");
    let used = used_on_the_store(limiter, Key::new("shared")).await;
    assert!(
        admitted <= used && used <= admitted + log.faults(),
        "{admitted} admitted, {used} used"
    );
}

/// Nothing is left of the limiters but what they were given.
async fn assert_gone(server: &Server, limiters: [Limiter; 2]) {
    drop(limiters);
    until(
        "all connections are closed, and all tasks have ended",
        async || {
            let clients = server.command(&["CLIENT", "LIST"]).text();
            let tasks = tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks();
            clients.lines().count() == 1 && tasks == 0
        },
    )
    .await;
}

fn order(server: &Server, command: &[&str]) {
    server.command(command).ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted_empty() {
    let server = Server::start();
    let limiters = two(&server.url());
    let restart = || server.restart();
    let log = outage(&limiters, StoreReplies::Nothing, || server.kill(), restart).await;
    // It has lost its counts: at most another quota.
    let admitted = log.admitted(DecisionSource::Store, true);
    assert!(QUOTA < admitted && admitted <= 2 * QUOTA, "{admitted}");
    assert_eq!(server.immortal_keys(), [""; 0]);
    assert_gone(&server, limiters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_and_continued() {
    let server = Server::start();
    let limiters = two(&server.url());
    let resume = || server.resume();
    let log = outage(&limiters, StoreReplies::Nothing, || server.pause(), resume).await;
    assert_counted(&log, &limiters[0]).await;
    assert_gone(&server, limiters).await;
}

/// Such a server replies to `PING`: only what may write waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_for_writes() {
    let server = Server::start();
    let limiters = two(&server.url());
    let pause = || order(&server, &["CLIENT", "PAUSE", "60000", "WRITE"]);
    let unpause = || order(&server, &["CLIENT", "UNPAUSE"]);
    let log = outage(&limiters, StoreReplies::Nothing, pause, unpause).await;
    assert_counted(&log, &limiters[0]).await;
    assert_gone(&server, limiters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full() {
    let server = Server::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    let limiters = two(&server.url());
    let fill = || order(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let free = || order(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    let log = outage(&limiters, StoreReplies::Rejections, fill, free).await;
    assert_counted(&log, &limiters[0]).await;
    assert_gone(&server, limiters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn made_a_replica_and_a_master_again() {
    let server = Server::start();
    let limiters = two(&server.url());
    let nowhere = testkit::free_port().to_string();
    let demote = || order(&server, &["REPLICAOF", "127.0.0.1", &nowhere]);
    let promote = || order(&server, &["REPLICAOF", "NO", "ONE"]);
    let log = outage(&limiters, StoreReplies::Nothing, demote, promote).await;
    assert_counted(&log, &limiters[0]).await;
    assert_gone(&server, limiters).await;
}

/// A network gets worse between the limiters and a server that is well all the time.
async fn bad_weather(worsen: impl FnOnce(&Proxy)) {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let limiters = two(&url(proxy.addr()));
    let clear = || proxy.pass();
    let log = outage(&limiters, StoreReplies::Nothing, || worsen(&proxy), clear).await;
    assert_counted(&log, &limiters[0]).await;
    assert_gone(&server, limiters).await;
    assert_eq!(proxy.connections(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_network_that_drops_all_packets() {
    bad_weather(Proxy::hold).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_network_that_closes_connections() {
    bad_weather(Proxy::cut).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_network_that_cuts_replies_in_half() {
    bad_weather(Proxy::halve).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_network_that_is_too_slow() {
    bad_weather(|proxy| proxy.delay(2 * TIMEOUT)).await;
}
