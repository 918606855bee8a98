//! A rejected key costs each process at most one call in each bound, a second by default; a cached rejection is the one that the store
//! would return, and ends no later.

use std::pin::pin;
use tokio::runtime::Handle;

use testkit::Clock;
use tollgate::observe::DecisionSource::{RejectionCache, Store};
use tollgate_tests::{clocks::SameTime, prelude::*};

use crate::store::support::{store as uncached, *};

/// Long beside what a slow machine is late by.
const BOUND: Duration = secs(10);

const MINUTE: Duration = secs(60);

const HOUR: Duration = secs(3_600);

fn store(server: &Server, clock: &Clock) -> RedisStore {
    let store = RedisStore::builder().url(server.url());
    let store = store.rejection_cache_clock(SameTime(clock.clone()));
    let store = store.rejection_cache_staleness(BOUND);
    store.timeout(TEST_TIMEOUT).built()
}

/// Limiters of processes of their own.
fn processes<const N: usize>(
    (clock, server): &(Clock, Server),
    policies: impl Fn() -> Vec<Policy>,
) -> [Limiter; N] {
    [(); N].map(|()| limiter(store(server, clock), policies()))
}

fn three_a_minute() -> Vec<Policy> {
    vec![Policy::new("p", Quota::requests(3).per_minute())]
}

fn key() -> Key {
    Key::new("k")
}

/// Whether a request is admitted, where that is decided, and how long it would have to wait.
type Outcome = (bool, DecisionSource, Option<Duration>);

fn outcome(decision: &Decision) -> Outcome {
    let wait = decision.retry_after().duration();
    let wait = wait.filter(|_| !decision.is_admitted());
    (decision.is_admitted(), decision.source(), wait)
}

async fn check(limiter: &Limiter, cost: u64) -> Outcome {
    outcome(&limiter.admit(key()).cost(cost).await.decision())
}

/// The result of a rejected request.
fn rejected(source: DecisionSource, wait: Duration) -> Outcome {
    (false, source, Some(wait))
}

/// Where a request is decided.
async fn source(limiter: &Limiter) -> DecisionSource {
    check(limiter, 1).await.1
}

/// Uses up three a minute, and has a rejection cached.
async fn use_up(limiter: &Limiter) {
    for _ in 0..3 {
        assert!(check(limiter, 1).await.0);
    }
    let twenty = secs(20);
    assert_eq!(check(limiter, 1).await, rejected(Store, twenty));
    assert_eq!(check(limiter, 1).await, rejected(RejectionCache, twenty));
}

#[tokio::test]
async fn a_rejected_key_costs_one_call_in_each_bound() {
    let world = on_a_clock();
    let [limiter] = processes(&world, three_a_minute);
    let (clock, server) = world;
    use_up(&limiter).await;
    server.reset_stats();
    for (passed, decided_by) in [
        (0, RejectionCache),
        (5, RejectionCache),
        (10, Store),
        (15, RejectionCache),
    ] {
        clock.set(START + passed * 1_000_000);
        let expected = rejected(decided_by, secs(20 - passed));
        assert_eq!(check(&limiter, 1).await, expected);
        for _ in 0..100 {
            assert_eq!(source(&limiter).await, RejectionCache);
        }
        assert_eq!(limiter.check(key()).await.left("p"), 0);
    }
    assert_eq!(server.calls("evalsha"), 1);
    clock.set(START + 20_000_000);
    assert!(matches!(check(&limiter, 1).await, (true, Store, _)));
}

#[tokio::test]
async fn by_default_a_rejection_is_cached_for_a_second() {
    let (clock, server) = on_a_clock();
    let store = RedisStore::builder().url(server.url());
    let store = store.rejection_cache_clock(SameTime(clock.clone()));
    let limiter = limiter(store.timeout(TEST_TIMEOUT).built(), three_a_minute());
    // The machine may be busy for as long as the rejection is cached.
    let is_cached = async || source(&limiter).await == RejectionCache;
    until("it is cached", is_cached).await;
    for _ in 0..5 {
        clock.advance(secs(1));
        assert_eq!(source(&limiter).await, Store);
        until("it is cached", is_cached).await;
    }
}

