//! Rejections that count.

use tollgate_tests::{prelude::*, scene::send_concurrently, script::play_with};

use crate::charging::support::*;

/// Sends requests one after the other; returns the waits of the rejected ones.
async fn hammer(limiter: &Limiter, times: u64) -> Vec<Duration> {
    let mut retries = Vec::new();
    for _ in 0..times {
        let decision = limiter.check(KEY).await;
        if !admitted_by_store(&decision) {
            let rejected = decision.into_result().expect_err("a rejection");
            retries.push(rejected.retry_after().duration().expect("a wait"));
        }
    }
    retries
}

/// A policy `p` of each of these strategies, of 5 a minute, whose rejections are charged or not.
async fn each(
    strategies: &[StrategyKind],
    charge_rejected: bool,
    test: impl AsyncFn(&World, &Limiter),
) {
    on_each(strategies, async |world, strategy, _| {
        let policy = together(strategy, "p", "5/min");
        let policy = policy.charge_rejected(charge_rejected);
        test(world, &world.limiter([policy])).await;
    })
    .await;
}

/// Charges units under one policy, for which there is room.
async fn charge_key(limiter: &Limiter, policy: &str, units: u64) {
    let charged = limiter.charge([(policy, KEY)], units).await;
    assert!(admitted_by_store(&charged));
}

#[tokio::test]
async fn charged_rejections_lengthen_the_wait_by_up_to_one_capacity() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "5/min").charge_rejected(true)]);
        let retries = hammer(&limiter, 15).await;
        let expected = [24, 36, 48, 60, 72, 72, 72, 72, 72, 72].map(secs);
        assert_eq!(retries, expected);
        assert_eq!(waits(&limiter, "p").await, (secs(72), secs(120)));
        world.no_key_is_immortal();
        // The wait was exact.
        world.advance(secs(72) - Duration::from_micros(1));
        let seen = limiter.peek(KEY).await.expect("a response");
        assert!(!seen.would_admit());
        world.advance(Duration::from_micros(1));
        assert!(admitted_by_store(&limiter.check(KEY).await));
    }
}

#[tokio::test]
async fn free_rejections_do_not_lengthen_the_wait() {
    each(&StrategyKind::ALL, false, async |_, limiter| {
        assert_eq!(hammer(limiter, 5).await, [Duration::ZERO; 0]);
        let before = waits(limiter, "p").await;
        assert_eq!(hammer(limiter, 20).await, vec![before.0; 20]);
        assert_eq!(waits(limiter, "p").await, before);
    })
    .await;
}

#[tokio::test]
async fn no_strategy_goes_deeper_than_one_capacity_of_debt() {
    each(&StrategyKind::ALL, true, async |world, limiter| {
        hammer(limiter, 10).await;
        let deepest = waits(limiter, "p").await;
        hammer(limiter, 100).await;
        assert_eq!(waits(limiter, "p").await, deepest);
        assert!(deepest.1 <= secs(120), "{deepest:?}");
        world.no_key_is_immortal();
        // A key on Redis lasts to the end of its millisecond.
        world.advance(deepest.0 + ms(1));
        assert!(admitted_by_store(&limiter.check(KEY).await));
    })
    .await;
}

#[tokio::test]
async fn logs_and_lists_do_not_grow_past_the_limit() {
    let strategies = [StrategyKind::List, StrategyKind::Log];
    each(&strategies, true, async |world, limiter| {
        let size = || {
            let server = world.redis_server()?;
            let sizes = server.keys().into_iter();
            let sizes = sizes.map(|key| server.command(&["MEMORY", "USAGE", &key]).int());
            Some(sizes.collect::<Vec<_>>())
        };
        hammer(limiter, 5).await;
        let before = (waits(limiter, "p").await, size());
        hammer(limiter, 100).await;
        let policy = limiter.policy("p").expect("a policy");
        let callers = policy.callers(KEY).await.expect("a response");
        assert!(callers.len() <= 5, "{callers:?}");
        assert_eq!((waits(limiter, "p").await, size()), before);
    })
    .await;
}

#[tokio::test]
async fn a_rejection_that_costs_more_than_is_left_uses_up_the_rest_of_a_log() {
    let used_up = "5/min, send 3: 3, cost 4: false, used: 5, +61s, times 6: 5";
    play_with("list log", |policy| policy.charge_rejected(true), used_up).await;
}

