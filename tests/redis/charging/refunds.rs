//! Refunds: to the fraction of a unit, and once, however many copies of a decision there are.

use tollgate::limiter::Refund;
use tollgate_tests::prelude::*;

use crate::charging::{
    ban::MICRO,
    support::{refund as refund_of, *},
};

async fn refund(decision: &mut Decision, units: u64) -> u64 {
    let refunds = decision.refund(units).await.expect("a response");
    refunds.iter().map(Refund::units).sum()
}

/// Waits until the clock has moved on.
fn pass_a_moment() {
    let begun = Instant::now();
    while begun.elapsed() < 20 * MICRO {
        std::hint::spin_loop();
    }
}

#[tokio::test]
async fn a_refund_returns_the_rest_of_a_partly_refilled_unit() {
    for world in World::both() {
        for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
            let limiter = world.limiter([together(strategy, "p", "10/min")]);
            let _ = limiter.reset(KEY).await.expect("a response");
            let mut charged = limiter.check(KEY).await;
            world.advance(MICRO);
            let _case = Case(format!("{strategy:?}"));
            assert_eq!(refund(&mut charged, 1).await, 1);
            let seen = limiter.peek(KEY).await.expect("a response");
            let policy = seen.policy("p").expect("a policy");
            assert_eq!(policy.remaining(), 10);
            assert!(policy.reset_after().is_zero(), "{policy:?}");
            assert_eq!(refund(&mut charged, 1).await, 0);
        }
    }
}

/// By the clocks that applications have.
async fn on_a_real_clock(store: impl Store + Clone) {
    for strategy in StrategyKind::ALL {
        let name = format!("{strategy:?}");
        let limiter = Limiter::builder()
            .store(store.clone())
            .policy(together(strategy, &name, "10/day"))
            .on_store_error(OnStoreError::Reject)
            .build()
            .expect("a limiter");
        let mut charged = limiter.check(KEY).await;
        assert!(admitted_by_store(&charged));
        pass_a_moment();
        assert_eq!(refund(&mut charged, 1).await, 1, "{name}");
        assert_eq!(used(&limiter, &name).await, 0, "{name}");
    }
}

#[tokio::test]
async fn one_unit_is_refunded_in_process_on_a_real_clock() {
    on_a_real_clock(MemoryStore::new()).await;
}

#[tokio::test]
async fn one_unit_is_refunded_on_redis_on_a_real_clock() {
    let server = Server::start();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    on_a_real_clock(store.build().expect("a store")).await;
}

#[tokio::test]
async fn copies_of_a_decision_refund_the_same_unit_once() {
    on_each_strategy(async |_, _, limiter, name| {
        assert_eq!(limiter.check(KEY).times(5).await.admitted(), 5);

        let mut charged = limiter.check(KEY).await;
        let mut copy = charged.clone();
        let mut copy_of_copy = copy.clone();
        assert_eq!(refund(&mut copy, 1).await, 1, "{name}");
        assert_eq!(refund(&mut charged, 1).await, 0, "{name}");
        assert_eq!(refund(&mut copy_of_copy, 1).await, 0, "{name}");
        assert_eq!(used(limiter, "p").await, 5, "{name}");
    })
    .await;
}

#[tokio::test]
async fn copies_that_are_refunded_at_once_refund_each_unit_once() {
    on_each_strategy(async |_, _, limiter, name| {
        assert_eq!(limiter.check(KEY).times(5).await.admitted(), 5);

        let charged = limiter.check(KEY).cost(3).await;
        let refunds = (0..8).map(|_| {
            let mut copy = charged.clone();
            tokio::spawn(async move { refund(&mut copy, 1).await })
        });
        let refunds = join_all(refunds).await.into_iter();
        let refunded: u64 = refunds.map(|units| units.expect("a task ends well")).sum();
        assert_eq!(refunded, 3, "{name}");
        assert_eq!(used(limiter, "p").await, 5, "{name}");
    })
    .await;
}

#[tokio::test]
async fn decisions_of_an_admission_refund_only_what_the_admission_has_not() {
    on_each_strategy(async |_, _, limiter, name| {
        assert_eq!(limiter.check(KEY).times(2).await.admitted(), 2);

        let admission = limiter.check(KEY).cost(4).await.into_result();
        let admission = admission.expect("room");
        let [mut one] = <[_; 1]>::try_from(admission.decisions()).expect("a decision");
        let [mut other] = <[_; 1]>::try_from(admission.decisions()).expect("a decision");
        assert_eq!(refund(&mut one, 1).await, 1, "{name}");
        refund_of(&admission, 2).await;
        assert_eq!(used(limiter, "p").await, 3, "{name}");
        assert_eq!(refund(&mut other, 4).await, 1, "{name}");
        refund_of(&admission, 4).await;
        assert_eq!(refund(&mut one, 4).await, 0, "{name}");
        assert_eq!(used(limiter, "p").await, 2, "{name}");
    })
    .await;
}