#[tokio::test]
async fn requests_of_at_least_the_cost_are_rejected_from_cache_and_smaller_ones_are_sent() {
    let world = on_a_clock();
    let [limiter] = processes(&world, three_a_minute);
    assert!(check(&limiter, 1).await.0);
    assert_eq!(check(&limiter, 3).await, rejected(Store, secs(20)));
    world.0.advance(ms(300));
    for _ in 0..3 {
        let from_cache = rejected(RejectionCache, ms(19_700));
        assert_eq!(check(&limiter, 3).await, from_cache);
        // More than there ever is: no wait helps.
        let never = limiter.check(key()).cost(4).await;
        assert_eq!(outcome(&never), (false, RejectionCache, None));
        assert_eq!(never.count("p").retry_after(), RetryAfter::Never);
    }
    assert!(matches!(check(&limiter, 2).await, (true, Store, _)));
    // A rejection of a smaller cost is cached with more detail.
    assert_eq!(check(&limiter, 1).await, rejected(Store, ms(19_700)));
    for (cost, millis) in [(1, 19_700), (2, 39_700), (3, 59_700)] {
        let from_cache = rejected(RejectionCache, ms(millis));
        assert_eq!(check(&limiter, cost).await, from_cache);
    }
    // A peek, several requests at once, and a request for nothing are always sent.
    let seen = limiter.peek(key()).await.expect("a response");
    assert_eq!(seen.source(), Store);
    assert_eq!(limiter.check(key()).times(2).await.source(), Store);
    assert_eq!(check(&limiter, 0).await.1, Store);
}

#[tokio::test]
async fn the_wait_of_a_larger_cost_is_the_one_that_the_store_would_return() {
    for strategy in EACH {
        let (clock, server) = on_a_clock();
        let policy = strategy.policy("p", "10/min");
        let forgetful = limiter(uncached(&server), [policy.clone()]);
        let limiter = limiter(store(&server, &clock), [policy]);
        for cost in [3, 4, 3] {
            assert!(check(&limiter, cost).await.0, "{strategy:?}");
            clock.advance(ms(1_300));
        }
        // What the bucket of a minute that holds none of them yields.
        while check(&limiter, 1).await.0 {}
        clock.advance(ms(10));
        let of_any_cost = !matches!(strategy, StrategyKind::Log | StrategyKind::Sliding(_));
        for cost in [1, 2, 5, 10, 1] {
            let _case = Case(format!("{strategy:?} {cost}"));
            let (_, source, wait) = check(&limiter, cost).await;
            // The store's result at the same instant. A rejection changes nothing.
            assert_eq!(check(&forgetful, cost).await, (false, Store, wait));
            assert!(source == RejectionCache || !of_any_cost);
            // An equal request is always rejected from the cache.
            let again = check(&limiter, cost).await;
            assert_eq!(again, (false, RejectionCache, wait));
        }
    }
}