#[tokio::test]
async fn only_the_policy_that_rejects_charges_a_rejection() {
    for world in World::both() {
        let limiter = world.limiter([
            even("counts", "5/min").charge_rejected(true),
            even("has room", "50/min").charge_rejected(true),
            even("is free", "5/min"),
        ]);
        for _ in 0..20 {
            let _ = limiter.check(KEY).await;
        }
        assert_eq!(waits(&limiter, "counts").await, (secs(72), secs(120)));
        assert_eq!(used(&limiter, "has room").await, 5);
        assert_eq!(waits(&limiter, "is free").await, (secs(12), secs(60)));
    }
}

#[tokio::test]
async fn concurrent_rejections_count_like_sequential_ones() {
    each(&StrategyKind::ALL, true, async |_, limiter| {
        let reset = async || drop(limiter.reset(KEY).await.expect("a response"));
        for rejected in [1, 2, 3, 5, 8] {
            let _case = Case(format!("{rejected} rejected"));
            reset().await;
            hammer(limiter, 5 + rejected).await;
            let alone = waits(limiter, "p").await;
            reset().await;
            assert_eq!(send_concurrently(limiter, KEY, 5 + rejected).await, 5);
            assert_eq!(waits(limiter, "p").await, alone);
            reset().await;
            let together = limiter.check(KEY).times(5 + rejected).await;
            assert_eq!(together.admitted(), 5);
            assert_eq!(waits(limiter, "p").await, alone);
        }
    })
    .await;
}

#[tokio::test]
async fn refunding_a_reserved_charge_does_not_refund_charged_rejections() {
    for world in World::both() {
        let policy = window("p", "2/min").refund_unless(outcome::success);
        let layer = world.layer([policy.charge_rejected(true)]);
        pass_all(&layer, [200]).await;
        let under_way = respond(&layer, text(500)).await;
        // Two units are charged, and one rejection counts.
        pass_all(&layer, [429]).await;
        read(under_way).await.expect("a body");
        pass_all(&layer, [429]).await;
        world.advance(secs(61));
        pass_all(&layer, [200]).await;
    }
}

#[test]
fn charged_rejections_of_permits_or_of_charges_on_response_are_a_config_error() {
    let permits = Policy::new("p", Quota::concurrent(2));
    let on_response = window("p", "2/min").charge_after(outcome::failure);
    let of_permits = "a rejected request is not in flight";
    for (policy, reason) in [(permits, of_permits), (on_response, "refund_unless")] {
        let policy = policy.charge_rejected(true);
        let built = Limiter::builder().policy(policy).build();
        assert_contains(built.expect_err("an error"), [reason]);
    }
}

#[tokio::test]
async fn a_policy_with_just_enough_room_counts_no_rejection_of_others() {
    on_each_strategy(async |world, strategy, _| {
        let counts = together(strategy, "p", "5/min").charge_rejected(true);
        let both = world.limiter([counts, window("other", "5/min")]);
        let _ = both.charge([("other", KEY)], 5).await.expect("a response");
        for cost in [5, 3, 1] {
            let _ = both.reset([("p", KEY)]).await.expect("a response");
            charge_key(&both, "p", 5 - cost).await;
            for _ in 0..3 {
                assert!(!admitted_by_store(&both.check(KEY).cost(cost).await));
                assert_eq!(used(&both, "p").await, 5 - cost);
            }
            // With a unit less than it takes, it rejects too, and that counts.
            charge_key(&both, "p", 1).await;
            assert!(!admitted_by_store(&both.check(KEY).cost(cost).await));
            assert_eq!(used(&both, "p").await, 5);
        }
    })
    .await;
}

/// The callers of a list are sent one by one, and no more than it holds: the requests beyond are rejected too.
#[tokio::test]
async fn requests_beyond_a_list_of_callers_count_as_rejections_of_another_policy() {
    for world in World::both() {
        let limiter = world.limiter([
            even("even", "4/min").charge_rejected(true),
            together(StrategyKind::List, "list", "6/min"),
        ]);
        assert_eq!(limiter.check(KEY).times(1_000_000).await.admitted(), 4);
        let (_, reset) = waits(&limiter, "even").await;
        assert_eq!(reset, secs(120));
        assert_eq!(used(&limiter, "list").await, 4);
    }
}

#[tokio::test]
async fn a_shadow_list_of_callers_rejects_nothing_that_others_admit() {
    for world in World::both() {
        let shadow = together(StrategyKind::List, "list", "6/min").shadow();
        let limiter = world.limiter([window("window", "1000000/min"), shadow]);
        assert_eq!(limiter.check(KEY).times(500_000).await.admitted(), 500_000);
        let used = all_used(&limiter, ["window", "list"]).await;
        assert_eq!(used, [500_000, 6]);
    }
}
