//! What a handler charges and refunds by itself.

use std::fmt::Debug;

use tollgate_tests::{prelude::*, script::play};

use crate::charging::support::*;

/// Settles at each of these true costs, which are then what is charged.
fn settled(true_costs: &[u64]) -> String {
    let steps = true_costs.iter();
    let steps =
        steps.map(|units| format!("settle {units}, used: {units}, remaining: {}", 10 - units));
    steps.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn a_true_cost_above_and_below_the_estimate_is_what_is_charged() {
    let settled = settled(&[7, 2, 2, 9, 9, 0, 1, 10]);
    play("all", &format!("10/min, admit 4, {settled}, send 1: 0")).await;
}

#[tokio::test]
async fn a_charge_past_the_capacity_is_a_debt_of_at_most_one_capacity() {
    on_each_strategy(async |world, _, limiter| {
        let admission = limiter.admit(KEY).await.expect("room");
        settle(&admission, 1_000_000).await;
        let (wait, reset) = waits(limiter, "p").await;
        assert!(wait > Duration::ZERO);
        // Two periods pay twice the capacity back, whatever counts it.
        assert!(reset <= secs(120), "{reset:?}");
        charge(&admission, 1_000_000).await;
        settle(&admission, 2_000_000).await;
        assert_eq!(waits(limiter, "p").await, (wait, reset));
        // The wait is exact.
        world.advance(wait - ms(1));
        assert!(!admitted_by_store(&limiter.check(KEY).await));
        world.advance(ms(1));
        if !admitted_by_store(&limiter.check(KEY).await) {
            // A key on Redis lasts to the end of its millisecond.
            world.advance(ms(1));
            assert!(admitted_by_store(&limiter.check(KEY).await));
        }
        world.no_key_is_immortal();
    })
    .await;
}

#[tokio::test]
async fn a_debt_is_waited_for_at_an_even_rate() {
    let debt =
        "10/min, admit 1, settle 15, wait: 36s, full: 90s, settle 500, wait: 66s, full: 120s";
    // What was charged of it is refunded, not what was requested.
    play("even", &format!("{debt}, settle 3, used: 3")).await;
}

#[tokio::test]
async fn nothing_is_refunded_twice() {
    let once =
        "10/min, times 5: 5, admit 1, return 0, used: 6, return 1, used: 5, return 1, used: 5";
    let charged = "return 100, used: 5, add 3, return 2, used: 6, return 2, used: 5";
    let twice = "return 2, used: 5, return 100, used: 5, settle 0, used: 5";
    play("all", &format!("{once}, {charged}, {twice}")).await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_half_way_is_made_once() {
    // It is sent, and refunds the last charge.
    let refunded = "10/min, admit 4, add 3, return 7 cancelled, return 7, used: 0";
    play("all", refunded).await;
    let settled = "settle 7, used: 7, settle 8, used: 8, settle 5, used: 5";
    let charged = format!("10/min, admit 4, add 3 cancelled, used: 7, {settled}");
    play("all", &charged).await;
}

#[tokio::test]
async fn concurrent_refunds_and_settlements_count_once() {
    async fn all_done<E: Debug>(calls: impl Iterator<Item = impl Future<Output = Result<(), E>>>) {
        let done: Result<Vec<()>, E> = join_all(calls).await.into_iter().collect();
        done.expect("responses");
    }
    for world in World::both() {
        let limiter = world.limiter([window("p", "10/min").cost(2)]);
        let admission = limiter.admit(KEY).await.expect("room");
        assert_eq!(limiter.check(KEY).times(2).await.admitted(), 2);
        let policy = admission.policy("p").expect("a policy");
        all_done((0..8).map(|_| policy.refund(2).map(|refunds| refunds.map(drop)))).await;
        assert_eq!(used(&limiter, "p").await, 4);
        all_done((0..3).map(|_| policy.settle(3))).await;
        assert_eq!(used(&limiter, "p").await, 7);
    }
}

#[tokio::test]
async fn a_refund_never_lands_in_a_later_window() {
    let next = "10/min, admit 5, +61s, cost 5: true, return 3, used: 5, settle 0, used: 5";
    play("fixed calendar list log", next).await;
    let late = "10/min, admit 5, +121s, settle 3, used: 0, settle 5, used: 0, settle 0, used: 0";
    // Units whose refund was too late are not charged again.
    let again = "settle 4, used: 0, settle 6, used: 1";
    play("all", &format!("{late}, {again}")).await;
    // A true cost that is known in a later window charges only the difference.
    play("fixed", "10/min, admit 5, +61s, settle 8, used: 3").await;
}

#[tokio::test]
async fn one_policy_is_settled_alone() {
    for world in World::both() {
        let limiter = world.limiter([window("requests", "10/min"), even("tokens", "100/min")]);
        let both_used = || all_used(&limiter, ["requests", "tokens"]);
        let admission = limiter.check(KEY).await.into_result().expect("room");
        let tokens = admission.policy("tokens").expect("a policy");
        tokens.settle(40).await.expect("a response");
        assert_eq!(both_used().await, [1, 40]);
        tokens.refund(15).await.expect("a response");
        tokens.charge(5).await.expect("a response");
        assert_eq!(both_used().await, [1, 30]);
        let unknown = admission.policy("absent").expect_err("no such policy");
        let expected = r#"no policy "absent"; expected one of ["requests", "tokens"]"#;
        assert_eq!(unknown.to_string(), expected);
        settle_each(&admission, &[("tokens", 2), ("requests", 2)]).await;
        assert_eq!(both_used().await, [2, 2]);
    }
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