#[tokio::test]
async fn a_cached_rejection_is_of_all_policies_of_its_request_and_of_no_other_request() {
    let world = on_a_clock();
    let [here, there] = processes(&world, || {
        let tenant = Policy::new("tenant", Quota::requests(2).per_minute().burst(3));
        let address = Quota::requests(3).per_minute().burst(1);
        vec![Policy::new("address", address), tenant]
    });
    let from = |address, tenant| [("address", Key::new(address)), ("tenant", Key::new(tenant))];
    assert!(here.check(from("a", "t")).await.is_admitted());
    for source in [Store, RejectionCache] {
        let both = here.check(from("a", "t")).await;
        assert_eq!(outcome(&both), rejected(source, secs(20)));
        let left = ["address", "tenant"].map(|policy| both.left(policy));
        assert_eq!((left, both.policies().len()), ([0, 2], 2));
    }
    // Another process uses up another tenant.
    for address in ["b", "c", "d"] {
        assert!(there.check(from(address, "u")).await.is_admitted());
    }
    world.0.advance(ms(2));
    for (tenant, source, millis) in [("u", Store, 29_998), ("t", RejectionCache, 19_998)] {
        let decision = here.check(from("a", tenant)).await;
        assert_eq!(outcome(&decision), rejected(source, ms(millis)));
    }
    // Less of the policy that rejects, and as much of the other, may pass.
    let free = here.check(from("a", "t")).cost_for("address", 0);
    assert_eq!(outcome(&free.await), (true, Store, None));
}

/// A policy whose rejections count has the last word on those of all, also where a limiter on the same store does not count them.
#[tokio::test]
async fn charged_rejections_and_in_flight_limits_always_call_the_store() {
    let (clock, server) = on_a_clock();
    let a_minute = |name: &str, requests| Policy::new(name, Quota::requests(requests).per_minute());
    let counts = |requests| a_minute("counts", requests).charge_rejected(true);
    let store = store(&server, &clock);
    let [plain, counting] =
        [a_minute("counts", 1), counts(1)].map(|it| limiter(store.clone(), [it]));
    assert!(check(&plain, 1).await.0);
    for expected in [Store, RejectionCache] {
        assert_eq!(source(&plain).await, expected);
    }
    assert_eq!(source(&counting).await, Store);
    for policies in [
        vec![counts(1)],
        vec![Policy::new("permits", Quota::concurrent(1))],
        vec![a_minute("few", 1), counts(9)],
    ] {
        server.flush();
        let limiter = limiter(store.clone(), policies);
        let _ = limiter.reset(key()).await.expect("a response");
        let admitted = limiter.admit(key()).await;
        assert!(admitted.is_ok());
        for _ in 0..3 {
            let (is_admitted, source, _) = check(&limiter, 1).await;
            assert_eq!((is_admitted, source), (false, Store));
        }
        drop(admitted);
    }
}

/// Changes by this process, through any limiter on the store.
#[tokio::test]
async fn what_this_process_gives_back_or_charges_ends_a_cached_rejection_at_once() {
    let (clock, server) = on_a_clock();
    let store = store(&server, &clock);
    let [here, there] = [(); 2].map(|()| limiter(store.clone(), three_a_minute()));
    for change in ["reset", "credit", "refund", "charge"] {
        let _case = Case(change.to_owned());
        let _ = there.reset(key()).await.expect("a response");
        let paid = there.admit(key()).await.expect("admitted");
        assert!(check(&here, 2).await.0);
        for source in [Store, RejectionCache] {
            assert_eq!(check(&here, 1).await, rejected(source, secs(20)));
        }
        let policy = there.policy("p").expect("a policy");
        match change {
            "reset" => drop(policy.reset(key()).await.expect("a response")),
            "credit" => drop(policy.credit(key(), 1).await.expect("a response")),
            "refund" => {
                let paid = paid.policy("p").expect("a policy");
                drop(paid.refund(1).await.expect("a refund"));
            }
            // Past the quota, such as for what a response turns out to cost.
            _ => {
                drop(policy.charge(key(), 3).await.expect("a response"));
                assert_eq!(check(&here, 1).await, rejected(Store, secs(80)));
                continue;
            }
        }
        assert!(check(&here, 1).await.0);
    }
}

