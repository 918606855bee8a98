//! Several policies settled at once.

use tollgate::limiter::SettleError;
use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// An admission under three policies, charged 1, 200 and 5, and its limiter.
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

async fn all_used(limiter: &Limiter) -> [u64; 3] {
    let mut all = [0; 3];
    for (all, name) in all.iter_mut().zip(["requests", "tokens", "cents"]) {
        *all = used(limiter, name).await;
    }
    all
}

/// How often a script was called on the server.
fn calls(world: &World) -> Option<u64> {
    let server = world.redis_server()?;
    Some(server.calls("evalsha") + server.calls("eval"))
}

#[tokio::test]
async fn named_policies_are_settled_in_one_round_trip_and_the_others_left_alone() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let name = format!("{strategy:?} on {}", world.name());
            let (limiter, admission) =
                admitted(&world, [StrategyKind::Gcra, strategy, StrategyKind::Fixed]).await;
            for (tokens, cents) in [(500, 3), (400, 30), (400, 30), (0, 0), (700, 100)] {
                let before = calls(&world);
                let costs = [("tokens", tokens), ("cents", cents)];
                admission.settle_each(costs).await.expect("a response");
                let after = calls(&world);
                assert!(after <= before.map(|before| before + 1), "{name}");
                assert_eq!(all_used(&limiter).await, [1, tokens, cents], "{name}");
                let left = ["tokens", "cents"].map(|name| admission.remaining(name));
                assert_eq!(left, [Some(1_000 - tokens), Some(100 - cents)], "{name}");
            }
            world.advance(secs(200));
        }
    }
}

#[tokio::test]
async fn several_receipts_of_a_policy_are_refunded_in_one_round_trip() {
    for world in World::both() {
        let (limiter, admission) = admitted(
            &world,
            [StrategyKind::Fixed, StrategyKind::Log, StrategyKind::Bucket],
        )
        .await;
        let tokens = admission.policy("tokens").expect("a policy");
        for _ in 0..3 {
            tokens.charge(10).await.expect("a response");
        }
        let before = calls(&world);
        let costs = [("tokens", 100), ("cents", 7)];
        admission.settle_each(costs).await.expect("a response");
        assert!(calls(&world) <= before.map(|before| before + 1));
        assert_eq!(all_used(&limiter).await, [1, 100, 7]);
    }
}

#[tokio::test]
async fn more_receipts_than_one_call_takes_are_all_settled() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, [StrategyKind::Fixed; 3]).await;
        let tokens = admission.policy("tokens").expect("a policy");
        for _ in 0..150 {
            tokens.charge(2).await.expect("a response");
        }
        assert_eq!(all_used(&limiter).await, [1, 500, 5]);
        let costs = [("tokens", 3), ("requests", 3)];
        admission.settle_each(costs).await.expect("a response");
        assert_eq!(all_used(&limiter).await, [3, 3, 5]);
    }
}

#[tokio::test]
async fn if_one_policy_cannot_be_settled_none_is() {
    let world = World::redis();
    let server = world.redis_server().expect("a server");
    for strategy in StrategyKind::ALL {
        for (tokens, cents) in [(500, 9), (500, 3), (100, 9), (100, 3)] {
            let (limiter, admission) =
                admitted(&world, [StrategyKind::Gcra, strategy, StrategyKind::Fixed]).await;
            let keys = server.keys();
            let foreign = keys.iter().find(|key| key.contains(":cents:"));
            let foreign = foreign.expect("the key of a policy");
            server.command(&["SET", foreign, "something else"]);
            let costs = [("tokens", tokens), ("cents", cents)];
            let error = admission
                .settle_each(costs)
                .await
                .expect_err("a foreign key");
            let SettleError::Store { settled, error, .. } = error else {
                panic!("{error}");
            };
            assert!(matches!(error, StoreError::CorruptKey { .. }), "{error}");
            assert!(settled.is_empty(), "{settled:?}");
            server.command(&["DEL", foreign]);
            assert_eq!(all_used(&limiter).await, [1, 200, 0], "{strategy:?}");
            // The admission still has its charge, too.
            let costs = [("tokens", tokens)];
            admission.settle_each(costs).await.expect("a response");
            assert_eq!(all_used(&limiter).await, [1, tokens, 0], "{strategy:?}");
            server.command(&["FLUSHALL"]);
        }
    }
}

