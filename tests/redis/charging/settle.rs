//! What a handler charges and refunds by itself.

use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// A policy `p` of each strategy, of 10 a minute.
pub(crate) fn all() -> [Policy; StrategyKind::ALL.len()] {
    StrategyKind::ALL.map(|strategy| together(strategy, "p", "10/min"))
}

/// Runs a test on each store, with an admission of one request that costs so much under a policy of [all].
async fn on_each(cost: u64, mut test: impl AsyncFnMut(&World, &Limiter, &Admission, &str)) {
    for world in World::both() {
        for policy in all() {
            let context = format!("{policy:?} on {}", world.name());
            let (limiter, admission) = admitted(&world, policy.cost(cost)).await;
            test(&world, &limiter, &admission, &context).await;
        }
    }
}

/// An admission of one request, and its limiter.
async fn admitted(world: &World, policy: Policy) -> (Limiter, Admission) {
    let limiter = world.limiter([policy]);
    let _ = limiter.reset(KEY).await.expect("a response");
    let admission = limiter.check(KEY).await.into_result().expect("room");
    (limiter, admission)
}

pub(crate) fn admission_of(request: &Request<()>) -> Admission {
    let admission = request.extensions().get::<Admission>();
    admission.expect("an admission").clone()
}

#[tokio::test]
async fn a_true_cost_above_and_below_the_estimate_is_what_is_charged() {
    on_each(4, async |_, limiter, admission, context| {
        for true_cost in [7, 2, 2, 9, 9, 0, 1, 10] {
            settle(admission, true_cost).await;
            assert_eq!(used(limiter, "p").await, true_cost, "{context}");
            let left = admission.remaining("p");
            assert_eq!(left, Some(10 - true_cost), "{context}");
        }
        assert!(!admitted_by_store(&limiter.check(KEY).await), "{context}");
    })
    .await;
}

#[tokio::test]
async fn a_charge_past_the_capacity_is_a_debt_of_at_most_one_capacity() {
    on_each(1, async |world, limiter, admission, context| {
        settle(admission, 1_000_000).await;
        let (wait, reset) = waits(limiter, "p").await;
        assert!(wait > Duration::ZERO, "{context}");
        // Two periods pay twice the capacity back, whatever counts it.
        assert!(reset <= secs(120), "{reset:?} {context}");
        charge(admission, 1_000_000).await;
        settle(admission, 2_000_000).await;
        assert_eq!(waits(limiter, "p").await, (wait, reset), "{context}");
        // The wait is exact, to the microsecond.
        world.advance(wait - Duration::from_micros(1_000));
        assert!(!admitted_by_store(&limiter.check(KEY).await), "{context}");
        world.advance(Duration::from_micros(1_000));
        if !admitted_by_store(&limiter.check(KEY).await) {
            // A key on Redis lasts to the end of its millisecond.
            world.advance(ms(1));
            assert!(admitted_by_store(&limiter.check(KEY).await), "{context}");
        }
        world.no_key_is_immortal();
        world.advance(secs(180));
    })
    .await;
}

#[tokio::test]
async fn a_debt_is_waited_for_at_an_even_rate() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, even("p", "10/min")).await;
        settle(&admission, 15).await;
        assert_eq!(waits(&limiter, "p").await, (secs(36), secs(90)));
        settle(&admission, 500).await;
        assert_eq!(waits(&limiter, "p").await, (secs(66), secs(120)));
        // What was charged of it is refunded, not what was requested.
        settle(&admission, 3).await;
        assert_eq!(used(&limiter, "p").await, 3);
    }
}

#[tokio::test]
async fn nothing_is_refunded_twice() {
    on_each(1, async |_, limiter, admission, context| {
        assert_eq!(limiter.check(KEY).times(5).await.admitted(), 5);
        for (units, expected) in [(0, 6), (1, 5), (1, 5), (100, 5)] {
            refund(admission, units).await;
            assert_eq!(used(limiter, "p").await, expected, "{context}");
        }
        charge(admission, 3).await;
        for (units, expected) in [(2, 6), (2, 5), (2, 5), (100, 5)] {
            refund(admission, units).await;
            assert_eq!(used(limiter, "p").await, expected, "{context}");
        }
        let clone = admission.clone();
        refund(&clone, 1).await;
        settle(&clone, 0).await;
        assert_eq!(used(limiter, "p").await, 5, "{context}");
    })
    .await;
}

#[tokio::test]
async fn concurrent_refunds_refund_once() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, window("p", "10/min").cost(2)).await;
        assert_eq!(limiter.check(KEY).times(2).await.admitted(), 2);
        let policy = admission.policy("p").expect("a policy");
        let refunds = (0..8).map(|_| policy.refund(2));
        for refund in futures_util::future::join_all(refunds).await {
            refund.expect("a response");
        }
        assert_eq!(used(&limiter, "p").await, 4);
    }
}

