//! Demand above the limit gets all of it: leases strand nothing.

use testkit::Server;

use crate::leases::{
    support::{KEY, StrategyKind, leases, single, until, used},
    traffic::{Traffic, until_nothing_is_held},
};

/// As many limiters, each with a store of its own, share a quota that doesn't refill while the test runs.
async fn exhausts(strategy: StrategyKind, units: u64, limiters: usize) {
    let server = Server::start();
    let quota = format!("{units}/month");
    let limiters: Vec<_> = (0..limiters)
        .map(|_| single(&server, strategy, &quota))
        .collect();
    let traffic = Traffic::start(&limiters, KEY, &[1]);
    let limit = limiters[0].stats().policies[0].limit;
    // A refund goes to the others: they have it all in the end.
    let least = limit - limit / 100;
    until("the quota is used", async || {
        let used = used(&limiters[0], KEY).await;
        used >= least && traffic.units() >= least
    })
    .await;
    let record = traffic.stop().await;
    until_nothing_is_held(&limiters, "p").await;
    let admitted = record.admissions.len() as u64;
    assert!(
        (least..=units).contains(&admitted),
        "{strategy:?}: {admitted} of {units}"
    );
    // By the store's count nothing is missing, but for what has refilled meanwhile, and what time takes off a refund.
    let used = used(&limiters[0], KEY).await;
    assert!(
        used >= admitted && used - admitted <= units / 100,
        "{strategy:?}: {admitted} admitted, {used} used"
    );
    assert!(
        record.by_lease > admitted / 10,
        "{strategy:?}: {}",
        record.by_lease
    );
    let granted = limiters.iter().filter_map(|limiter| leases(limiter, "p"));
    let (granted, spent) = granted.fold((0, 0), |(granted, spent), stats| {
        (granted + stats.granted, spent + stats.spent)
    });
    assert!(granted > 0, "{strategy:?}");
    assert_eq!(spent, record.by_lease, "{strategy:?}");
}

/// Without leases the last units of a quota, or of a lease, would be left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_limiter_uses_the_whole_quota() {
    for strategy in StrategyKind::ALL {
        exhausts(strategy, 6_000, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_limiters_use_the_whole_quota() {
    for strategy in StrategyKind::ALL {
        exhausts(strategy, 6_000, 8).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_limiters_use_the_whole_quota() {
    for strategy in [StrategyKind::Gcra, StrategyKind::Fixed, StrategyKind::Log] {
        exhausts(strategy, 20_000, 64).await;
    }
}
