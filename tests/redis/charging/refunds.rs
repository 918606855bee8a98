//! Refunds: to the fraction of a unit, and once, however many copies of a decision there are.

use tollgate::limiter::Refund;
use tollgate_tests::{prelude::*, script::play};

use crate::charging::support::{refund as refund_of, *};

async fn refund(decision: &mut Decision, units: u64) -> u64 {
    let refunds = decision.refund(units).await.expect("a response");
    refunds.iter().map(Refund::units).sum()
}

#[tokio::test]
async fn a_refund_returns_the_rest_of_a_partly_refilled_unit() {
    let refunded = "10/min, cost 1: true, +1us, refund 1: 1, left: 10, full: 0s, refund 1: 0";
    play("even", refunded).await;
}

#[tokio::test]
async fn copies_that_are_refunded_at_once_refund_each_unit_once() {
    on_each_strategy(async |_, _, limiter| {
        assert_eq!(limiter.check(KEY).times(5).await.admitted(), 5);

        let charged = limiter.check(KEY).cost(3).await;
        let refunds = (0..8).map(|_| {
            let mut copy = charged.clone();
            tokio::spawn(async move { refund(&mut copy, 1).await })
        });
        let refunds = join_all(refunds).await.into_iter();
        let refunded: u64 = refunds.map(|units| units.expect("a task ends well")).sum();
        assert_eq!(refunded, 3);
        assert_eq!(used(limiter, "p").await, 5);
    })
    .await;
}

#[tokio::test]
async fn decisions_of_an_admission_refund_only_what_the_admission_has_not() {
    on_each_strategy(async |_, _, limiter| {
        assert_eq!(limiter.check(KEY).times(2).await.admitted(), 2);
        let admission = limiter.admit(KEY).cost(4).await.expect("room");
        let [mut one, mut other] = [(); 2].map(|()| admission.decisions().remove(0));
        assert_eq!(refund(&mut one, 1).await, 1);
        refund_of(&admission, 2).await;
        assert_eq!(used(limiter, "p").await, 3);
        assert_eq!(refund(&mut other, 4).await, 1);
        refund_of(&admission, 4).await;
        assert_eq!(refund(&mut one, 4).await, 0);
        assert_eq!(used(limiter, "p").await, 2);
    })
    .await;
}

#[tokio::test]
async fn a_response_does_not_refund_again_what_the_handler_refunded() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let _case = Case(format!("{strategy:?}"));
            let policy = together(strategy, "p", "10/min").cost(4);
            let layer = world.layer([policy.refund_unless(|_| false)]);
            forget(&layer).await;
            let charged = layer.limiter().check(KEY).cost(5).await;
            assert!(admitted_by_store(&charged));
            let refunds = async |admission: Admission| {
                assert_eq!(refund(&mut admission.decisions()[0], 3).await, 3);
            };
            let response = serve(&layer, 200, refunds).await;
            read(response).await.expect("a body");
            assert_eq!(used(layer.limiter(), "p").await, 5);
        }
    }
}

#[tokio::test]
async fn refunds_name_their_policies() {
    for world in World::both() {
        let tokens = even("tokens", "100/min").cost(40);
        let shadow = even("shadow", "100/min").shadow();
        let limiter = world.limiter([window("requests", "10/min"), shadow, tokens]);
        let named = |refunds: Result<Vec<Refund>, StoreError>| -> Vec<_> {
            let refunds = refunds.expect("a response").into_iter();
            let named = refunds.map(|refund| format!("{}: {}", refund.policy(), refund.units()));
            named.collect()
        };
        let mut decision = limiter.check(KEY).await;
        let refunded = named(decision.refund(15).await);
        assert_eq!(refunded, ["requests: 1", "tokens: 15"]);
        assert_eq!(used(&limiter, "shadow").await, 0);
        let admission = decision.into_result().expect("room");
        let tokens = admission.policy("tokens").expect("a policy");
        assert_eq!(named(tokens.refund(5).await), ["tokens: 5"]);
        assert_eq!(named(tokens.refund(50).await), ["tokens: 20"]);
        let unknown = admission.policy("absent").expect_err("no such policy");
        assert_eq!(unknown.name(), "absent");
        assert_eq!(unknown.known(), ["requests", "tokens", "shadow"]);
    }
}

/// Where the charge, or the window that it opened, is distinguished from those that came after.
#[tokio::test]
async fn a_refund_of_a_charge_before_a_reset_takes_nothing_from_later_charges() {
    let reset = "10/h, cost 5: true, +10ms, reset, charge 5, refund 5: 0, used: 5";
    play("fixed list log", reset).await;
}
