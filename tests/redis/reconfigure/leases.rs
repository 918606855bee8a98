//! Leases that are added, changed and removed while requests are served.

use tollgate_tests::prelude::*;

use crate::reconfigure::support::*;

const QUOTA: &str = "90000/h";

/// A policy with leases of at most so many units, or without leases.
fn leased(name: &str, strategy: StrategyKind, quota: &str, units: Option<u64>) -> Policy {
    let policy = strategy.policy(name, quota).key(extract::global());
    match units {
        Some(units) => policy.lease(Lease::max_units(units).ttl(ms(200))),
        None => policy,
    }
}

/// The units that are held, and those that are lost until they refill.
fn held_and_lapsed(limiter: &Limiter, policy: &str) -> (u64, u64) {
    let leases = limiter.stats().store.leases;
    let of_policy = leases.iter().find(|leases| &*leases.policy == policy);
    of_policy.map_or((0, 0), |leases| (leases.held, leases.lapsed))
}

/// Waits until no units are held or requested; returns how many were charged by which no request was admitted.
async fn lost(limiter: &Limiter, policy: &str) -> u64 {
    let refunded = limiter.shutdown(TEST_TIMEOUT).await;
    refunded.expect("nothing is queued");
    until("what was left is refunded", async || {
        held_and_lapsed(limiter, policy).0 == 0
    })
    .await;
    held_and_lapsed(limiter, policy).1
}

#[tokio::test]
async fn leases_are_used_from_the_change_on_and_no_longer_after_it_and_the_counts_stay() {
    let world = World::redis();
    let mut all = Vec::new();
    for strategy in StrategyKind::ALL {
        let name = format!("{strategy:?}");
        let limiter = world.limiter([leased(&name, strategy, QUOTA, None)]);
        let mut admitted = 0;
        for units in [None, Some(8), Some(64), None, Some(8), None] {
            replace(&limiter, [leased(&name, strategy, QUOTA, units)]);
            let check = async || {
                let decision = limiter.check(KEY).await;
                assert!(decision.is_admitted(), "{decision:?}");
                decision.source()
            };
            match units {
                // A lease needs a hot key: so many requests at once make it one on a busy machine, too.
                Some(_) => {
                    until("a lease admits", async || {
                        admitted += 20;
                        let sources = join_all((0..20).map(|_| check())).await;
                        sources.contains(&DecisionSource::Lease)
                    })
                    .await;
                }
                // As many requests as make a key hot.
                None => {
                    for _ in 0..100 {
                        admitted += 1;
                        assert_eq!(check().await, DecisionSource::Store, "{strategy:?}");
                    }
                }
            }
            // What is held is charged, and was not forgotten by the change.
            let (held, lapsed) = held_and_lapsed(&limiter, &name);
            let counted = used_by(&limiter, &name, KEY).await;
            let is_charged = counted >= admitted && held + lapsed <= counted;
            assert!(is_charged, "{strategy:?}");
        }
        all.push((limiter, name, admitted));
    }
    for (limiter, name, admitted) in all {
        let lost = lost(&limiter, &name).await;
        let counted = used_by(&limiter, &name, KEY).await;
        assert_eq!(counted, admitted + lost, "{name}");
    }
}

#[test]
fn exactly_the_limit_is_admitted_while_leases_come_and_go() {
    const LIMIT: u64 = 6_000;
    let world = World::redis();
    for strategy in [StrategyKind::Fixed, StrategyKind::Gcra] {
        let quota = format!("{LIMIT}/h");
        let of = |units| leased("p", strategy, &quota, units);
        let limiter = world.limiter([of(Some(8))]);
        let admitted = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    current_thread().block_on(async {
                        while !is_over.load(Ordering::Relaxed) {
                            let decision = limiter.check(KEY).await;
                            admitted.fetch_add(decision.admitted(), Ordering::Relaxed);
                            if !decision.is_admitted() {
                                is_over.store(true, Ordering::Relaxed);
                            }
                        }
                        // What this thread's runtime holds is refunded by its tasks.
                        lost(&limiter, "p").await;
                    });
                });
            }
            let mut sets = [None, Some(64), Some(1_000), Some(2)].into_iter().cycle();
            while !is_over.load(Ordering::Relaxed) {
                replace(&limiter, [of(sets.next().flatten())]);
                thread::sleep(ms(1));
            }
        });
        current_thread().block_on(async {
            replace(&limiter, [of(None)]);
            let lost = lost(&limiter, "p").await;
            while limiter.check(KEY).await.is_admitted() {
                admitted.fetch_add(1, Ordering::Relaxed);
            }
            let admitted = admitted.load(Ordering::Relaxed);
            assert_eq!(admitted + lost, LIMIT, "{strategy:?}, {lost} lost");
        });
    }
}

#[tokio::test]
async fn a_burst_that_leases_make_smaller_leaves_a_debt_and_comes_back_without_them() {
    for world in World::both() {
        for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
            let plain = || strategy.policy("p", "100/s").key(extract::global());
            let policy = |units: Option<u64>| match units {
                Some(units) => plain().lease(Lease::max_units(units)),
                None => plain(),
            };
            let limiter = world.limiter([policy(None)]);
            limiter.reset(KEY).await.expect("a response");
            assert!(limiter.check(KEY).cost(97).await.is_admitted());
            let changes = replace(&limiter, [policy(Some(8))]);
            assert_eq!(changes.to_string(), "p: altered (the counts stay)");
            let status = limiter.peek(KEY).await.expect("a response");
            let status = status.policy("p").expect("p");
            assert_eq!((status.limit(), status.remaining()), (94, 0));
            // Three units of debt, and one.
            assert_eq!(status.retry_after(), RetryAfter::In(ms(40)));
            replace(&limiter, [policy(None)]);
            assert_eq!(used(&limiter, "p").await, 97);
        }
    }
}

#[test]
fn a_set_with_a_lease_that_does_not_fit_changes_nothing() {
    let fine = leased("p", StrategyKind::Gcra, QUOTA, Some(8));
    let limiter = settings([fine]).store(MemoryStore::new()).built();
    let before = format!("{:?}", limiter.policies());
    let unfit = leased("p", StrategyKind::Gcra, "100/s burst 3", Some(8));
    let error = limiter.reconfigure(settings([unfit]));
    assert_contains(
        error.expect_err("too small a burst"),
        ["with a lease of 200ms"],
    );
    assert_eq!(format!("{:?}", limiter.policies()), before);
}
