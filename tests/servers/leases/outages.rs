//! Servers that stop, restart, fail over, and replies that are late or lost, while units are leased.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use testkit::{Proxy, Sentinel, Server};
use tollgate::{
    DecisionKind, DecisionSource, Limiter, LocalFallback, OnStoreError, RedisStore, StoreError,
};

use crate::leases::{
    checker::{Bound, excess},
    holder::Holder,
    one_more_burst::Ledger,
    support::{
        KEY, StrategyKind, TEST_TIMEOUT, TTL, builder, held, hold_more_than, hold_units, leased,
        leases, limiter, ms, store, until, used,
    },
    traffic::{Traffic, until_nothing_is_held},
};

/// Longer than the machine is busy, shorter than a test.
const TIMEOUT: Duration = ms(400);

/// How often refunds of other kinds are sent again.
const PENDING_REFUNDS: Duration = ms(250);

fn through(proxy: &Proxy) -> RedisStore {
    let url = format!("redis://{}", proxy.addr());
    let store = builder(url).timeout(TIMEOUT).no_circuit_breaker();
    store.build().expect("a store")
}

fn plenty(store: RedisStore) -> Limiter {
    limiter(store, [leased(StrategyKind::Fixed, "p", "1000000/month")])
}

#[tokio::test]
async fn with_the_server_gone_what_is_held_is_spent_first_and_then_the_fallback_decides() {
    let server = Server::start();
    let policy = || leased(StrategyKind::Fixed, "p", "1000000/month");
    for response in [
        OnStoreError::Reject,
        OnStoreError::Admit,
        LocalFallback::shared_by(2).into(),
    ] {
        let proxy = Proxy::to(server.addr());
        let limiter = tollgate::Limiter::builder()
            .store(through(&proxy))
            .policy(policy())
            .on_store_error(response)
            .build()
            .expect("a limiter");
        hold_more_than(&limiter, KEY, 20).await;
        proxy.cut();
        let before = leases(&limiter, "p").expect("leases");
        let mut by_lease = 0;
        loop {
            let decision = limiter.check(KEY).await;
            match decision.source() {
                DecisionSource::Lease => {
                    assert!(decision.is_admitted());
                    by_lease += 1;
                }
                // The reply was there before the cut.
                DecisionSource::Store => {}
                _ => {
                    assert_eq!(decision.source(), DecisionSource::Fallback);
                    match response {
                        OnStoreError::Reject => {
                            assert!(matches!(decision.kind(), DecisionKind::StoreFailed(_)));
                        }
                        _ => assert!(decision.is_admitted(), "{decision:?}"),
                    }
                    break;
                }
            }
        }
        assert!(by_lease > 0, "{response:?}");
        // What was held, and a lease that was on its way.
        assert!(by_lease <= before.held + 64, "{by_lease} of {before:?}");
        proxy.pass();
        until("it is leased again", async || {
            limiter.check(KEY).await.source() == DecisionSource::Lease
        })
        .await;
    }
}

/// Whether it was charged is unknown: the units are lost, and no request is admitted by them.
#[tokio::test]
async fn a_lease_whose_reply_is_lost_is_not_spent() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let limiter = plenty(through(&proxy));
    let watcher = plenty(store(&server));
    let mut admitted = 0;
    for _ in 0..12 {
        let start = Instant::now();
        proxy.halve();
        while start.elapsed() < ms(60) {
            admitted += u64::from(limiter.check(KEY).await.is_admitted());
        }
        proxy.pass();
        until("the store replies", async || {
            let decision = limiter.check(KEY).await;
            admitted += u64::from(decision.is_admitted());
            decision.source() == DecisionSource::Lease
        })
        .await;
    }
    until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
    let stats = leases(&limiter, "p").expect("leases");
    let charged = used(&watcher, KEY).await;
    assert!(
        charged >= admitted,
        "{admitted} admitted, {charged} charged: {stats:?}"
    );
}

/// Whether it was done may be unknown: sent again, it would take units that others were charged.
#[test]
fn a_refund_that_fails_is_not_sent_again() {
    for is_done in [true, false] {
        // On a busy machine it may be sent before it is made to fail.
        while !refund_fails(is_done) {}
    }
}

fn refund_fails(is_done: bool) -> bool {
    let (server, ttl) = (Server::start(), ms(300));
    let proxy = Proxy::to(server.addr());
    let cases = [(StrategyKind::Fixed, "1000000/month")];
    let holder = Holder::new(&cases, ttl, || through(&proxy));
    let other = limiter(
        store(&server),
        [StrategyKind::Fixed.policy("p", "1000000/month")],
    );
    let own = holder.only_limiter();
    let mut charged = holder.hold()[0] + 1_000;
    let held = own.held();
    own.run(async {
        assert!(other.check(own.key).cost(1_000).await.is_admitted());
        if is_done {
            proxy.halve();
            until("it is done, and its reply is lost", async || {
                used(&other, own.key).await == charged
            })
            .await;
        } else {
            proxy.cut();
            // So that the connection is known to be lost.
            assert!(own.limiter.peek(own.key).await.is_err());
            tokio::time::sleep(ttl).await;
            charged += held;
        }
        proxy.pass();
        until("it has failed", async || own.held() == 0).await;
        let mut calls = 0;
        until("the store replies", async || {
            let decision = own.limiter.check(own.key).await;
            charged += u64::from(decision.is_admitted());
            calls += u64::from(decision.source() == DecisionSource::Store);
            calls > 5
        })
        .await;
        tokio::time::sleep(2 * PENDING_REFUNDS).await;
    });
    holder.shutdown();
    if leases(&own.limiter, "p").expect("leases").lapsed == 0 {
        return false;
    }
    let used = own.run(used(&other, own.key));
    assert_eq!(used, charged, "{is_done}");
    true
}

