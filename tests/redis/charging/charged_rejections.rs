//! Rejections that count.

use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// A policy of this strategy, of 5 a minute.
fn of(strategy: StrategyKind) -> Policy {
    together(strategy, &format!("{strategy:?}"), "5/min")
}

fn name(limiter: &Limiter) -> String {
    let policies = limiter.policies();
    policies.first().expect("a policy").name().to_owned()
}

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

/// Charges units under one policy, for which there is room.
async fn charge_key(limiter: &Limiter, policy: &str, units: u64) {
    let charged = limiter.charge([(policy, KEY)], units).await;
    assert!(admitted_by_store(&charged.expect("a response")));
}

#[tokio::test]
async fn charged_rejections_lengthen_the_wait_by_up_to_one_capacity() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "5/min").charge_rejected(true)]);
        let retries = hammer(&limiter, 15).await;
        let mut expected = [24, 36, 48, 60, 72].map(secs).to_vec();
        expected.resize(10, secs(72));
        assert_eq!(retries, expected);
        assert_eq!(waits(&limiter, "p").await, (secs(72), secs(120)));
        world.no_key_is_immortal();
        // The wait was exact.
        world.advance(secs(72) - Duration::from_micros(1));
        let seen = limiter.peek(KEY).await.expect("a response");
        assert!(!seen.would_admit());
        world.advance(Duration::from_micros(1));
        let admitted = admitted_by_store(&limiter.check(KEY).await);
        assert!(admitted);
    }
}

#[tokio::test]
async fn free_rejections_do_not_lengthen_the_wait() {
    for world in World::both() {
        for policy in StrategyKind::ALL.map(of) {
            let limiter = world.limiter([policy]);
            let name = name(&limiter);
            assert_eq!(hammer(&limiter, 5).await, [Duration::ZERO; 0]);
            let before = waits(&limiter, &name).await;
            let retries = hammer(&limiter, 20).await;
            assert_eq!(retries, vec![before.0; 20], "{name}");
            assert_eq!(waits(&limiter, &name).await, before);
        }
    }
}

#[tokio::test]
async fn no_strategy_goes_deeper_than_one_capacity_of_debt() {
    for world in World::both() {
        for policy in StrategyKind::ALL.map(of) {
            let limiter = world.limiter([policy.charge_rejected(true)]);
            let name = name(&limiter);
            hammer(&limiter, 10).await;
            let deepest = waits(&limiter, &name).await;
            hammer(&limiter, 100).await;
            assert_eq!(waits(&limiter, &name).await, deepest, "{name}");
            assert!(deepest.1 <= secs(120), "{deepest:?} of {name}");
            world.no_key_is_immortal();
            world.advance(deepest.0);
            // A key on Redis lasts to the end of its millisecond.
            world.advance(Duration::from_millis(1));
            assert!(admitted_by_store(&limiter.check(KEY).await), "{name}");
        }
    }
}

#[tokio::test]
async fn logs_and_lists_do_not_grow_past_the_limit() {
    for world in World::both() {
        for policy in [StrategyKind::List, StrategyKind::Log].map(of) {
            let limiter = world.limiter([policy.charge_rejected(true)]);
            let name = name(&limiter);
            hammer(&limiter, 5).await;
            let before = waits(&limiter, &name).await;
            let size = || {
                let server = world.redis_server()?;
                let sizes = server.keys().into_iter();
                let sizes = sizes.map(|key| server.command(&["MEMORY", "USAGE", &key]).int());
                Some(sizes.collect::<Vec<_>>())
            };
            let size_before = size();
            hammer(&limiter, 100).await;
            assert_eq!(size(), size_before, "{name}");
            let policy = limiter.policy(&name).expect("a policy");
            let callers = policy.callers(KEY).await.expect("a response");
            assert!(callers.len() <= 5, "{callers:?}");
            assert_eq!(waits(&limiter, &name).await, before, "{name}");
            world.advance(secs(61));
        }
    }
}

