//! Each way in which a store can go away and come back, under a steady load from two processes.

use tokio::time::sleep;

use crate::faults::{
    load::{Counts, Load, Sent},
    support::*,
};

/// What the shared key is allowed: it is used up before the outage, and again in it.
const QUOTA: u64 = 101;
/// Each process's half, rounded up.
const SHARE: u64 = 51;

/// Loads two limiters on connections of their own, and has the store struck and mended meanwhile: mended once
/// each limiter has decided so many requests for the shared key by its share.
async fn outage(
    url: &str,
    timeout: Duration,
    by_share: u64,
    begin: impl FnOnce(),
    end: impl FnOnce(),
) -> Counts {
    let limiters = [(); 2].map(|()| {
        let store = builder(url).timeout(timeout);
        sharing(store.built(), QUOTA, 2)
    });
    let load = Load::start(limiters, timeout);
    load.wait_for(200, Sent::is_by_store).await;
    begin();
    load.wait_for(400, |sent| !sent.is_by_store()).await;
    let is_by_share = |sent: &Sent| sent.is_shared && sent.source == DecisionSource::Fallback;
    load.wait_for(by_share, is_by_share).await;
    // Until several probes have failed.
    sleep(2 * SHORT_TIMEOUT).await;
    end();
    let back = Instant::now();
    load.wait_for(200, Sent::is_by_store).await;
    println!("full service {:.0?} after the outage", back.elapsed());
    load.stop()
}

/// An outage in which every call fails. All of the shares are admitted meanwhile, and no more; and by a server that keeps its counts,
/// never more than the quota.
async fn assert_survived(server: &Server, url: &str, begin: impl FnOnce(), end: impl FnOnce()) {
    let counts = outage(url, SHORT_TIMEOUT, 2 * SHARE, begin, end).await;
    assert_eq!(counts.admitted(false), 2 * SHARE);
    assert_counted(server, &counts).await;
}

/// The store itself never admits more than the quota, nor loses more than the charges whose replies were lost. Nothing is left of
/// the limiters but what they were given.
async fn assert_counted(server: &Server, counts: &Counts) {
    let admitted = counts.admitted(true);
    assert!(admitted <= QUOTA, "{admitted} of {QUOTA}");
    let used = used_on_the_store(&sharing(store(server), QUOTA, 2), KEY).await;
    let expected = admitted..=admitted + counts.of(|sent| !sent.is_by_store());
    assert!(expected.contains(&used), "{admitted} admitted, {used} used");
    assert_disconnected(server).await;
}

async fn assert_disconnected(server: &Server) {
    until("all connections are closed", async || {
        let clients = server.command(&["CLIENT", "LIST"]).text();
        clients.lines().count() == 1
    })
    .await;
}

#[tokio::test]
async fn killed_and_restarted_empty() {
    let server = Server::start();
    let (kill, restart) = (|| server.kill(), || server.restart());
    let counts = outage(&server.url(), SHORT_TIMEOUT, 2 * SHARE, kill, restart).await;
    assert_eq!(counts.admitted(false), 2 * SHARE);
    // It has lost its counts: at most another quota.
    let admitted = counts.admitted(true);
    assert!(admitted <= 2 * QUOTA, "{admitted}");
    let again = used_on_the_store(&sharing(store(&server), QUOTA, 2), KEY).await;
    assert!(again > 0, "it counts again");
    assert_eq!(server.immortal_keys(), [""; 0]);
    assert_disconnected(&server).await;
}

#[tokio::test]
async fn stopped_and_continued() {
    let server = Server::start();
    let (pause, resume) = (|| server.pause(), || server.resume());
    assert_survived(&server, &server.url(), pause, resume).await;
}

/// Such a server replies to `PING`: only what may write waits.
#[tokio::test]
async fn paused_for_writes() {
    let server = Server::start();
    let pause = || order(&server, &PAUSE_WRITES);
    let unpause = || order(&server, &UNPAUSE);
    assert_survived(&server, &server.url(), pause, unpause).await;
}

