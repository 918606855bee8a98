//! Several threads check while others replace the policies.

use std::sync::{OnceLock, Weak};

use tollgate::changes::PolicyChangeKind;
use tollgate_tests::prelude::*;

use crate::reconfigure::support::*;

/// Sends requests from several threads until `replace_all` returns; returns how many were admitted.
fn admitted_while(limiter: &Limiter, threads: usize, replace_all: impl FnOnce()) -> u64 {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let checks = (0..threads).map(|_| {
            scope.spawn(|| {
                current_thread().block_on(async {
                    let mut admitted = 0;
                    while !done.load(Ordering::Relaxed) {
                        admitted += u64::from(admitted_by_store(&limiter.check(KEY).await));
                    }
                    admitted
                })
            })
        });
        let checks: Vec<_> = checks.collect();
        replace_all();
        done.store(true, Ordering::Relaxed);
        checks
            .into_iter()
            .map(|check| check.join().expect("no panic"))
            .sum()
    })
}

/// Also outside of a runtime.
#[test]
fn exactly_the_limit_is_admitted_while_the_policies_are_replaced() {
    for (world, changes) in [(World::memory(), 2_000), (World::redis(), 200)] {
        for strategy in ["fixed", "gcra"] {
            let of = |quota: &str| match strategy {
                "fixed" => window(strategy, quota),
                _ => policy(strategy, quota),
            };
            // The clock stands still, so that no window ends and nothing refills; the other settings come and go.
            let mut sets = vec![
                vec![of("1000/h")],
                vec![policy("other", "9000000/h"), of("1000/h").cost(1)],
                vec![of("1000/h").by_hand()],
                vec![of("1000/h").tier_quotas([stores::quota("5000/h")])],
            ];
            if strategy == "fixed" {
                // The open window ends when it would have.
                sets.push(vec![of("1000/2h")]);
            }
            let limiter = world.limiter(sets[0].clone());
            let mut admitted = admitted_while(&limiter, 3, || {
                for n in 0..changes {
                    replace(&limiter, sets[n % sets.len()].clone());
                }
            });
            replace(&limiter, sets[0].clone());
            current_thread().block_on(async {
                while limiter.check(KEY).await.is_admitted() {
                    admitted += 1;
                }
                assert_eq!(used(&limiter, strategy).await, 1_000);
            });
            assert_eq!(admitted, 1_000, "{strategy}");
        }
    }
}

#[test]
fn changes_by_several_threads_are_made_one_after_the_other() {
    let limiter = World::memory().limiter([policy("p", "1/h")]);
    let total = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 1..=4 {
            let (limiter, total) = (&limiter, &total);
            scope.spawn(move || {
                for n in 0..500 {
                    let quota = format!("{}/h", 1_000 * thread + n);
                    let changes = replace(limiter, [policy("p", &quota)]);
                    let change = changes.policy("p").expect("p");
                    // The sum of all steps is the way from the first to the last.
                    let quotas = [change.quota_before(), change.quota_after()];
                    let [from, to] = quotas.map(|quota| quota.expect("a quota").amount());
                    let step = to.wrapping_sub(from);
                    total.fetch_add(step, Ordering::Relaxed);
                }
            });
        }
    });
    let last = limiter.policies()[0].quota().amount();
    assert_eq!(total.load(Ordering::Relaxed), last - 1);
}

#[tokio::test]
async fn a_closure_of_a_policy_may_replace_the_policies() {
    for world in World::both() {
        let this: Arc<OnceLock<Weak<Limiter>>> = Arc::default();
        let of_closure = this.clone();
        let first = policy("p", "10/h").cost_with(move |_| {
            if let Some(limiter) = of_closure.get().and_then(Weak::upgrade) {
                replace(&limiter, [policy("p", "20/h"), policy("q", "9/h")]);
            }
            2
        });
        let limiter = Arc::new(world.limiter([first]));
        this.set(Arc::downgrade(&limiter)).expect("once");
        let parts = Request::new(()).into_parts().0;
        let decision = limiter.check(KEY).parts(&parts).await;
        assert!(admitted_by_store(&decision));
        assert_eq!(decision.policy("p").expect("p").limit(), 10);
        assert!(decision.policy("q").is_none());
        assert_eq!(used(&limiter, "p").await, 4, "the share stays");
        let changes = replace(&limiter, [policy("p", "20/h"), policy("q", "9/h")]);
        assert_eq!(kind(&changes, "q"), PolicyChangeKind::Kept);
    }
}

/// The resident set of this process, in bytes.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).expect("a number");
    4_096 * pages.parse::<u64>().expect("a number")
}