/// Replies that come after the TTL: such a lease is refunded, not spent.
#[tokio::test]
async fn a_lease_that_comes_too_late_is_refunded() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let limiter = plenty(through(&proxy));
    proxy.delay(TTL + ms(20));
    let mut admitted = 0;
    until("leases were granted", async || {
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.check(KEY).await })
            })
            .collect();
        for task in tasks {
            let decision = task.await.expect("a task ends well");
            assert_ne!(decision.source(), DecisionSource::Lease, "{decision:?}");
            admitted += u64::from(decision.is_admitted());
        }
        leases(&limiter, "p").is_some_and(|stats| stats.granted > 0)
    })
    .await;
    until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
    let stats = leases(&limiter, "p").expect("leases");
    assert_eq!(
        (stats.spent, stats.refunded),
        (0, stats.granted),
        "{stats:?}"
    );
    proxy.pass();
    assert_eq!(used(&limiter, KEY).await, admitted);
}

#[tokio::test]
async fn no_lease_is_waited_for_longer_than_the_timeout() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let limiter = plenty(through(&proxy));
    hold_units(&limiter, KEY).await;
    proxy.hold();
    until("a request runs out of time", async || {
        let decision = limiter.check(KEY).await;
        matches!(
            decision.kind(),
            DecisionKind::StoreFailed(StoreError::Timeout)
        )
    })
    .await;
    proxy.pass();
    until("it is leased again", async || {
        limiter.check(KEY).await.source() == DecisionSource::Lease
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_that_loses_counts_admits_one_more_burst_at_most() {
    for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
        let server = Server::start();
        let policy = || leased(strategy, "p", "1000/s burst 3000");
        let limiters: Vec<_> = (0..4)
            .map(|_| {
                limiter(
                    builder(server.url())
                        .timeout(TIMEOUT)
                        .build()
                        .expect("a store"),
                    [policy()],
                )
            })
            .collect();
        let traffic = Traffic::start(&limiters, KEY, &[1]);
        until("the burst is used", async || traffic.units() > 3_000).await;
        until_units_are_held(&limiters).await;
        let before = traffic.units();
        server.kill();
        server.restart();
        until("the fresh burst is used", async || {
            traffic.units() > before + 3_000
        })
        .await;
        let record = traffic.run_for(ms(300)).await;
        let bound = Bound {
            burst: 2 * 3_000,
            rate: (1_000, 1_000_000),
        };
        let excess = excess(&record.admissions, bound);
        assert!(excess <= 0.0, "{strategy:?}: {excess} too many");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_that_goes_on_has_all_counts_and_none_is_exceeded() {
    let server = Arc::new(Server::start());
    let policy = || leased(StrategyKind::Gcra, "p", "2000/s burst 3000");
    let limiters: Vec<_> = (0..4)
        .map(|_| {
            limiter(
                builder(server.url())
                    .timeout(TIMEOUT)
                    .build()
                    .expect("a store"),
                [policy()],
            )
        })
        .collect();
    let traffic = Traffic::start(&limiters, KEY, &[1]);
    until("units are leased", async || traffic.by_lease() > 0).await;
    for pause in [20, 70, 150, 600] {
        server.pause();
        tokio::time::sleep(ms(pause)).await;
        server.resume();
        let before = traffic.units();
        until("requests are admitted again", async || {
            traffic.units() > before + 100
        })
        .await;
    }
    let record = traffic.stop().await;
    let bound = Bound {
        burst: 3_000,
        rate: (2_000, 1_000_000),
    };
    let excess = excess(&record.admissions, bound);
    assert!(excess <= 0.0, "{excess} too many");
}

/// One lease is held while the master fails, others are spent by traffic.
#[test]
fn a_failover_admits_one_more_burst_at_most_and_leases_go_on() {
    let group = Sentinel::start();
    let store = |timeout| {
        let store = RedisStore::builder()
            .sentinel(group.master_name(), group.sentinel_urls())
            .timeout(timeout)
            .rejection_cache_staleness(Duration::ZERO);
        store.build().expect("a store")
    };
    let ledger = Ledger::long(|| store(TEST_TIMEOUT));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let policy = || leased(StrategyKind::Gcra, "p", "1000/s burst 3000");
        let limiters: Vec<_> = (0..3)
            .map(|_| limiter(store(TIMEOUT), [policy()]))
            .collect();
        let traffic = Traffic::start(&limiters, KEY, &[1]);
        until_units_are_held(&limiters).await;
        group.master().kill();
        let before = traffic.units();
        until("the next master admits", async || {
            traffic.units() > before + 1_000
        })
        .await;
        let by_lease = traffic.by_lease();
        until("it is leased again", async || traffic.by_lease() > by_lease).await;
        let record = traffic.stop().await;
        let bound = Bound {
            burst: 2 * 3_000,
            rate: (1_000, 1_000_000),
        };
        let excess = excess(&record.admissions, bound);
        assert!(excess <= 0.0, "{excess} too many");
        let leased: u64 = limiters
            .iter()
            .filter_map(|limiter| leases(limiter, "p"))
            .map(|stats| stats.spent)
            .sum();
        assert_eq!(leased, record.by_lease);
    });
    ledger.end();
}

/// Waits until units are held at this moment.
async fn until_units_are_held(limiters: &[Limiter]) {
    until("units are held", async || {
        limiters.iter().any(|limiter| held(limiter) > 0)
    })
    .await;
}
