//! Counts that are lowered to what another party says is left.

use tollgate::limiter::Override;
use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// Those that can be lowered.
const LOWERED: [StrategyKind; 4] = [
    StrategyKind::Gcra,
    StrategyKind::Bucket,
    StrategyKind::Fixed,
    StrategyKind::Calendar,
];

/// Lowers what is left under policy `p`; returns how many units that charged.
async fn lower(limiter: &Limiter, remaining: u64, resets_in: Option<Duration>) -> u64 {
    let policy = limiter.policy("p").expect("a policy");
    let lowered = policy.lower_to(KEY, remaining, resets_in).await;
    lowered.expect("a response")
}

#[tokio::test]
async fn a_count_is_lowered_to_the_least_of_what_responses_say_in_any_order() {
    on_each(&LOWERED, async |_, _, limiter| {
        assert!(limiter.check(KEY).times(2).await.is_admitted());
        // Of two responses, the later one comes first, and both come twice.
        for (remaining, charged) in [(20, 0), (8, 0), (5, 3), (7, 0), (5, 0), (7, 0)] {
            assert_eq!(
                lower(limiter, remaining, None).await,
                charged,
                "{remaining}"
            );
        }
        assert_eq!(used(limiter, "p").await, 5);
        assert_eq!(limiter.check(KEY).times(9).await.admitted(), 5);
        assert_eq!(lower(limiter, 0, None).await, 0);
        assert_eq!(lower(limiter, u64::MAX, None).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_key_in_debt_is_not_lowered_and_one_that_was_never_used_is() {
    on_each(&LOWERED, async |world, _, limiter| {
        let _ = limiter.charge(KEY, 13).await.expect("a response");
        let in_debt = waits(limiter, "p").await;
        assert_eq!(lower(limiter, 0, None).await, 0);
        assert_eq!(waits(limiter, "p").await, in_debt);
        limiter.reset(KEY).await.expect("a response");
        assert_eq!(lower(limiter, 0, None).await, 10);
        assert_eq!(limiter.check(KEY).times(9).await.admitted(), 0);
        world.no_key_is_immortal();
        world.advance(secs(60));
        assert_eq!(limiter.check(KEY).times(99).await.admitted(), 10);
    })
    .await;
}

#[tokio::test]
async fn a_part_of_a_unit_that_has_refilled_stays() {
    let even = [StrategyKind::Gcra, StrategyKind::Bucket];
    on_each(&even, async |world, _, limiter| {
        assert!(limiter.check(KEY).await.is_admitted());
        // Half of a unit.
        world.advance(secs(3));
        assert_eq!(lower(limiter, 4, None).await, 5);
        world.advance(secs(3));
        assert_eq!(used(limiter, "p").await, 5);
    })
    .await;
}

#[tokio::test]
async fn a_window_is_lowered_if_the_other_partys_ends_no_earlier_than_a_tenth_of_the_period_before_it()
 {
    let windows = [StrategyKind::Fixed, StrategyKind::Calendar];
    on_each(&windows, async |world, _, limiter| {
        // A full minute, by which the calendar's window begins.
        assert!(limiter.check(KEY).await.is_admitted());
        world.advance(secs(20));
        // 40 s are left of the window, and a tenth of it is 6 s.
        for (remaining, resets_in, charged) in [
            (8, secs(34) - Duration::from_micros(1), 0),
            (8, Duration::ZERO, 0),
            (8, secs(34), 1),
            (7, secs(40), 1),
            (6, secs(3_600), 1),
            (5, Duration::MAX, 1),
        ] {
            let lowered = lower(limiter, remaining, Some(resets_in)).await;
            assert_eq!(lowered, charged, "{remaining}, {resets_in:?}");
        }
        world.advance(secs(40));
    })
    .await;
}

#[tokio::test]
async fn a_window_that_no_charge_has_begun_would_begin_now() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "10/min")]);
        assert_eq!(lower(&limiter, 8, Some(secs(53))).await, 0);
        assert_eq!(used(&limiter, "p").await, 0);
        if let Some(server) = world.redis_server() {
            assert_eq!(counter_keys(server), [""; 0]);
        }
        assert_eq!(lower(&limiter, 8, Some(secs(54))).await, 2);
        world.advance(secs(59));
        assert_eq!(used(&limiter, "p").await, 2);
        world.advance(secs(1));
        assert_eq!(used(&limiter, "p").await, 0);
    }
}

#[tokio::test]
async fn rates_and_calls_without_a_reset_are_lowered_whatever_ends_when() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "10/min")]);
        assert_eq!(lower(&limiter, 4, Some(Duration::ZERO)).await, 6);
        let year = Policy::new("p", Quota::requests(10).per_year()).key(extract::global());
        let limiter = world.limiter([year.strategy(CalendarWindow::utc())]);
        assert_eq!(lower(&limiter, 4, Some(secs(86_400))).await, 0);
        assert_eq!(lower(&limiter, 4, None).await, 6);
    }
}

#[tokio::test]
async fn two_processes_that_lower_by_one_response_charge_once() {
    let world = World::redis();
    for strategy in LOWERED {
        let _case = Case(format!("{strategy:?}"));
        let name = strategy.name();
        let [a, b] = [(); 2].map(|()| {
            let builder = Limiter::builder().store(stores::redis(world.server()));
            stores::limiter(builder, [together(strategy, name, "1000/h")])
        });
        let lower = async |limiter: &Limiter| {
            let policy = limiter.policy(name).expect("a policy");
            policy.lower_to(KEY, 300, None).await.expect("a response")
        };
        let mut charged = <[u64; 2]>::from(tokio::join!(lower(&a), lower(&b)));
        charged.sort_unstable();
        assert_eq!(charged, [0, 700]);
        assert_eq!(used(&b, name).await, 700);
    }
}

