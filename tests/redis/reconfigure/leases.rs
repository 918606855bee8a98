//! Leases that are added, changed and removed while requests are served.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use tollgate::{DecisionSource, Lease, Limiter, MemoryStore, Policy, RetryAfter, extract};

use crate::reconfigure::support::{
    KEY, StrategyKind, TEST_TIMEOUT, World, ms, replace, secs, until, used,
};

const QUOTA: &str = "90000/h";

/// A policy with leases of at most so many units, or without leases.
fn leased(strategy: StrategyKind, quota: &str, units: Option<u64>) -> Policy {
    let policy = strategy.policy("p", quota).key(extract::global());
    match units {
        Some(units) => policy.lease(Lease::max_units(units).ttl(secs(1))),
        None => policy,
    }
}

/// The units that are held, and those that are lost until they refill.
fn held_and_lapsed(limiter: &Limiter) -> (u64, u64) {
    let leases = limiter.stats().store.leases;
    let of_policy = leases.iter().find(|leases| &*leases.policy == "p");
    of_policy.map_or((0, 0), |leases| (leases.held, leases.lapsed))
}

/// Waits until no units are held; returns how many were charged by which no request was admitted.
async fn lost(limiter: &Limiter) -> u64 {
    until("what was left is refunded", async || {
        held_and_lapsed(limiter).0 == 0
    })
    .await;
    held_and_lapsed(limiter).1
}

#[tokio::test]
async fn leases_are_used_from_the_change_on_and_no_longer_after_it_and_the_counts_stay() {
    let world = World::redis();
    for strategy in StrategyKind::ALL {
        let limiter = world.limiter([leased(strategy, QUOTA, None)]);
        limiter.reset(KEY).await.expect("a response");
        let mut admitted = 0;
        for units in [None, Some(8), Some(64), None, Some(8), None] {
            let changes = replace(&limiter, [leased(strategy, QUOTA, units)]);
            let start = Instant::now();
            let mut sources = Vec::new();
            // A lease needs a hot key; without leases, as many requests as make one hot many times over.
            while match units {
                Some(_) => !sources.contains(&DecisionSource::Lease),
                None => sources.len() < 100,
            } {
                let decision = limiter.check(KEY).await;
                assert!(decision.is_admitted(), "{strategy:?}: {decision:?}");
                admitted += 1;
                sources.push(decision.source());
                assert!(start.elapsed() < TEST_TIMEOUT, "no lease: {changes}");
            }
            if units.is_none() {
                let all = sources
                    .iter()
                    .all(|source| *source == DecisionSource::Store);
                assert!(all, "{strategy:?}: {sources:?}");
            }
            // What is held is charged, and was not forgotten by the change.
            let (held, lapsed) = held_and_lapsed(&limiter);
            let counted = used(&limiter, "p").await;
            assert!(
                counted >= admitted && held + lapsed <= counted,
                "{strategy:?}"
            );
        }
        let lost = lost(&limiter).await;
        assert_eq!(used(&limiter, "p").await, admitted + lost, "{strategy:?}");
    }
}

#[test]
fn exactly_the_limit_is_admitted_while_leases_come_and_go() {
    let world = World::redis();
    for strategy in [StrategyKind::Fixed, StrategyKind::Gcra] {
        let limiter = world.limiter([leased(strategy, "20000/h", Some(8))]);
        let admitted = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        let runtime = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().expect("a runtime")
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    runtime().block_on(async {
                        while !is_over.load(Ordering::Relaxed) {
                            let decision = limiter.check(KEY).await;
                            admitted.fetch_add(decision.admitted(), Ordering::Relaxed);
                            if !decision.is_admitted() {
                                is_over.store(true, Ordering::Relaxed);
                            }
                        }
                        // What this thread's runtime holds is refunded by its tasks.
                        lost(&limiter).await;
                    });
                });
            }
            let mut sets = [None, Some(64), Some(1_000), Some(2)].into_iter().cycle();
            while !is_over.load(Ordering::Relaxed) {
                let units = sets.next().flatten();
                replace(&limiter, [leased(strategy, "20000/h", units)]);
                thread::sleep(ms(1));
            }
        });
        runtime().block_on(async {
            replace(&limiter, [leased(strategy, "20000/h", None)]);
            let lost = lost(&limiter).await;
            while limiter.check(KEY).await.is_admitted() {
                admitted.fetch_add(1, Ordering::Relaxed);
            }
            let admitted = admitted.load(Ordering::Relaxed);
            assert_eq!(admitted + lost, 20_000, "{strategy:?}, {lost} lost");
        });
    }
}

#[tokio::test]
async fn a_burst_that_leases_make_smaller_leaves_a_debt_and_comes_back_without_them() {
    for world in World::both() {
        for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
            let policy = |units| {
                let policy = strategy.policy("p", "100/s").key(extract::global());
                match units {
                    Some(units) => policy.lease(Lease::max_units(units)),
                    None => policy,
                }
            };
            let limiter = world.limiter([policy(None)]);
            limiter.reset(KEY).await.expect("a response");
            assert!(limiter.check(KEY).cost(97).await.is_admitted());
            let changes = replace(&limiter, [policy(Some(8))]);
            assert_eq!(
                changes.to_string(),
                "p: altered: lease none -> { max_units = 8, ttl = 50ms } (the counts stay; the burst in force is 94 rather than 100)"
            );
            let status = limiter.peek(KEY).await.expect("a response");
            let status = status.policy("p").expect("p");
            assert_eq!((status.limit(), status.remaining()), (94, 0));
            // Three units of debt, and one.
            assert_eq!(status.retry_after(), RetryAfter::In(ms(40)));
            replace(&limiter, [policy(None)]);
            assert_eq!(used(&limiter, "p").await, 97, "{}", world.name());
        }
    }
}

#[test]
fn a_set_with_a_lease_that_does_not_fit_changes_nothing() {
    let store = MemoryStore::new();
    let fine = leased(StrategyKind::Gcra, QUOTA, Some(8));
    let limiter = Limiter::builder().store(store).policy(fine);
    let limiter = limiter.build().expect("a limiter");
    let before = format!("{:?}", limiter.policies());
    let unfit = Limiter::builder().policy(leased(StrategyKind::Gcra, "100/s burst 3", Some(8)));
    let error = limiter.reconfigure(unfit).expect_err("too small a burst");
    assert!(error.to_string().contains("with a lease of 1s"), "{error}");
    assert_eq!(format!("{:?}", limiter.policies()), before);
}