/// Rejections of keys whose quota is used up still come, so that nothing is admitted for them in process.
#[tokio::test]
async fn full() {
    let server = Server::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    let fill = || order(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    let free = || order(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    let counts = outage(&server.url(), TEST_TIMEOUT, 0, fill, free).await;
    assert_eq!(counts.admitted(false), 0);
    assert_counted(&server, &counts).await;
}

/// A replica answers reads, so a process may know all the while that the shared key's quota is used up.
#[tokio::test]
async fn made_a_replica_and_a_master_again() {
    let server = Server::start();
    let (demote, promote) = (|| order(&server, &DEMOTE), || order(&server, &PROMOTE));
    let counts = outage(&server.url(), SHORT_TIMEOUT, 0, demote, promote).await;
    let in_process = counts.admitted(false);
    assert!(in_process <= 2 * SHARE, "{in_process} of the shares");
    assert_counted(&server, &counts).await;
}

#[tokio::test]
async fn behind_a_network_that_gets_worse() {
    type Worsen = fn(&Proxy);
    let worse: [(&str, Worsen); 4] = [
        ("drops all packets", Proxy::hold),
        ("closes connections", Proxy::cut),
        ("cuts replies in half", Proxy::halve),
        ("is too slow", |proxy| proxy.delay(2 * SHORT_TIMEOUT)),
    ];
    for (what, worsen) in worse {
        println!("a network that {what}");
        let (server, proxy) = network();
        let address = url(proxy.addr());
        assert_survived(&server, &address, || worsen(&proxy), || proxy.pass()).await;
        until("they are closed there", async || proxy.connections() == 0).await;
    }
}

/// What was sent and has no reply yet is lost: of each task one request, while a call is in flight. A closed connection is no outage, so
/// that nothing else fails.
#[tokio::test]
async fn a_connection_that_is_closed_costs_the_requests_in_flight_at_most() {
    const TASKS: u64 = 4;
    const CUTS: u64 = 6;
    let (server, proxy) = network();
    let limiter = rejecting(through(&proxy), 1_000_000);
    resumed(&limiter).await;
    let is_over = Arc::new(AtomicBool::new(false));
    // 400 requests a second.
    let tasks = (0..TASKS).map(|_| {
        let (limiter, is_over) = (limiter.clone(), is_over.clone());
        tokio::spawn(async move {
            let (mut admitted, mut failed) = (0, Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                let decision = limiter.check(KEY).await;
                match decision.source() {
                    DecisionSource::Store => admitted += 1,
                    _ => failed.push(store_error(&decision)),
                }
                sleep(ms(10)).await;
            }
            (admitted, failed)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for _ in 0..CUTS {
        sleep(ms(300)).await;
        proxy.cut();
        proxy.pass();
    }
    sleep(ms(300)).await;
    is_over.store(true, Ordering::Relaxed);
    let (mut admitted, mut failed) = (0, Vec::new());
    for task in join_all(tasks).await {
        let (by_store, errors) = task.expect("no panic");
        admitted += by_store;
        failed.extend(errors);
    }
    println!("{admitted} admitted, {failed:?}");
    assert!(failed.len() as u64 <= CUTS * TASKS);
    let is_lost = |error: &&StoreError| matches!(error, StoreError::Connection { .. });
    assert_eq!(failed.iter().filter(is_lost).count(), failed.len());
    let may_have_run = failed.iter().filter(|error| error.may_have_run()).count() as u64;
    let used = used_on_the_store(&rejecting(store(&server), 1_000_000), KEY).await;
    assert!((admitted..=admitted + may_have_run).contains(&used));
}

/// The close has been read, as by the time of the next request in most cases.
#[tokio::test]
async fn a_connection_that_was_closed_while_it_was_idle_costs_no_request() {
    let (_server, proxy) = network();
    let store = here(
        builder(url(proxy.addr()))
            .overrides(false)
            .circuit_breaker_threshold(1),
    );
    let limiter = rejecting(store, 1_000_000);
    for _ in 0..6 {
        assert!(admitted_by_store(&limiter.check(KEY).await));
        proxy.cut();
        proxy.pass();
        until("it is closed there", async || proxy.connections() == 0).await;
        // The runtime reads the close.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    assert!(admitted_by_store(&limiter.check(KEY).await));
}
