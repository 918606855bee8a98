//! What a handler charges and refunds by itself, of one policy and of several at once: it counts once, whatever is dropped.

use StrategyKind::{Bucket, Fixed, Gcra, Log};
use tollgate::limiter::{Refund, SettleError};
use tollgate_tests::prelude::*;

use crate::charging::support::{refund as refund_of, *};

#[tokio::test]
async fn a_true_cost_is_what_is_charged_unless_a_refund_comes_too_late() {
    on_each_strategy(async |world, _, limiter| {
        let admission = limiter.admit(KEY).cost(4).await.expect("room");
        for true_cost in [7, 2, 2, 9, 9, 0, 1, 10] {
            settle(&admission, true_cost).await;
            assert_eq!(used(limiter, "p").await, true_cost);
            assert_eq!(admission.remaining("p"), Some(10 - true_cost));
        }
        assert!(!admitted_by_store(&limiter.check(KEY).await));
        let _ = limiter.reset(KEY).await.expect("a response");
        let admission = limiter.admit(KEY).cost(5).await.expect("room");
        world.advance(secs(121));
        // Units whose refund was too late are not charged again.
        for (true_cost, expected) in [(3, 0), (5, 0), (0, 0), (4, 0), (6, 1)] {
            settle(&admission, true_cost).await;
            assert_eq!(used(limiter, "p").await, expected, "{true_cost}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_policy_is_settled_where_those_before_it_had_no_key() {
    for world in World::both() {
        let limiter = world.limiter([window("other", "10/min"), window("p", "10/min")]);
        let admission = limiter.admit([("p", KEY)]).await.expect("room");
        for true_cost in [5, 2] {
            settle(&admission, true_cost).await;
            assert_eq!(used(&limiter, "p").await, true_cost);
        }
    }
}

async fn refund(admission: &Admission, units: u64) -> u64 {
    let refunds = admission.refund(units).await.expect("a response");
    refunds.iter().map(Refund::units).sum()
}

#[tokio::test]
async fn copies_of_an_admission_refund_each_unit_once() {
    on_each_strategy(async |_, _, limiter| {
        assert_eq!(limiter.check(KEY).times(2).await.admitted(), 2);
        let charged = limiter.admit(KEY).cost(3).await.expect("room");
        let refunds = (0..8).map(|_| {
            let copy = charged.clone();
            tokio::spawn(async move { refund(&copy, 1).await })
        });
        let refunds = join_all(refunds).await.into_iter();
        let refunded: u64 = refunds.map(|units| units.expect("a task ends well")).sum();
        assert_eq!((refunded, used(limiter, "p").await), (3, 2));

        let admission = limiter.admit(KEY).cost(4).await.expect("room");
        let [one, other] = [(); 2].map(|()| admission.clone());
        assert_eq!(refund(&one, 1).await, 1);
        refund_of(&admission, 2).await;
        assert_eq!(used(limiter, "p").await, 3);
        assert_eq!(refund(&other, 4).await, 1);
        refund_of(&admission, 4).await;
        assert_eq!(refund(&one, 4).await, 0);
        assert_eq!(used(limiter, "p").await, 2);
    })
    .await;
}

#[tokio::test]
async fn refunds_name_their_policies() {
    for world in World::both() {
        let tokens = even("tokens", "100/min").cost(40);
        let shadow = even("shadow", "100/min").shadow();
        let limiter = world.limiter([window("requests", "10/min"), shadow, tokens]);
        let admission = limiter.admit(KEY).await.expect("room");
        let refunds = admission.refund(15).await.expect("a response");
        let named = refunds
            .iter()
            .map(|refund| (refund.policy(), refund.units()));
        assert_eq!(named.collect::<Vec<_>>(), [("requests", 1), ("tokens", 15)]);
        assert_eq!(used(&limiter, "shadow").await, 0);
        let unknown = admission.policy("absent").expect_err("no such policy");
        assert_eq!(unknown.known(), ["requests", "tokens", "shadow"]);
    }
}

/// A limiter under three policies, and an admission that was charged 1, 200 and 5 under them.
async fn admitted(
    world: &World,
    [requests, tokens, cents]: [StrategyKind; 3],
) -> (Limiter, Admission) {
    let limiter = world.limiter([
        together(requests, "requests", "10/min"),
        together(tokens, "tokens", "1000/min").cost(200),
        together(cents, "cents", "100/min").cost(5),
    ]);
    let _ = limiter.reset(KEY).await;
    let admission = limiter.admit(KEY).await.expect("room");
    (limiter, admission)
}

async fn each_used(limiter: &Limiter) -> [u64; 3] {
    all_used(limiter, ["requests", "tokens", "cents"]).await
}

/// Does it, in one round trip at most.
async fn in_one_round_trip(world: &World, calls: impl Future<Output = ()>) {
    let sent = || {
        let server = world.redis_server()?;
        Some(server.calls("evalsha") + server.calls("eval"))
    };
    let before = sent();
    calls.await;
    assert!(sent() <= before.map(|before| before + 1));
}

#[tokio::test]
async fn named_policies_are_settled_in_one_round_trip_and_the_others_left_alone() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let _case = Case(format!("{strategy:?}"));
            let (limiter, admission) = admitted(&world, [Gcra, strategy, Fixed]).await;
            for (tokens, cents) in [(500, 3), (400, 30), (400, 30), (0, 0), (700, 100)] {
                let costs = [("tokens", tokens), ("cents", cents)];
                in_one_round_trip(&world, settle_each(&admission, &costs)).await;
                assert_eq!(each_used(&limiter).await, [1, tokens, cents]);
                let left = ["tokens", "cents"].map(|name| admission.remaining(name));
                assert_eq!(left, [Some(1_000 - tokens), Some(100 - cents)]);
            }
            world.advance(secs(200));
        }
        let (limiter, admission) = admitted(&world, [Fixed, Log, Bucket]).await;
        let tokens = admission.policy("tokens").expect("a policy");
        tokens.refund(15).await.expect("a response");
        // More charges than one call takes are all settled, too.
        for _ in 0..150 {
            tokens.charge(2).await.expect("a response");
        }
        assert_eq!(each_used(&limiter).await, [1, 485, 5]);
        settle_each(&admission, &[("tokens", 3), ("requests", 3)]).await;
        assert_eq!(each_used(&limiter).await, [3, 3, 5]);
    }
}

#[tokio::test]
async fn if_one_policy_cannot_be_settled_none_is() {
    let world = World::redis();
    let server = world.server();
    for (tokens, cents) in [(500, 9), (500, 3), (100, 9), (100, 3)] {
        let _case = Case(format!("{tokens}, {cents}"));
        let (limiter, admission) = admitted(&world, [Gcra, Log, Fixed]).await;
        let mut keys = server.keys().into_iter();
        let foreign = keys.find(|key| key.contains(":cents:"));
        let foreign = &foreign.expect("the key of a policy");
        server.command(&["SET", foreign, "something else"]);
        let failed = admission.settle_each([("tokens", tokens), ("cents", cents)]);
        let SettleError::Store { settled, error, .. } = failed.await.expect_err("foreign") else {
            panic!("no error of the store");
        };
        assert!(matches!(error, StoreError::CorruptKey { .. }), "{error}");
        assert!(settled.is_empty(), "{settled:?}");
        server.command(&["DEL", foreign]);
        assert_eq!(each_used(&limiter).await, [1, 200, 0]);
        // The admission still has its charge, too.
        settle_each(&admission, &[("tokens", tokens)]).await;
        assert_eq!(each_used(&limiter).await, [1, tokens, 0]);
        server.command(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn of_an_unknown_name_nothing_is_settled_and_of_a_name_given_twice_the_last_cost() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, [Gcra; 3]).await;
        let costs = [("tokens", 500), ("cent", 3)];
        let error = admission.settle_each(costs).await.expect_err("a mistake");
        assert!(matches!(&error, SettleError::UnknownPolicy(unknown) if unknown.name() == "cent"));
        assert_eq!(each_used(&limiter).await, [1, 200, 5]);
        let costs = [("tokens", 500), ("cents", 3), ("tokens", 300)];
        settle_each(&admission, &costs).await;
        assert_eq!(each_used(&limiter).await, [1, 300, 3]);
    }
}

#[tokio::test]
async fn calls_that_are_concurrent_or_cancelled_half_way_are_made_once() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let _case = Case(format!("{strategy:?}"));
            let (limiter, admission) = admitted(&world, [Gcra, strategy, Fixed]).await;
            let all = |tokens: u64, cents: u64| {
                admission.settle_each([("tokens", tokens), ("cents", cents)])
            };
            // Its budget of cooperative scheduling is full then.
            tokio::task::yield_now().await;
            drop(all(500, 3).now_or_never());
            assert_eq!(each_used(&limiter).await, [1, 500, 3]);
            settle_each(&admission, &[("tokens", 500), ("cents", 3)]).await;
            assert_eq!(each_used(&limiter).await, [1, 500, 3]);
            // The receipt of what was cancelled is known.
            drop(all(900, 3).now_or_never());
            settle_each(&admission, &[("tokens", 20)]).await;
            assert_eq!(each_used(&limiter).await, [1, 20, 3]);
            // More of one and less of the other.
            for settled in join_all((0..5).map(|_| all(700, 1))).await {
                settled.expect("a response");
            }
            assert_eq!(each_used(&limiter).await, [1, 700, 1]);
            world.advance(secs(200));
            let (limiter, admission) = admitted(&world, [Gcra, strategy, Fixed]).await;
            let tokens = admission.policy("tokens").expect("a policy");
            for refunded in join_all((0..8).map(|_| tokens.refund(150))).await {
                refunded.expect("a response");
            }
            assert_eq!(each_used(&limiter).await, [1, 0, 5]);
            // What was cancelled counts for what follows.
            drop(tokens.charge(50).now_or_never());
            assert_eq!(each_used(&limiter).await, [1, 50, 5]);
            settle_each(&admission, &[("tokens", 70)]).await;
            assert_eq!(each_used(&limiter).await, [1, 70, 5]);
            drop(tokens.charge(50).now_or_never());
            settle_each(&admission, &[("tokens", 10)]).await;
            assert_eq!(each_used(&limiter).await, [1, 10, 5]);
            world.advance(secs(200));
        }
    }
}

#[tokio::test]
async fn a_meter_of_several_policies_settles_them_in_one_round_trip() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, [Gcra, Gcra, Fixed]).await;
        let unknown = admission.meter(["tokens", "cent"]).expect_err("a mistake");
        assert_eq!(unknown.name(), "cent");
        let meter = |units| {
            let mut meter = admission.meter(["tokens", "cents"]).expect("policies");
            meter.add(units);
            meter
        };
        let finished = meter(40).finish().map(|done| done.expect("a response"));
        in_one_round_trip(&world, finished).await;
        assert_eq!(each_used(&limiter).await, [1, 40, 40]);
        drop(meter(7));
        // It is sent before the next operation.
        assert_eq!(each_used(&limiter).await, [1, 7, 7]);
    }
}
