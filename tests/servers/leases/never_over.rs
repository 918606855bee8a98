//! Demand far above the limit, from many limiters: no interval has more than the strategy's bound.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use testkit::Server;
use tollgate::{Lease, Limiter, Policy};

use crate::leases::{
    checker::{Admission, Bound, excess, most_within, now, units_in},
    support::{KEY, StrategyKind, held, leased, limiter, ms, store},
    traffic::{Record, Traffic},
};

const SECOND: u64 = 1_000_000;

/// Watches when the keys on a server expire: the ends of windows that end with their key.
struct Windows {
    watcher: JoinHandle<BTreeSet<u64>>,
    is_over: Arc<AtomicBool>,
}

impl Windows {
    fn watch(server: &Arc<Server>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (server, over) = (server.clone(), is_over.clone());
        let watcher = thread::spawn(move || {
            let mut ends = BTreeSet::new();
            while !over.load(Ordering::Relaxed) {
                let keys = server.keys().into_iter().filter(|key| key.contains(":p:"));
                let found = keys.map(|key| server.expires_at(&key));
                // None for a key that has expired since.
                ends.extend(found.filter(|end| *end > 0).map(|end| end as u64 * 1_000));
                thread::sleep(ms(1));
            }
            ends
        });
        Self { watcher, is_over }
    }

    /// The ends of the windows that were seen.
    fn ends(self) -> BTreeSet<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        self.watcher.join().expect("no panic")
    }
}

/// Requests of several costs through limiters of their own.
async fn load(server: &Server, policy: impl Fn() -> Policy, limiters: usize, time: u64) -> Record {
    let limiters: Vec<_> = (0..limiters)
        .map(|_| limiter(store(server), [policy()]))
        .collect();
    let costs: &[u64] = match limiters.len() {
        8 => &[1, 3, 1, 2],
        _ => &[1],
    };
    let traffic = Traffic::start(&limiters, KEY, costs);
    traffic.run_for(ms(time)).await
}

/// Enough for some limiters that each requests leases.
fn quota(limiters: usize) -> u64 {
    match limiters {
        64 => 16_000,
        _ => 4_000,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gcra_and_the_token_bucket_admit_a_burst_and_the_rate_in_each_interval() {
    for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
        for limiters in [1, 8, 64] {
            let server = Server::start();
            let burst = quota(limiters);
            let policy = || leased(strategy, "p", &format!("4000/s burst {burst}"));
            let record = load(&server, policy, limiters, 1_000).await;
            let rate = (4_000, SECOND);
            let excess = excess(&record.admissions, Bound { burst, rate });
            assert!(excess <= 0.0, "{strategy:?}, {limiters}: {excess} too many");
        }
    }
}

/// At each edge the next window's quota is there at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calendar_window_admits_its_quota_in_each_second() {
    for limiters in [2, 8, 64] {
        let server = Server::start();
        let units = quota(limiters);
        let policy = || leased(StrategyKind::Calendar, "p", &format!("{units}/s"));
        let record = load(&server, policy, limiters, 1_700).await;
        let first = record.admissions.iter().map(|one| one.before).min();
        let first = first.expect("an admission") / SECOND;
        for second in first..=now() / SECOND {
            let window = (second * SECOND, (second + 1) * SECOND);
            let admitted = units_in(&record.admissions, window);
            assert!(admitted <= units, "{limiters}: {admitted} in one second");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_and_a_list_window_admit_their_quota_in_each_window() {
    for strategy in [StrategyKind::Fixed, StrategyKind::List] {
        for limiters in [2, 8, 64] {
            let server = Arc::new(Server::start());
            let windows = Windows::watch(&server);
            let units = quota(limiters);
            let policy = || leased(strategy, "p", &format!("{units}/400ms"));
            let record = load(&server, policy, limiters, 1_000).await;
            let ends = windows.ends();
            assert!(ends.len() > 1, "{strategy:?}: {ends:?}");
            for end in ends {
                let admitted = units_in(&record.admissions, (end - 400_000, end));
                assert!(admitted <= units, "{strategy:?}, {limiters}: {admitted}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sliding_window_admits_its_quota_in_each_period_less_a_bucket() {
    for (buckets, limiters) in [(2, 8), (10, 2), (10, 64)] {
        let server = Server::start();
        let units = quota(limiters);
        let strategy = StrategyKind::Sliding(buckets);
        let policy = || leased(strategy, "p", &format!("{units}/500ms"));
        let record = load(&server, policy, limiters, 1_200).await;
        let length = ms(500) - ms(500) / buckets;
        let most = most_within(&record.admissions, length);
        assert!(most <= units, "{buckets}, {limiters}: {most} in {length:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sliding_log_admits_its_quota_in_each_period() {
    // A lease lives for a hundredth of the period: with more limiters each is too slow for leases.
    for (limiters, seconds) in [(2, 1), (8, 1), (64, 3)] {
        let server = Server::start();
        let units = quota(limiters);
        let ttl = ms(10) * seconds;
        let policy = || {
            let policy = StrategyKind::Log.policy("p", &format!("{units}/{seconds}s"));
            policy.lease(Lease::max_units(64).ttl(ttl))
        };
        let time = u64::from(seconds) * 1_000 + 600;
        let record = load(&server, policy, limiters, time).await;
        let period = Duration::from_secs(seconds.into());
        let most = most_within(&record.admissions, period);
        assert!(most <= units, "{limiters}: {most} in {period:?}");
    }
}

/// A worst case by plan: many limiters take leases, wait, and spend them at their last moment, together with all that the
/// store has by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_are_spent_at_their_last_moment_stay_within_the_bound() {
    let ttl = Duration::from_secs(1);
    for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
        let server = Server::start();
        let policy = || {
            let policy = strategy.policy("p", "1000/s burst 3000");
            policy.lease(Lease::max_units(1_000).ttl(ttl))
        };
        let limiters: Vec<Limiter> = (0..16)
            .map(|_| limiter(store(&server), [policy()]))
            .collect();
        let mut admissions = Vec::new();
        // Each takes a first lease, and a larger one.
        for limiter in &limiters {
            for _ in 0..3 {
                for _ in 0..12 {
                    let one = ask(limiter).await;
                    admissions.extend(one);
                }
                tokio::time::sleep(ms(2)).await;
            }
        }
        let hoarded: u64 = limiters.iter().map(held).sum();
        tokio::time::sleep(ttl * 6 / 10).await;
        let kept: u64 = limiters.iter().map(held).sum();
        for limiter in &limiters {
            while held(limiter) > 0 {
                admissions.extend(ask(limiter).await);
            }
        }
        // What the store has.
        while let Some(one) = ask(&limiters[0]).await {
            admissions.push(one);
        }
        let bound = Bound {
            burst: 3_000,
            rate: (1_000, SECOND),
        };
        let excess = excess(&admissions, bound);
        assert!(kept > 0, "{strategy:?}: {hoarded} hoarded");
        assert!(excess <= 0.0, "{strategy:?}: {excess} too many");
    }
}

async fn ask(limiter: &Limiter) -> Option<Admission> {
    let before = now();
    let decision = limiter.check(KEY).await;
    let after = now();
    decision.is_admitted().then_some(Admission {
        before,
        after,
        units: 1,
    })
}