#[tokio::test]
async fn a_raised_quota_applies_at_once_beside_a_cached_rejection() {
    let (clock, server) = on_a_clock();
    let store = store(&server, &clock);
    // The count is what it was, and not the share of the quota.
    let of = |quota| limiter(store.clone(), [StrategyKind::Fixed.policy("p", quota)]);
    let three = of("3/min");
    assert!(check(&three, 3).await.0);
    for expected in [Store, RejectionCache] {
        assert_eq!(source(&three).await, expected);
    }
    // The caller's own, and the policy's, by a limiter that was built anew.
    let tier = three.check(key()).quota_for("p", quota("4/min"));
    assert!(tier.await.is_admitted());
    assert!(check(&of("5/min"), 1).await.0);
    assert_eq!(source(&three).await, RejectionCache);
}

/// Though no task waits for it.
#[tokio::test]
async fn a_rejection_is_not_cached_beyond_a_refund_by_a_response() {
    let (clock, server) = on_a_clock();
    let policy = Policy::new("p", Quota::requests(1).per_week()).key(extract::global());
    let policy = policy.refund_unless(|_| false);
    let layer = RateLimitLayer::new(limiter(store(&server, &clock), [policy]));
    let service = layer.layer(service_fn(async |_: Request<()>| {
        for expected in [Store, RejectionCache] {
            let rejected = layer.limiter().check(KEY).await;
            let result = (rejected.is_admitted(), rejected.source());
            assert_eq!(result, (false, expected));
        }
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    for _ in 0..3 {
        let Ok(response) = service.clone().oneshot(Request::new(())).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
}

/// Checks of one batch are decided together, whatever is called between them.
#[tokio::test]
async fn a_rejection_is_not_cached_beyond_a_reset_in_its_batch() {
    let (clock, server) = on_a_clock();
    let proxy = Proxy::to(server.addr());
    let store = RedisStore::builder().url(format!("redis://{}", proxy.addr()));
    let store = store.rejection_cache_clock(SameTime(clock.clone()));
    let store = store.rejection_cache_staleness(BOUND);
    // Its IO goes on when the test yields.
    let store = store.timeout(TEST_TIMEOUT).runtime(Handle::current());
    let limiter = limiter(store.built(), three_a_minute());
    use_up(&limiter).await;
    clock.advance(BOUND);
    // What comes while a batch is in flight is one batch.
    server.pause();
    let before = proxy.forwarded();
    let mut first = limiter.check("other").into_future();
    assert!((&mut first).now_or_never().is_none());
    until("it is sent", async || proxy.forwarded() > before).await;
    let batch = async {
        tokio::join!(
            limiter.check("other"),
            limiter.reset(key()),
            limiter.check(key()),
        )
    };
    let mut batch = pin!(batch);
    assert!((&mut batch).now_or_never().is_none());
    server.resume();
    let (other, _, rejected) = batch.await;
    assert!(other.is_admitted() && !rejected.is_admitted());
    assert_eq!(rejected.source(), Store);
    assert!(check(&limiter, 1).await.0);
}

#[tokio::test]
async fn changes_elsewhere_end_or_prolong_a_cached_rejection_within_the_bound() {
    for change in ["reset", "credit", "charge", "flush", "restart"] {
        let _case = Case(change.to_owned());
        let world = on_a_clock();
        let [here, there] = processes(&world, three_a_minute);
        let (clock, server) = world;
        use_up(&here).await;
        let policy = there.policy("p").expect("a policy");
        match change {
            "reset" => drop(policy.reset(key()).await.expect("a response")),
            "credit" => drop(policy.credit(key(), 1).await.expect("a response")),
            "charge" => drop(policy.charge(key(), 3).await.expect("a response")),
            "flush" => drop(server.command(&["FLUSHALL"]).ok()),
            _ => {
                server.kill();
                server.restart();
            }
        }
        clock.advance(BOUND / 2);
        assert_eq!(check(&here, 1).await, rejected(RejectionCache, secs(15)));
        clock.advance(BOUND / 2);
        if change == "charge" {
            assert_eq!(check(&here, 1).await, rejected(Store, secs(70)));
            continue;
        }
        // A restart breaks the connection.
        until("it is admitted", async || {
            matches!(check(&here, 1).await, (true, Store, _))
        })
        .await;
    }
}

/// It is as old as its request, however long the reply takes.
#[tokio::test]
async fn a_rejection_whose_reply_took_longer_than_the_bound_is_not_cached() {
    let (clock, server) = on_a_clock();
    let proxy = Proxy::to(server.addr());
    let store = RedisStore::builder().url(format!("redis://{}", proxy.addr()));
    let store = store.rejection_cache_clock(SameTime(clock));
    let store = store.rejection_cache_staleness(ms(100));
    let limiter = limiter(store.timeout(TEST_TIMEOUT).built(), three_a_minute());
    assert!(check(&limiter, 3).await.0);
    proxy.delay(ms(150));
    for _ in 0..3 {
        assert_eq!(source(&limiter).await, Store);
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_extends_no_cached_rejection() {
    let world = on_a_clock();
    let [limiter] = processes(&world, three_a_minute);
    use_up(&limiter).await;
    world.0.rewind(HOUR);
    assert_eq!(source(&limiter).await, Store);
}

/// One request a minute, and a ban or a block list beside it: rejections by those are cached, although their policy, or another
/// one, counts rejections.
#[tokio::test]
async fn a_block_costs_one_call_per_bound_and_ends_at_once_here_and_within_the_bound_elsewhere() {
    let p = || Policy::new("p", Quota::requests(1).per_minute()).charge_rejected(true);
    let ban = Quota::requests(3).per_minute();
    let ban = Policy::new("ban", ban).strategy(Ban::for_duration(10 * MINUTE));
    for blocks in [ban, Policy::block_list("blocked")] {
        let world = on_a_clock();
        let [here, there] = processes(&world, || vec![p(), blocks.clone()]);
        let (clock, server) = world;
        for (lifts, decided_by) in [(&here, Store), (&there, RejectionCache)] {
            there.block(key(), HOUR).await.expect("a block");
            clock.advance(BOUND);
            assert_eq!(check(&here, 1).await, rejected(Store, HOUR - BOUND));
            server.reset_stats();
            for _ in 0..100 {
                let again = rejected(RejectionCache, HOUR - BOUND);
                assert_eq!(check(&here, 1).await, again);
            }
            assert_eq!(server.calls("evalsha"), 0);
            // Another client is not rejected with it.
            assert!(here.check("other").await.is_admitted());
            let _ = here.reset([("p", "other")]).await.expect("a response");
            lifts.unblock(key()).await.expect("no block");
            assert_eq!(source(&here).await, decided_by);
            clock.advance(BOUND);
            let _ = here.reset(key()).await.expect("a response");
            assert!(check(&here, 1).await.0);
        }
        // A block is over in time, whatever is cached.
        here.block(key(), BOUND / 2).await.expect("a block");
        for expected in [Store, RejectionCache] {
            assert_eq!(source(&here).await, expected);
        }
        clock.advance(BOUND / 2);
        assert_eq!(source(&here).await, Store);
    }
}

#[tokio::test]
async fn each_rejection_is_counted_until_a_ban_begins_and_again_when_it_has_ended() {
    let world = on_a_clock();
    let [limiter] = processes(&world, || {
        let ban = Policy::new("ban", Quota::requests(3).per_minute());
        let ban = ban.strategy(Ban::for_duration(BOUND / 2));
        vec![Policy::new("p", Quota::requests(1).per_week()), ban]
    });
    assert!(check(&limiter, 1).await.0);
    for _ in 0..3 {
        for _ in 0..3 {
            assert_eq!(source(&limiter).await, Store);
        }
        assert_eq!(source(&limiter).await, RejectionCache);
        let seen = limiter.peek([("ban", key())]).await.expect("a response");
        let left = seen.count("ban").retry_after().duration();
        world.0.advance(left.expect("a ban") + MINUTE);
    }
}
