//! What is held is refunded when traffic stops, and by a shutdown; slow keys have no leases.

use std::time::{Duration, Instant};

use testkit::Server;
use tollgate::{DecisionSource, Key, Lease};

use crate::leases::{
    support::{
        KEY, StrategyKind, TEST_TIMEOUT, TTL, held, hold_units, leases, limiter, ms, single, store,
        until, used,
    },
    traffic::Traffic,
};

/// Strategies whose refunds are exact.
const EXACT: [StrategyKind; 5] = [
    StrategyKind::Fixed,
    StrategyKind::Calendar,
    StrategyKind::List,
    StrategyKind::Log,
    StrategyKind::Sliding(10),
];

#[tokio::test]
async fn a_shutdown_refunds_what_is_held() {
    for strategy in EXACT {
        let server = Server::start();
        // So long a TTL that nothing comes back by itself.
        let policy = || {
            let policy = strategy.policy("p", "100000/month");
            policy.lease(Lease::max_units(64).ttl(Duration::from_secs(10)))
        };
        let limiter = limiter(store(&server), [policy()]);
        let other = crate::leases::support::limiter(store(&server), [policy()]);
        let admitted = hold_units(&limiter, KEY).await;
        limiter
            .shutdown(TEST_TIMEOUT)
            .await
            .expect("the store replies");
        assert_eq!(held(&limiter), 0, "{strategy:?}");
        assert_eq!(used(&other, KEY).await, admitted, "{strategy:?}");
    }
}

/// The limiter is in use until then: a lease may be on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_after_traffic_leaves_what_was_admitted() {
    for round in 0..30 {
        let server = Server::start();
        let limiter = single(&server, StrategyKind::Fixed, "10000000/month");
        let other = single(&server, StrategyKind::Fixed, "10000000/month");
        let traffic = Traffic::start(&[limiter.clone(), limiter.clone()], KEY, &[1]);
        until("a lease admits", async || {
            traffic.by_lease() > 200 + round * 10
        })
        .await;
        let admitted = traffic.stop().await.admissions.len() as u64;
        limiter
            .shutdown(TEST_TIMEOUT)
            .await
            .expect("the store replies");
        assert_eq!(
            used(&other, KEY).await,
            admitted,
            "{round}: {:?}",
            leases(&limiter, "p")
        );
    }
}

#[tokio::test]
async fn what_is_left_when_traffic_stops_is_refunded() {
    for strategy in EXACT {
        let server = Server::start();
        let limiter = single(&server, strategy, "100000/month");
        let mut admitted = 0;
        for _ in 0..3 {
            admitted += hold_units(&limiter, KEY).await;
            until("the store's count is what was admitted", async || {
                used(&limiter, KEY).await == admitted
            })
            .await;
            assert_eq!(held(&limiter), 0);
        }
        let stats = leases(&limiter, "p").expect("leases");
        assert_eq!(stats.lapsed, 0, "{strategy:?}: {stats:?}");
        assert!(stats.refunded > 0, "{strategy:?}: {stats:?}");
        assert_eq!(stats.granted, stats.spent + stats.refunded, "{strategy:?}");
    }
}

/// 50 requests a second, by the instants at which they are sent: fewer if the machine is busy.
#[tokio::test]
async fn a_key_with_fewer_than_a_hundred_requests_a_second_has_no_leases() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "100000/month");
    for _ in 0..50 {
        let decision = limiter.check(KEY).await;
        assert_eq!(decision.source(), DecisionSource::Store);
        tokio::time::sleep(ms(20)).await;
    }
    assert!(leases(&limiter, "p").is_none());
}

/// A busy key among many that are not.
#[tokio::test]
async fn leases_are_of_busy_keys_alone() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "1000000/month");
    let start = Instant::now();
    let mut by_lease = 0;
    for number in 0..600 {
        let cold = limiter.check(Key::new(format!("{number}"))).await;
        assert_eq!(cold.source(), DecisionSource::Store);
        for _ in 0..5 {
            let busy = limiter.check(KEY).await;
            by_lease += u64::from(busy.source() == DecisionSource::Lease);
        }
    }
    assert!(by_lease > 0, "in {:?}", start.elapsed());
    assert!(start.elapsed() > TTL);
}

/// Each has more requests than any lease is for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_busy_keys_are_all_counted() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "200/month");
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let key = Key::new(format!("{number}"));
                let mut admitted = 0;
                for _ in 0..250 {
                    admitted += u64::from(limiter.check(key).await.is_admitted());
                }
                // What was held when the store had no more.
                let start = Instant::now();
                while admitted < 200 && start.elapsed() < TEST_TIMEOUT {
                    admitted += u64::from(limiter.check(key).await.is_admitted());
                    tokio::time::sleep(ms(2)).await;
                }
                for _ in 0..5 {
                    admitted += u64::from(limiter.check(key).await.is_admitted());
                }
                admitted
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.expect("a task ends well"), 200);
    }
    let stats = leases(&limiter, "p").expect("leases");
    assert!(stats.spent > 0, "{stats:?}");
}