#[tokio::test]
async fn a_response_does_not_refund_again_what_the_handler_refunded() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let _case = Case(format!("{strategy:?}"));
            let layer = world.layer([together(strategy, "p", "10/min")
                .cost(4)
                .refund_unless(|_| false)]);
            let limiter = layer.limiter().clone();
            let _ = limiter.reset(KEY).await.expect("a response");
            assert_eq!(limiter.check(KEY).cost(5).await.admitted(), 1);

            let handler = async |request: Request<()>| {
                let admission = request.extensions().get::<Admission>();
                let mut decisions = admission.expect("an admission").decisions();
                assert_eq!(refund(&mut decisions[0], 3).await, 3);
                Ok::<_, Infallible>(text(200))
            };
            let Ok(response) = call(&layer, request(), handler).await;
            read(response).await.expect("a body");
            assert_eq!(used(&limiter, "p").await, 5);
        }
    }
}

#[tokio::test]
async fn refunds_name_their_policies() {
    for world in World::both() {
        let (requests, tokens) = (
            together(StrategyKind::Fixed, "requests", "10/min"),
            together(StrategyKind::Gcra, "tokens", "100/min").cost(40),
        );
        let shadow = together(StrategyKind::Gcra, "shadow", "100/min").shadow();
        let limiter = world.limiter([requests, shadow, tokens]);
        let named = |refunds: Vec<Refund>| -> Vec<_> {
            let named = refunds.into_iter();
            named
                .map(|refund| (refund.policy().to_owned(), refund.units()))
                .collect()
        };
        let of = |policy: &str, units| (policy.to_owned(), units);

        let mut decision = limiter.check(KEY).await;
        let refunds = decision.refund(15).await.expect("a response");
        assert_eq!(named(refunds), [of("requests", 1), of("tokens", 15)]);
        assert_eq!(used(&limiter, "shadow").await, 0);

        let admission = decision.into_result().expect("room");
        let tokens = admission.policy("tokens").expect("a policy");
        let refunds = tokens.refund(5).await;
        assert_eq!(named(refunds.expect("a response")), [of("tokens", 5)]);
        let refunds = tokens.refund(50).await.expect("a response");
        assert_eq!(named(refunds), [of("tokens", 20)]);
        let unknown = admission.policy("absent").expect_err("no such policy");
        assert_eq!(unknown.name(), "absent");
        assert_eq!(unknown.known(), ["requests", "tokens", "shadow"]);
    }
}

#[tokio::test]
async fn a_free_request_does_not_wait_also_in_debt() {
    on_each_strategy(async |_, _, limiter, name| {
        assert!(admitted_by_store(
            &limiter.charge(KEY, 13).await.expect("a response")
        ));
        let free = |decision: &Decision, how: &str| {
            let retry = decision.policy("p").expect("a policy").retry_after();
            assert!(admitted_by_store(decision), "{how}, {name}");
            assert_eq!(retry, RetryAfter::Now, "{how}, {name}");
        };
        free(&limiter.check(KEY).cost(0).await, "alone");
        free(&limiter.check(KEY).cost(0).times(3).await, "three at once");
        let seen = limiter.peek(KEY).cost(0).await.expect("a response");
        assert!(seen.would_admit(), "looked at, {name}");
        let merged = (0..8).map(|_| tokio::spawn(limiter.check(KEY).cost(0).into_future()));
        for decision in join_all(merged).await {
            free(&decision.expect("a task ends well"), "merged");
        }
        assert_ne!(
            limiter.peek(KEY).await.expect("a response").retry_after(),
            RetryAfter::Now,
            "{name}"
        );
    })
    .await;
}

/// How much of five units the refund of as many that were charged before a reset takes from those charged after it.
async fn taken_by_a_refund_from_before_a_reset(world: &World, strategy: StrategyKind) -> u64 {
    let limiter = world.limiter([together(strategy, "p", "10/h")]);
    let _ = limiter.reset(KEY).await.expect("a response");
    let mut before = limiter.check(KEY).cost(5).await;
    world.advance(ms(10));
    let _ = limiter.reset(KEY).await.expect("a response");
    let after = limiter.check(KEY).cost(5).await;
    assert!(admitted_by_store(&before) && admitted_by_store(&after));
    refund(&mut before, 5).await;
    5 - used(&limiter, "p").await
}

#[tokio::test]
async fn a_refund_of_a_charge_before_a_reset_takes_at_most_that_from_later_charges() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let taken = taken_by_a_refund_from_before_a_reset(&world, strategy).await;
            let most = match strategy.counting() {
                // The charge, or the window that it opened, is distinguished from those that came after.
                Counting::OpenedWindows | Counting::Log => 0,
                Counting::EvenRate | Counting::CalendarWindows | Counting::Buckets(_) => 5,
            };
            assert!(taken <= most, "{taken} {strategy:?}");
        }
    }
}
