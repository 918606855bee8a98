//! Requests of several threads while others replace the policies: no limit is exceeded, nothing is lost and nothing is left behind.

use std::{ops::Range, sync::atomic::Ordering::Relaxed};

use tokio::task::JoinHandle;
use tollgate_tests::prelude::*;

use super::*;

/// Replaces the policies again and again until the task is aborted.
fn keep_replacing(
    limiter: &Limiter,
    set: impl Fn(u64) -> Vec<Policy> + Send + 'static,
) -> JoinHandle<()> {
    let limiter = limiter.clone();
    tokio::spawn(async move {
        for n in 0.. {
            replace(&limiter, set(n));
            match n % 5 {
                0 => tokio::time::sleep(ms(1)).await,
                _ => tokio::task::yield_now().await,
            }
        }
    })
}

#[test]
fn exactly_the_limit_is_admitted_while_the_policies_are_replaced_and_leases_come_and_go() {
    for (world, changes) in [(World::memory(), 500), (World::redis(), 200)] {
        for strategy in [StrategyKind::Fixed, StrategyKind::Gcra] {
            let of = |quota| strategy.policy("p", quota).key(extract::global());
            let leased = |units| of("6000/h").lease(Lease::max_units(units).ttl(ms(200)));
            // The clock stands still, so that no window ends and nothing refills; the other settings come and go.
            let mut sets = vec![
                vec![of("6000/h")],
                vec![policy("other", "9000000/h"), of("6000/h").cost(1)],
                vec![leased(8)],
                vec![of("6000/h").by_hand()],
                vec![leased(1_000)],
                vec![of("6000/h").tier_quotas([stores::quota("9000/h")])],
            ];
            if strategy == StrategyKind::Fixed {
                // The open window ends when it would have.
                sets.push(vec![of("6000/2h")]);
            }
            let limiter = world.limiter(sets[0].clone());
            // The units by which no request was admitted, once those that are held were given back.
            let lost = async || {
                let refunded = limiter.shutdown(TEST_TIMEOUT).await;
                refunded.expect("nothing is queued");
                let leases = || limiter.stats().store.leases.into_iter().next();
                let is_none_held = async || leases().is_none_or(|leases| leases.held == 0);
                until("what was left is refunded", is_none_held).await;
                leases().map_or(0, |leases| leases.lapsed)
            };
            let (done, admitted) = (AtomicBool::new(false), AtomicU64::new(0));
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        current_thread().block_on(async {
                            while !done.load(Relaxed) {
                                let decision = limiter.check(KEY).await;
                                admitted.fetch_add(decision.admitted(), Relaxed);
                            }
                            // What this thread's runtime holds is refunded by its tasks.
                            lost().await;
                        });
                    });
                }
                for n in 0..changes {
                    replace(&limiter, sets[n % sets.len()].clone());
                    thread::yield_now();
                }
                done.store(true, Relaxed);
            });
            replace(&limiter, sets[0].clone());
            current_thread().block_on(async {
                let lost = lost().await;
                let rest = limiter.check(KEY).times(9_000).await.admitted();
                let admitted = admitted.load(Relaxed) + rest;
                assert_eq!(admitted + lost, 6_000, "{strategy:?}, {lost} lost");
                assert_eq!(used(&limiter, "p").await, 6_000);
                limiter.reset(KEY).await.expect("a response");
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_on_several_threads_are_all_admitted_once() {
    let hourly = |quota: u64| window("p", &format!("{quota}/h"));
    for world in World::both() {
        let limiter = world.limiter([hourly(1)]);
        assert!(limiter.check(KEY).await.is_admitted());
        let mut waiters = JoinSet::new();
        for n in 0..300 {
            let wait = limiter.wait(KEY, LONG).queue(10_000);
            waiters.spawn(async move {
                let wait = wait.into_future();
                // Some leave, also while they lead or are being admitted.
                if n % 7 == 0 {
                    let left = tokio::time::timeout(Duration::from_micros(n * 37), wait);
                    return left.await.is_ok_and(|admitted| admitted.is_ok());
                }
                drop(wait.await.expect("admitted in the end"));
                true
            });
        }
        let raise = AtomicU64::new(1);
        let replacing = keep_replacing(&limiter, move |n| {
            let quota = hourly(raise.fetch_add(n % 2, Relaxed));
            match n % 3 {
                0 => vec![quota],
                1 => vec![policy("other", "9000000/h"), quota],
                _ => vec![quota, policy("s", "1/h").shadow()],
            }
        });
        let mut admitted = 1;
        while let Some(ended) = waiters.join_next().await {
            admitted += u64::from(ended.expect("no panic"));
        }
        replacing.abort();
        drop(replacing.await);
        replace(&limiter, [hourly(100_000)]);
        // What was charged for one that had left comes back.
        let is_charged = async || used(&limiter, "p").await == admitted;
        until("refunds are made", is_charged).await;
        assert!(admitted >= 257, "{admitted}");
    }
}

#[test]
fn hundreds_of_changes_leave_nothing_behind() {
    for world in World::both() {
        let held = Arc::new(());
        let limiter = world.limiter([policy("p", "1000/h")]);
        let layer = RateLimitLayer::new(limiter.clone());
        let wait = limiter.wait(KEY, secs(1));
        let (runtime, parts) = (current_thread(), Request::new(()).into_parts().0);
        // Policies of ever new names and quotas. Each has a table of its own in process, until it is removed and its counts have expired.
        let rounds = |rounds: Range<u64>| {
            for n in rounds {
                let part = held.clone();
                let own = stores::quota(&format!("{}/h", 5_000 + n));
                let p = policy("p", &format!("{}/h", 1_000 + n)).tier_quotas([own]);
                let p = p.skip_with(move |_| Arc::strong_count(&part) == 0);
                let [old, new] = [n - 1, n].map(|n| window(&format!("w{n}"), "9/h"));
                let shadow = policy("s", "9/h").shadow();
                replace(&limiter, [p, old, new, shadow]);
                let check = limiter.check(KEY).parts(&parts).quota_for("p", own);
                assert!(runtime.block_on(check.into_future()).is_admitted());
                world.advance(secs(7_200));
            }
        };
        let first = allocation_counter::measure(|| rounds(1..50)).bytes_current;
        let more = allocation_counter::measure(|| rounds(50..550)).bytes_current;
        match world.redis_server() {
            // What is sent is allocated on one thread and freed on another.
            Some(server) => {
                let scripts = server.info("memory", "number_of_cached_scripts");
                let scripts: u64 = scripts.and_then(|n| n.parse().ok()).expect("a number");
                assert!(scripts < 20, "{scripts} scripts");
            }
            None => assert!(more < first.max(50_000), "{more} bytes after {first}"),
        }
        // A layer that serves nothing, and a request that has not begun, keep one old set at most.
        let sets = || Arc::strong_count(&held) - 1;
        assert!(sets() <= 3, "{}", sets());
        drop((layer, wait));
        assert_eq!(sets(), 1);
        drop(limiter);
        assert_eq!(sets(), 0);
    }
}