#[tokio::test]
async fn a_refund_cancelled_half_way_loses_no_units() {
    on_each(4, async |_, limiter, admission, context| {
        charge(admission, 3).await;
        // It is sent, and refunds the last charge.
        drop(
            admission
                .policy("p")
                .expect("a policy")
                .refund(7)
                .now_or_never(),
        );
        refund(admission, 7).await;
        assert_eq!(used(limiter, "p").await, 0, "{context}");
    })
    .await;
}

#[tokio::test]
async fn a_charge_cancelled_half_way_is_charged_once() {
    on_each(4, async |_, limiter, admission, context| {
        drop(
            admission
                .policy("p")
                .expect("a policy")
                .charge(3)
                .now_or_never(),
        );
        assert_eq!(used(limiter, "p").await, 7, "{context}");
        for true_cost in [7, 8, 5] {
            settle(admission, true_cost).await;
            assert_eq!(used(limiter, "p").await, true_cost, "{context}");
        }
    })
    .await;
}

#[tokio::test]
async fn concurrent_settlements_charge_once() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, window("p", "10/min")).await;
        let policy = admission.policy("p").expect("a policy");
        let settling = (0..3).map(|_| policy.settle(3));
        for settled in futures_util::future::join_all(settling).await {
            settled.expect("a response");
        }
        assert_eq!(used(&limiter, "p").await, 3);
    }
}

#[tokio::test]
async fn a_refund_never_lands_in_a_later_window() {
    for world in World::both() {
        for strategy in [
            StrategyKind::Fixed,
            StrategyKind::Calendar,
            StrategyKind::List,
            StrategyKind::Log,
        ] {
            let policy = together(strategy, "p", "10/min");
            let _case = Case(format!("{policy:?}"));
            let (limiter, admission) = admitted(&world, policy.cost(5)).await;
            world.advance(secs(61));
            assert_eq!(limiter.check(KEY).times(1).await.admitted(), 1);
            refund(&admission, 3).await;
            assert_eq!(used(&limiter, "p").await, 5);
            settle(&admission, 0).await;
            assert_eq!(used(&limiter, "p").await, 5);
            world.no_key_is_immortal();
            world.advance(secs(120));
        }
    }
}

#[tokio::test]
async fn a_true_cost_known_in_a_later_window_charges_only_the_difference() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, window("p", "10/min").cost(5)).await;
        world.advance(secs(61));
        settle(&admission, 8).await;
        assert_eq!(used(&limiter, "p").await, 3);
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn units_whose_refund_was_too_late_are_not_charged_again() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let policy = together(strategy, "p", "10/min").cost(5);
            let _case = Case(format!("{strategy:?}"));
            let (limiter, admission) = admitted(&world, policy).await;
            world.advance(secs(121));
            for true_cost in [3, 5, 0, 4] {
                settle(&admission, true_cost).await;
                assert_eq!(used(&limiter, "p").await, 0);
            }
            settle(&admission, 6).await;
            assert_eq!(used(&limiter, "p").await, 1);
            world.advance(secs(121));
        }
    }
}

#[tokio::test]
async fn one_policy_is_settled_alone() {
    for world in World::both() {
        let limiter = world.limiter([window("requests", "10/min"), even("tokens", "100/min")]);
        let admission = limiter.check(KEY).await.into_result().expect("room");
        let tokens = admission.policy("tokens").expect("a policy");
        tokens.settle(40).await.expect("a response");
        assert_eq!(used(&limiter, "tokens").await, 40);
        assert_eq!(used(&limiter, "requests").await, 1);
        tokens.refund(15).await.expect("a response");
        tokens.charge(5).await.expect("a response");
        assert_eq!(used(&limiter, "tokens").await, 30);
        let unknown = admission.policy("absent").expect_err("no such policy");
        assert_eq!(
            unknown.to_string(),
            r#"no policy "absent"; expected one of ["requests", "tokens"]"#
        );
        assert_eq!(used(&limiter, "requests").await, 1);
        // Both together.
        let both = [("tokens", 2), ("requests", 2)];
        admission.settle_each(both).await.expect("a response");
        assert_eq!(used(&limiter, "tokens").await, 2);
        assert_eq!(used(&limiter, "requests").await, 2);
    }
}

#[tokio::test]
async fn a_policy_is_settled_where_those_before_it_had_no_key() {
    for world in World::both() {
        let limiter = world.limiter([window("other", "10/min"), window("p", "10/min")]);
        let admission = limiter.admit([("p", KEY)]).await.expect("room");
        for true_cost in [5, 2] {
            let policy = admission.policy("p").expect("a policy");
            policy.settle(true_cost).await.expect("a response");
            assert_eq!(used(&limiter, "p").await, true_cost);
        }
    }
}
