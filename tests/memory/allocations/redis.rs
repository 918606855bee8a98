use tollgate_tests::world::until_leased;

use super::*;

/// A limiter whose store does its IO on this runtime of one thread, so that what it allocates counts too.
fn on(server: &Server, runtime: &Runtime, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let store = RedisStore::builder().url(server.url());
    let store = store
        .timeout(TEST_TIMEOUT)
        .runtime(runtime.handle().clone());
    stores::limiter(Limiter::builder().store(store.built()), policies)
}

#[test]
fn a_decision_on_redis_allocates_little() {
    let server = Server::start();
    let runtime = current_thread();
    for (policies, most) in [
        (&["one"][..], MAX_ONE),
        (&["one", "two", "three"], MAX_OF_THREE),
    ] {
        let policies = policies.iter().map(|name| Policy::new(*name, ample()));
        let what = format!("on Redis, {} policies", policies.len());
        let limiter = on(&server, &runtime, policies);
        let check = async || assert!(limiter.check(Key::new("alice")).await.is_admitted());
        let each = each(&runtime, &what, check);
        assert!(each <= most, "{each}");
    }
}

#[test]
fn a_cached_rejection_allocates_nothing() {
    let server = Server::start();
    let runtime = current_thread();
    let policy = Policy::new("one", quota("1/week"));
    let limiter = on(&server, &runtime, [policy]);
    let check = async || limiter.check(Key::new("alice")).await;
    assert!(runtime.block_on(check()).is_admitted());
    let rejected = async || assert!(!check().await.is_admitted());
    let each = each(&runtime, "on Redis, known to be denied", rejected);
    // Not none: now and then Redis is called to confirm the cached rejection.
    assert!(each < 1.0, "{each}");
}

#[test]
fn a_decision_by_a_lease_of_one_policy_allocates_nothing() {
    let server = Server::start();
    let quota = Quota::requests(1_000_000_000).per_hour();
    let lease = Lease::max_units(100_000).ttl(secs(10));
    let one = Policy::new("one", quota).strategy(FixedWindow).lease(lease);
    let two = ["gcra", "other"].map(|name| Policy::new(name, quota).strategy(Gcra).lease(lease));
    for (policies, most) in [(vec![one], 0.0), (two.into(), MAX_LEASED_BY_TWO)] {
        let runtime = current_thread();
        let what = format!("by a lease, {} policies", policies.len());
        let limiter = on(&server, &runtime, policies);
        let each = runtime.block_on(each_by_lease(&limiter));
        println!("{what}: {each} allocations a decision");
        assert!(each <= most + NEXT_LEASE, "{what}: {each}");
    }
}

/// Allocations per decision by a lease. Such a decision is ready when it is first polled, so nothing else counts.
async fn each_by_lease(limiter: &Limiter) -> f64 {
    let (mut decisions, mut allocations) = (0, 0);
    while decisions < TIMES {
        until_leased(limiter, "alice", 1).await;
        for _ in 0..100 {
            let mut decision = None;
            let check = || {
                decision = limiter
                    .check(Key::new("alice"))
                    .into_future()
                    .now_or_never()
            };
            let measured = measure(check);
            if decision.is_some_and(|decision| decision.source() == DecisionSource::Lease) {
                decisions += 1;
                allocations += measured.count_total;
            }
        }
    }
    allocations as f64 / decisions as f64
}

/// Measured, with a little room for what other dependencies may do.
const MAX_ONE: f64 = 11.0;
const MAX_OF_THREE: f64 = 18.0;
const MAX_LEASED_BY_TWO: f64 = 2.0;

/// The request of the next lease, which may fall among the decisions that are counted.
const NEXT_LEASE: f64 = 100.0 / TIMES as f64;