#[tokio::test]
async fn operations_of_one_batch_have_resets_of_their_own() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "10/min")]);
        // The window would end in 60 s.
        let lowered = tokio::join!(
            lower(&limiter, 7, Some(secs(10))),
            lower(&limiter, 7, Some(secs(60))),
            lower(&limiter, 5, None),
            lower(&limiter, 5, Some(secs(20))),
        );
        assert_eq!(lowered, (0, 3, 2, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acquires_beside_lowered_counts_are_all_or_nothing_to_the_unit() {
    on_each(&LOWERED, async |world, strategy, _| {
        let policies = [together(strategy, "p", "900/h"), even("all", "5000/day")];
        let limiter = world.limiter(policies);
        limiter.reset(KEY).await.expect("a response");
        let (mut requests, mut lowerings) = (JoinSet::new(), JoinSet::new());
        let mut rng = Rng::new(7);
        for round in 1..40 {
            for _ in 0..4 {
                let times = 1 + rng.below(4);
                let check = limiter.check(KEY).cost(1 + rng.below(3)).times(times);
                requests.spawn(check.into_future());
            }
            let (limiter, remaining) = (limiter.clone(), 900_u64.saturating_sub(30 * round));
            lowerings.spawn(async move { lower(&limiter, remaining, None).await });
        }
        let lowered: u64 = lowerings.join_all().await.into_iter().sum();
        let decisions = requests.join_all().await;
        let charged = decisions.iter().map(|decision| {
            let cost = decision.policies().next().map_or(0, |policy| policy.cost());
            decision.admitted() * cost
        });
        let charged: u64 = charged.sum();
        // One of them lowers to nothing, before or after some of the requests.
        assert_eq!(charged + lowered, 900);
        assert_eq!(all_used(&limiter, ["p", "all"]).await, [900, charged]);
    })
    .await;
}

#[tokio::test]
async fn strategies_that_cannot_be_lowered_return_a_typed_error_before_the_store_is_asked() {
    let policies = [
        StrategyKind::List.policy("list", "9/h"),
        StrategyKind::Log.policy("log", "9/h"),
        StrategyKind::Sliding(4).policy("sliding", "9/h"),
        Policy::new("permits", Quota::concurrent(9)),
        ban("ban", "9/h", Ban::for_duration(secs(60))),
    ];
    let asked = |op| panic!("{op:?} was asked for");
    let builder = Limiter::builder().store(StubStore::responding(asked));
    let limiter = stores::limiter(builder, policies);
    for policy in limiter.policies() {
        let policy = limiter.policy(policy.name()).expect("a policy");
        let error = policy.lower_to(KEY, 3, None).await.expect_err("an error");
        assert_eq!(
            error.to_string(),
            format!(
                "policy {:?} can't be lowered: its strategy does not support it; use Gcra, TokenBucket, \
                 FixedWindow or CalendarWindow, or block the key",
                policy.name()
            )
        );
        assert!(matches!(error, CallError::LowerUnsupported { .. }));
    }
}

#[tokio::test]
async fn a_store_error_is_returned_and_nothing_is_charged_later() {
    let world = World::redis();
    let limiter = world.limiter([even("p", "10/min")]);
    assert_eq!(lower(&limiter, 8, None).await, 2);
    let server = world.server();
    for key in counter_keys(server) {
        server.command(&["SET", &key, "nonsense"]).ok();
    }
    let policy = limiter.policy("p").expect("a policy");
    let error = policy.lower_to(KEY, 3, None).await.expect_err("an error");
    let corrupt = matches!(error, CallError::Store(StoreError::CorruptKey { .. }));
    assert!(corrupt, "{error}");
    let nothing_is_kept = limiter.shutdown(TEST_TIMEOUT).await;
    nothing_is_kept.expect("nothing is kept");
    server.flush();
    assert_eq!(used(&limiter, "p").await, 0);
}

#[tokio::test]
async fn a_dropped_future_does_not_undo_what_it_lowered() {
    let world = World::redis();
    let limiter = world.limiter([even("p", "10/min")]);
    let policy = limiter.policy("p").expect("a policy");
    let mut future = Box::pin(policy.lower_to(KEY, 3, None));
    assert!(futures_util::poll!(&mut future).is_pending());
    drop(future);
    until("it is lowered", async || used(&limiter, "p").await == 7).await;
    assert_eq!(lower(&limiter, 3, None).await, 0);
}

#[tokio::test]
async fn the_counter_is_that_of_the_callers_override() {
    for world in World::both_with_overrides() {
        let policy = StrategyKind::Fixed.policy("p", "10/min");
        let limiter = world.limiter([policy]);
        let (handle, alice) = (limiter.policy("p").expect("a policy"), Key::new("alice"));
        let raised = Override::quota(Quota::requests(50).per_minute());
        let set = handle.set_override(alice, raised).await;
        set.expect("an override");
        let lowered = handle.lower_to(alice, 20, Some(secs(60))).await;
        assert_eq!(lowered.expect("a response"), 30);
        let status = limiter.peek([("p", alice)]).await.expect("a response");
        assert_eq!(status.left("p"), 20);
    }
}

#[tokio::test]
async fn a_policy_of_another_name_or_limiter_is_unknown() {
    let limiter = World::memory().limiter([even("p", "10/min")]);
    let policy = limiter.policy("p").expect("a policy");
    let next = Limiter::builder().policy(even("q", "1/h"));
    limiter.reconfigure(next).expect("valid");
    let error = policy.lower_to(KEY, 3, None).await.expect_err("an error");
    assert!(matches!(error, CallError::UnknownPolicy(_)), "{error}");
}