#[tokio::test]
async fn a_rejection_that_costs_more_than_is_left_uses_up_the_rest_of_a_log() {
    for world in World::both() {
        for policy in [StrategyKind::List, StrategyKind::Log].map(of) {
            let limiter = world.limiter([policy.charge_rejected(true)]);
            let name = name(&limiter);
            hammer(&limiter, 3).await;
            let admitted = admitted_by_store(&limiter.check(KEY).cost(4).await);
            assert!(!admitted, "{name}");
            assert_eq!(used(&limiter, &name).await, 5, "{name}");
            world.advance(secs(61));
            assert_eq!(limiter.check(KEY).times(6).await.admitted(), 5, "{name}");
        }
    }
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
async fn a_policy_with_room_does_not_charge_what_another_rejects() {
    for world in World::both() {
        let limiter = world.limiter([
            even("full", "2/min"),
            even("counts", "5/min").charge_rejected(true),
        ]);
        let at_once = limiter.check(KEY).times(20).await;
        assert_eq!(at_once.admitted(), 2);
        for _ in 0..20 {
            assert!(!admitted_by_store(&limiter.check(KEY).await));
        }
        assert_eq!(used(&limiter, "counts").await, 2);
    }
}

#[tokio::test]
async fn concurrent_rejections_count_like_sequential_ones() {
    for world in World::both() {
        for policy in StrategyKind::ALL.map(of) {
            let limiter = world.limiter([policy.charge_rejected(true)]);
            let name = name(&limiter);
            for rejected in [1, 2, 3, 5, 8] {
                let _ = limiter.reset(KEY).await.expect("a response");
                hammer(&limiter, 5 + rejected).await;
                let alone = waits(&limiter, &name).await;

                let _ = limiter.reset(KEY).await.expect("a response");
                let sent = (0..5 + rejected).map(|_| limiter.check(KEY).into_future());
                let decisions = join_all(sent).await;
                let admitted = decisions.iter().filter(|d| admitted_by_store(d)).count();
                assert_eq!(admitted, 5, "{name}");
                assert_eq!(waits(&limiter, &name).await, alone, "{name} {rejected}");

                let _ = limiter.reset(KEY).await.expect("a response");
                let together = limiter.check(KEY).times(5 + rejected).await;
                assert_eq!(together.admitted(), 5, "{name}");
                assert_eq!(waits(&limiter, &name).await, alone, "{name} {rejected}");
            }
        }
    }
}

#[tokio::test]
async fn both_stores_agree_on_a_client_that_keeps_retrying() {
    let mut said = Vec::new();
    for world in World::both() {
        let mut says = Vec::new();
        for policy in StrategyKind::ALL.map(of) {
            let limiter = world.limiter([policy.charge_rejected(true)]);
            let name = name(&limiter);
            // A little of everything, and a pause now and then.
            for (cost, times, pause) in [
                (1, 3, 0),
                (2, 2, 500),
                (5, 3, 7_000),
                (3, 1, 11_000),
                (1, 9, 40_000),
                (4, 2, 25_000),
                (9, 2, 70_000),
                (2, 6, 130_000),
            ] {
                let decision = limiter.check(KEY).cost(cost).times(times).await;
                let verdict = decision.policy(&name).expect("a policy");
                let (retry, reset) = (verdict.retry_after(), verdict.reset_after());
                let decided = (decision.admitted(), verdict.remaining(), retry, reset);
                says.push((name.clone(), cost, times, decided));
                world.advance(Duration::from_millis(pause));
            }
        }
        said.push(says);
    }
    let (memory, redis) = (&said[0], &said[1]);
    for (memory, redis) in memory.iter().zip(redis) {
        assert_eq!(memory, redis);
    }
}

#[tokio::test]
async fn a_layers_rejections_report_the_longer_wait() {
    for world in World::both() {
        let layer = world.layer([even("p", "5/min").charge_rejected(true)]);
        for _ in 0..5 {
            assert_eq!(pass(&layer, text(200)).await, 200);
        }
        for expected in ["24", "36", "48", "60", "72", "72", "72"] {
            let rejected = respond(&layer, text(200)).await;
            assert_eq!(rejected.status(), 429);
            assert_eq!(rejected.headers()["retry-after"], expected);
            read(rejected).await.expect("a body");
        }
    }
}

#[tokio::test]
async fn refunding_a_reserved_charge_does_not_refund_charged_rejections() {
    for world in World::both() {
        let policy = window("p", "2/min").refund_unless(outcome::success);
        let layer = world.layer([policy.charge_rejected(true)]);
        assert_eq!(pass(&layer, text(200)).await, 200);
        let under_way = respond(&layer, text(500)).await;
        // Two units are charged, and one rejection counts.
        assert_eq!(pass(&layer, text(200)).await, 429);
        read(under_way).await.expect("a body");
        assert_eq!(pass(&layer, text(200)).await, 429);
        world.advance(secs(61));
        assert_eq!(pass(&layer, text(200)).await, 200);
    }
}

#[test]
fn charged_rejections_of_an_in_flight_limit_are_a_config_error() {
    let policy = Policy::new("p", Quota::concurrent(2)).charge_rejected(true);
    let error = Limiter::builder().policy(policy).build();
    let error = error.expect_err("an error").to_string();
    let reason = "a rejected request is not in flight";
    assert!(error.contains(reason), "{error}");
}

#[tokio::test]
async fn charged_rejections_with_charges_on_response_are_a_config_error() {
    let policy = window("p", "2/min").charge_after(outcome::failure);
    let limiter = Limiter::builder().policy(policy.charge_rejected(true));
    let error = limiter.build().expect_err("an error").to_string();
    assert!(error.contains("refund_unless"), "{error}");
}

#[tokio::test]
async fn a_policy_with_just_enough_room_counts_no_rejection_of_others() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let name = format!("{strategy:?}");
            let limiter = world.limiter([
                together(strategy, &name, "5/min").charge_rejected(true),
                together(StrategyKind::Fixed, &format!("other-{name}"), "5/min"),
            ]);
            let other = format!("other-{name}");
            charge_key(&limiter, &other, 5).await;
            for cost in [5, 3, 1] {
                let _ = limiter.reset([(&*name, KEY)]).await.expect("a response");
                charge_key(&limiter, &name, 5 - cost).await;
                for _ in 0..3 {
                    let rejected = limiter.check(KEY).cost(cost).await;
                    assert!(!admitted_by_store(&rejected), "{name}");
                    let left = 5 - used(&limiter, &name).await;
                    assert_eq!(left, cost, "{name}");
                }
                // With a unit less than it takes, it rejects too, and that counts.
                charge_key(&limiter, &name, 1).await;
                assert!(!admitted_by_store(&limiter.check(KEY).cost(cost).await));
                assert_eq!(used(&limiter, &name).await, 5, "{name}");
            }
        }
    }
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
        let admitted = limiter.check(KEY).times(500_000).await.admitted();
        assert_eq!(admitted, 500_000);
        assert_eq!(used(&limiter, "window").await, 500_000);
        assert_eq!(used(&limiter, "list").await, 6);
    }
}
