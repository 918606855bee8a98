//! Several policies settled at once.

use StrategyKind::{Bucket, Fixed, Gcra, Log};
use tollgate::limiter::SettleError;
use tollgate_tests::prelude::*;

use crate::charging::support::*;

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
    }
}

#[tokio::test]
async fn several_receipts_of_a_policy_are_refunded_in_one_round_trip() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, [Fixed, Log, Bucket]).await;
        let tokens = admission.policy("tokens").expect("a policy");
        for _ in 0..3 {
            tokens.charge(10).await.expect("a response");
        }
        let costs = [("tokens", 100), ("cents", 7)];
        in_one_round_trip(&world, settle_each(&admission, &costs)).await;
        assert_eq!(each_used(&limiter).await, [1, 100, 7]);
        // More than one call takes are all settled, too.
        for _ in 0..150 {
            tokens.charge(2).await.expect("a response");
        }
        assert_eq!(each_used(&limiter).await, [1, 400, 7]);
        settle_each(&admission, &[("tokens", 3), ("requests", 3)]).await;
        assert_eq!(each_used(&limiter).await, [3, 3, 7]);
    }
}

#[tokio::test]
async fn if_one_policy_cannot_be_settled_none_is() {
    let world = World::redis();
    let server = world.server();
    for strategy in StrategyKind::ALL {
        for (tokens, cents) in [(500, 9), (500, 3), (100, 9), (100, 3)] {
            let _case = Case(format!("{strategy:?}, {tokens}, {cents}"));
            let (limiter, admission) = admitted(&world, [Gcra, strategy, Fixed]).await;
            let mut keys = server.keys().into_iter();
            let foreign = keys.find(|key| key.contains(":cents:"));
            let foreign = &foreign.expect("the key of a policy");
            server.command(&["SET", foreign, "something else"]);
            let failed = admission.settle_each([("tokens", tokens), ("cents", cents)]);
            let SettleError::Store { settled, error, .. } = failed.await.expect_err("foreign")
            else {
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
async fn settlements_that_are_concurrent_or_cancelled_half_way_are_made_once() {
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
            // More of one and less of the other.
            for settled in join_all((0..5).map(|_| all(700, 1))).await {
                settled.expect("a response");
            }
            assert_eq!(each_used(&limiter).await, [1, 700, 1]);
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