#[test]
fn thousands_of_changes_leave_nothing_behind() {
    // In a process of its own: other tests allocate too.
    const ALONE: &str = "TOLLGATE_TEST_ALONE";
    if env::var_os(ALONE).is_none() {
        let name = "thousands_of_changes_leave_nothing_behind";
        let ended = tollgate_tests::child::test(module_path!(), name)
            .env(ALONE, "1")
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&ended.stdout);
        let passed = ended.status.success() && text.contains("1 passed");
        assert!(passed, "{text}");
        return;
    }
    for (world, changes) in [(World::memory(), 6_000), (World::redis(), 1_500)] {
        let limiter = world.limiter([policy("p", "1000/h")]);
        let layer = RateLimitLayer::new(limiter.clone());
        let runtime = current_thread();
        let keys: Vec<_> = (0..64).map(|n| Key::new(format!("k{n}"))).collect();
        let rounds = |n: u64| {
            for round in 0..n {
                let quota = format!("{}/h", 1_000 + round % 700);
                let own = stores::quota(&format!("{}/h", 5_000 + round % 900));
                let set: Vec<Policy> = vec![
                    policy("p", &quota).tier_quotas([own]),
                    window(["x", "y", "z"][round as usize % 3], "90000/h"),
                    policy("s", &quota).shadow(),
                ];
                replace(&limiter, set);
                if round % 10 == 0 {
                    runtime.block_on(async {
                        let key = keys[round as usize % keys.len()];
                        let check = limiter.check(key).quota_for("p", own);
                        assert!(check.await.is_admitted());
                        drop(limiter.health_check().await);
                    });
                    assert_eq!(layer.limiter().policies().len(), 3);
                }
            }
        };
        rounds(1_500);
        let tasks = runtime.metrics().num_alive_tasks();
        // The allocator may need more memory for threads that run at the same time, once; what is left behind adds up each time.
        let grown: Vec<u64> = (0..4)
            .map(|_| {
                let before = resident();
                rounds(changes / 4);
                resident().saturating_sub(before)
            })
            .collect();
        let (name, least) = (world.name(), grown.iter().min());
        println!("{name}: {grown:?} bytes more");
        assert!(least < Some(&(64 * 1_024)), "{name}: {grown:?} bytes more");
        runtime.block_on(until("tasks of before have ended", async || {
            runtime.metrics().num_alive_tasks() <= tasks
        }));
        if let Some(server) = world.redis_server() {
            let scripts = server.info("memory", "number_of_cached_scripts");
            let scripts: u64 = scripts.and_then(|n| n.parse().ok()).expect("a number");
            assert!(scripts < 20, "{scripts} scripts");
        }
    }
}

/// A policy of another name has a table of its own in process, until it is removed and its counts have expired.
#[test]
fn policies_of_ever_new_names_leave_nothing_behind() {
    let world = World::memory();
    let limiter = world.limiter([policy("p", "1000/h")]);
    let runtime = current_thread();
    let rounds = |of: std::ops::Range<u64>| {
        for n in of {
            let (new, old) = (format!("p{n}"), format!("p{}", n - 1));
            replace(&limiter, [policy(&new, "1/h"), policy(&old, "1/h")]);
            runtime.block_on(async {
                // The counts of a policy that stays, or returns at once, are still there.
                assert!(limiter.check([(&*new, KEY)]).await.is_admitted());
                replace(&limiter, [policy("p", "1000/h")]);
                replace(&limiter, [policy(&new, "1/h")]);
                assert!(!limiter.check([(&*new, KEY)]).await.is_admitted());
            });
            world.advance(secs(1_200));
        }
    };
    let bytes = allocation_counter::measure(|| rounds(1..50)).bytes_current;
    let more = allocation_counter::measure(|| rounds(50..550)).bytes_current;
    let most = bytes.max(50_000);
    assert!(more < most, "{more} bytes after {bytes} at first");
}

#[test]
fn a_layer_that_serves_nothing_keeps_one_old_set_at_most() {
    let held = Arc::new(());
    let of = |n: u64| {
        let held = held.clone();
        policy("p", &format!("{n}/h")).skip_with(move |_| {
            let _held = &held;
            false
        })
    };
    let limiter = settings([of(1)]).build().expect("a limiter");
    let layer = RateLimitLayer::new(limiter.clone());
    let wait = limiter.wait(KEY, secs(1));
    for n in 2..50 {
        replace(&limiter, [of(n)]);
    }
    let sets = || Arc::strong_count(&held) - 1;
    assert!(sets() <= 3, "{}", sets());
    drop((layer, wait));
    assert_eq!(sets(), 1);
    drop(limiter);
    assert_eq!(sets(), 0);
}