#[tokio::test]
async fn a_name_that_is_unknown_is_an_error_and_nothing_is_settled() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, [StrategyKind::Gcra; 3]).await;
        let costs = [("tokens", 500), ("cent", 3)];
        let error = admission.settle_each(costs).await.expect_err("a mistake");
        assert!(matches!(&error, SettleError::UnknownPolicy(unknown) if unknown.name() == "cent"));
        assert_eq!(all_used(&limiter).await, [1, 200, 5]);
    }
}

#[tokio::test]
async fn the_last_cost_of_a_policy_named_twice_counts() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world, [StrategyKind::Gcra; 3]).await;
        let costs = [("tokens", 500), ("cents", 3), ("tokens", 300)];
        admission.settle_each(costs).await.expect("a response");
        assert_eq!(all_used(&limiter).await, [1, 300, 3]);
    }
}

#[tokio::test]
async fn concurrent_settlements_of_several_policies_settle_once() {
    for world in World::both() {
        let (limiter, admission) = admitted(
            &world,
            [
                StrategyKind::Gcra,
                StrategyKind::Fixed,
                StrategyKind::Bucket,
            ],
        )
        .await;
        let all = || admission.settle_each([("tokens", 500), ("cents", 3)]);
        for settled in join_all((0..5).map(|_| all())).await {
            settled.expect("a response");
        }
        assert_eq!(all_used(&limiter).await, [1, 500, 3]);
    }
}

#[tokio::test]
async fn a_settlement_cancelled_half_way_is_made_once() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let (limiter, admission) =
                admitted(&world, [StrategyKind::Gcra, strategy, StrategyKind::Fixed]).await;
            let all = || admission.settle_each([("tokens", 500), ("cents", 3)]);
            drop(all().now_or_never());
            let _case = Case(format!("{strategy:?}"));
            assert_eq!(all_used(&limiter).await, [1, 500, 3]);
            all().await.expect("a response");
            assert_eq!(all_used(&limiter).await, [1, 500, 3]);
            world.advance(secs(200));
        }
    }
}

#[tokio::test]
async fn a_shadow_candidate_is_settled_with_its_policy_in_one_round_trip() {
    for world in World::both() {
        let next = together(StrategyKind::Fixed, "next", "500/min").cost(200);
        let limiter = world.limiter([
            together(StrategyKind::Gcra, "tokens", "1000/min").cost(200),
            next.shadow_of("tokens"),
        ]);
        let _ = limiter.reset(KEY).await;
        let admission = limiter.admit(KEY).await.expect("room");
        let both = async || [used(&limiter, "tokens").await, used(&limiter, "next").await];
        let tokens = admission.policy("tokens").expect("a policy");
        let before = calls(&world);
        tokens.settle(10).await.expect("a response");
        assert!(calls(&world) <= before.map(|before| before + 1));
        assert_eq!(both().await, [10, 10]);
        // A cost of its own counts for it.
        let costs = [("tokens", 300), ("next", 20)];
        admission.settle_each(costs).await.expect("a response");
        assert_eq!(both().await, [300, 20]);
        let mut meter = tokens.meter();
        meter.add(40);
        meter.finish().await.expect("a response");
        assert_eq!(both().await, [40, 40]);
    }
}

#[tokio::test]
async fn a_meter_of_several_policies_settles_them_in_one_round_trip() {
    for world in World::both() {
        let (limiter, admission) = admitted(
            &world,
            [StrategyKind::Gcra, StrategyKind::Gcra, StrategyKind::Fixed],
        )
        .await;
        let unknown = admission.meter(["tokens", "cent"]).expect_err("a mistake");
        assert_eq!(unknown.name(), "cent");
        let mut meter = admission.meter(["tokens", "cents"]).expect("policies");
        meter.add(40);
        let before = calls(&world);
        meter.finish().await.expect("a response");
        assert!(calls(&world) <= before.map(|before| before + 1));
        assert_eq!(all_used(&limiter).await, [1, 40, 40]);
        let mut meter = admission.meter(["tokens", "cents"]).expect("policies");
        meter.add(7);
        drop(meter);
        // It is sent before the next operation.
        assert_eq!(all_used(&limiter).await, [1, 7, 7]);
    }
}
