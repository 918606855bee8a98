//! A master that sentinels watch.

use std::net::TcpListener;

use crate::deployments::support::*;
use testkit::Sentinel;

fn watched(group: &Sentinel) -> Limiter {
    let store = RedisStore::builder()
        .sentinel(group.master_name(), group.sentinel_urls())
        .rejection_cache_staleness(Duration::ZERO);
    limiter(patient(store), 1_000)
}

async fn used(limiter: &Limiter) -> u64 {
    let seen = limiter.peek(key()).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    seen.used("p")
}

/// Waits until every replica has what the master has.
async fn replicated(group: &Sentinel) {
    let offset = |server: &Server| server.info("replication", "master_repl_offset");
    let master = group.master();
    let have_it = async || {
        group
            .servers()
            .iter()
            .all(|it| offset(it) == offset(master))
    };
    until("the replicas have it all", have_it).await;
}

/// A limiter that has admitted this many requests, all of which are replicated.
async fn counting(group: &Sentinel, admitted: u64) -> Limiter {
    let limiter = watched(group);
    for _ in 0..admitted {
        assert!(admitted_by_store(&limiter.check(key()).await));
    }
    replicated(group).await;
    limiter
}

#[tokio::test]
async fn a_demoted_master_is_left_at_its_first_error() {
    let group = Sentinel::start();
    let limiter = counting(&group, 10).await;
    let old = group.master();
    group.begin_failover();
    // By hand: the sentinels take a while to do so.
    let new = group.replaced(old).port().to_string();
    old.command(&["REPLICAOF", "127.0.0.1", &new]).ok();
    // At most one round trip is spent on learning it, and its reply proves that nothing was charged.
    let first = limiter.check(key()).await;
    let learned = u64::from(first.source() == DecisionSource::Store);
    if learned == 0 {
        // By the sentinels its connections are closed, too.
        let code = store_error(&first).code();
        assert!(["readonly", "connection"].contains(&code), "{code}");
    }
    let serves = async || limiter.peek(key()).await.is_ok();
    until("the new one serves", serves).await;
    let before = used(&limiter).await;
    assert!(before <= 10 + learned);
    for _ in 0..5 {
        assert!(admitted_by_store(&limiter.check(key()).await));
    }
    assert_eq!(used(&limiter).await, before + 5);
}

/// Replicated counts stay. Writes that were not replicated are lost with their master: as many more are admitted, and not one more.
#[tokio::test]
async fn a_failed_master_is_replaced_and_charges_that_were_not_replicated_are_admitted_once_more() {
    let group = Sentinel::start();
    let limiter = counting(&group, 300).await;
    let replicas = || group.servers()[1..].iter();
    replicas().for_each(Server::pause);
    for _ in 0..200 {
        assert!(admitted_by_store(&limiter.check(key()).await));
    }
    let old = group.master();
    old.kill();
    let source = limiter.check(key()).await.source();
    assert_eq!(source, DecisionSource::Fallback);
    replicas().for_each(Server::resume);
    group.begin_failover();
    let serves = async || limiter.peek(key()).await.is_ok();
    until("another master serves", serves).await;
    group.replaced(old);
    let known = used(&limiter).await;
    assert!((300..=500).contains(&known), "{known}");
    let mut more = 0;
    while admitted_by_store(&limiter.check(key()).await) {
        more += 1;
    }
    assert_eq!(more, 1_000 - known);
    // The old one comes back, and is made a replica. No client calls it any more.
    old.restart();
    for _ in 0..5 {
        assert!(!admitted_by_store(&limiter.check(key()).await));
    }
    assert_eq!(used(&limiter).await, 1_000);
}

#[tokio::test]
async fn a_sentinel_that_is_down_or_does_not_know_the_master_is_skipped() {
    let group = Sentinel::start();
    let at = |name: &str, urls| limiter(patient(RedisStore::builder().sentinel(name, urls)), 9);
    let gone = vec!["redis://127.0.0.1:1".to_owned()];
    let all = [gone.clone(), group.sentinel_urls()].concat();
    group.sentinels()[1].pause();
    let some = at(group.master_name(), all);
    let is_found = async || some.check(key()).await.source() == DecisionSource::Store;
    until("it is found", is_found).await;
    group.sentinels()[1].resume();
    for (name, urls, code) in [
        ("unknown", group.sentinel_urls(), "nomaster"),
        ("m", gone, "connection"),
    ] {
        let decision = at(name, urls).check(key()).await;
        let error = store_error(&decision);
        assert_eq!(error.code(), code);
        assert_eq!(error.is_misconfiguration(), code == "nomaster");
    }
}

/// A sentinel that was cut off from the others still names the server that was the master.
#[tokio::test]
async fn the_master_is_found_beside_a_sentinel_that_names_another_server() {
    let group = Sentinel::start();
    let [stale, others @ ..] = group.sentinels() else {
        unreachable!("three sentinels")
    };
    // The stale one is the first to reply.
    let others = others.iter().map(|sentinel| Proxy::to(sentinel.addr()));
    let others: Vec<_> = others.collect();
    others.iter().for_each(|proxy| proxy.delay(ms(50)));
    let urls = others.iter().map(|it| format!("redis://{}", it.addr()));
    let urls: Vec<_> = [stale.url()].into_iter().chain(urls).collect();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = silent.local_addr().expect("a port has a number").port();
    for port in [group.servers()[1].port(), 1, silent] {
        // It waits for more votes than there are sentinels, and so names this one.
        let name = group.master_name();
        stale.command(&["SENTINEL", "REMOVE", name]).ok();
        let port = port.to_string();
        let monitor = ["SENTINEL", "MONITOR", name, "127.0.0.1", &port, "9"];
        stale.command(&monitor).ok();
        let store = RedisStore::builder().sentinel(name, urls.clone());
        let limiter = limiter(patient(store), 9);
        let is_found = async || limiter.check(key()).await.source() == DecisionSource::Store;
        until("the master is found", is_found).await;
    }
}
