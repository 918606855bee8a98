//! What was admitted in process is charged on Redis when it is back, once, if that is wished for.

use testkit::{Proxy, Server};
use tollgate::{
    Fallback, FixedWindow, Gcra, Key, Limiter, ListWindow, Policy, RedisStore, SlidingLog,
    SlidingWindow, Source, TokenBucket,
};

use crate::support::{
    builder, calendar, opened_in_process, quota, resumed, until, url, used_on_the_store,
};

const KEY: Key = Key::global();

fn limiter(store: RedisStore, policy: Policy, write_back: bool) -> Limiter {
    let limiter = Limiter::builder().store(store).policy(policy);
    let fallback = Fallback::across(2).write_back(write_back);
    let limiter = limiter.on_store_error(fallback);
    limiter.build().expect("a limiter")
}

fn network() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    (server, proxy)
}

fn through(network: &Proxy) -> RedisStore {
    builder(url(network.addr())).build().expect("a store")
}

async fn used(limiter: &Limiter) -> u64 {
    used_on_the_store(limiter, KEY).await
}

/// Three units on Redis, then four in process, then Redis again, which never lost its own.
async fn three_and_four(network: &Proxy, limiter: &Limiter) {
    assert_eq!(limiter.check(KEY).cost(3).await.source(), Source::Store);
    network.cut();
    opened_in_process(limiter).await;
    for _ in 0..2 {
        assert!(limiter.check(KEY).cost(2).await.is_admitted());
    }
    network.pass();
    resumed(limiter).await;
}

#[tokio::test]
async fn by_every_strategy_it_is_charged_once() {
    let (server, network) = network();
    let policy = || Policy::new("p", quota(100));
    for policy in [
        policy().strategy(Gcra),
        policy().strategy(TokenBucket),
        policy().strategy(FixedWindow),
        calendar(100),
        policy().strategy(ListWindow),
        policy().strategy(SlidingLog),
        policy().strategy(SlidingWindow::new()),
    ] {
        server.flush();
        let limiter = limiter(through(&network), policy.clone(), true);
        three_and_four(&network, &limiter).await;
        until("it is written back", async || used(&limiter).await == 7).await;
        for _ in 0..5 {
            resumed(&limiter).await;
        }
        assert_eq!(used(&limiter).await, 7, "{policy:?}");

        network.cut();
        opened_in_process(&limiter).await;
        assert!(limiter.check(KEY).await.is_admitted());
        network.pass();
        resumed(&limiter).await;
        until("what is new is", async || used(&limiter).await >= 8).await;
        assert_eq!(used(&limiter).await, 8, "{policy:?}");
    }
}

#[tokio::test]
async fn unless_it_is_wished_for_it_is_not() {
    let (_server, network) = network();
    let policy = Policy::new("p", quota(100));
    let limiter = limiter(through(&network), policy, false);
    three_and_four(&network, &limiter).await;
    for _ in 0..5 {
        resumed(&limiter).await;
    }
    assert_eq!(used(&limiter).await, 3);
}

#[tokio::test]
async fn what_was_given_back_by_then_is_not_charged() {
    let (_server, network) = network();
    let policy = Policy::new("p", quota(100)).strategy(FixedWindow);
    let limiter = limiter(through(&network), policy, true);
    network.cut();
    opened_in_process(&limiter).await;
    let mut decision = limiter.check(KEY).cost(9).await;
    assert_eq!(limiter.refund(&mut decision, 5).await.expect("units"), [5]);
    network.pass();
    resumed(&limiter).await;
    until("it is written back", async || used(&limiter).await == 4).await;
    // What is given back later finds nothing in process, and leaves alone what is on Redis.
    limiter.refund(&mut decision, 4).await.expect("an answer");
    assert_eq!(used(&limiter).await, 4);
}

#[tokio::test]
async fn of_many_keys_each_is_written_back() {
    let (server, network) = network();
    let policy = Policy::new("p", quota(100)).strategy(FixedWindow);
    let limiter = limiter(through(&network), policy, true);
    let key = |key: u64| Key::new(key.to_string());
    server.kill();
    for many in 0..1_000 {
        assert!(limiter.check(key(many)).await.is_admitted());
    }
    server.restart();
    resumed(&limiter).await;
    until("all are written back", async || {
        // Each answer of the store takes some of them along.
        resumed(&limiter).await;
        // One key more is this question's.
        server.keys().len() > 1_000
    })
    .await;
    for many in 0..1_000 {
        let seen = limiter.peek(key(many)).await;
        assert_eq!(seen.verdict("p").expect("a verdict").remaining(), 99);
    }
}
