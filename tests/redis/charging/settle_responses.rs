//! What a handler has settled, and what the layers then charge, refund and show by the response.

use std::io;

use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// Sends a request to a handler that settles it at this cost before it responds; the body is not read yet.
async fn settled(layer: &RateLimitLayer, status: u16, true_cost: u64) -> LayerResponse {
    let settles = async |admission: Admission| settle(&admission, true_cost).await;
    serve(layer, status, settles).await
}

#[tokio::test]
async fn a_handler_settles_the_charges_of_all_stacked_layers() {
    for world in World::both() {
        let outer = world.layer([window("outer", "10/min")]);
        let inner = world.layer([even("inner", "10/min")]);
        let handler = service_fn(|request: Request<()>| async move {
            let admission = admission_of(&request);
            assert_eq!(admission.decisions().len(), 2);
            settle_each(&admission, &[("outer", 4), ("inner", 4)]).await;
            let outer = admission.policy("outer").expect("a policy");
            outer.charge(2).await.expect("a response");
            Ok::<_, Infallible>(text(200))
        });
        let Ok(response) = outer.layer(inner.layer(handler)).oneshot(request()).await;
        let lists = response.headers().get_all("ratelimit").iter();
        let lists: Vec<_> = lists.map(|list| list.to_str().expect("ASCII")).collect();
        assert_eq!(lists, [r#""inner";r=6;t=36"#, r#""outer";r=4;t=60"#]);
        assert_eq!(used(outer.limiter(), "outer").await, 6);
        assert_eq!(used(inner.limiter(), "inner").await, 4);
    }
}

#[tokio::test]
async fn the_response_shows_what_the_handler_settled() {
    for world in World::both() {
        for (true_cost, expected) in [
            (0, r#""p";r=10;t=60"#),
            (3, r#""p";r=7;t=42"#),
            (10, r#""p";r=0;t=6"#),
            (15, r#""p";r=0;t=36"#),
        ] {
            let layer = world.layer([even("p", "10/min")]);
            forget(&layer).await;
            let response = settled(&layer, 200, true_cost).await;
            assert_eq!(response.headers()["ratelimit"], expected);
            assert!(!response.headers().contains_key("retry-after"));
        }
    }
}

#[tokio::test]
async fn a_charge_on_response_and_a_settlement_of_the_handler_count_as_one() {
    for world in World::both() {
        let layer = world.layer([window("p", "10/min").cost(2).charge_after(outcome::success)]);
        for true_cost in [0, 1, 6] {
            forget(&layer).await;
            let response = settled(&layer, 200, true_cost).await;
            read(response).await.expect("a body");
            assert_eq!(used(layer.limiter(), "p").await, true_cost);
        }
        forget(&layer).await;
        let kept = Mutex::new(None);
        let keep = async |own| *kept.lock().expect("a lock") = Some(own);
        read(serve(&layer, 200, keep).await).await.expect("a body");
        let admission = kept.into_inner().expect("a lock").expect("an admission");
        // At once, while the response's charge may still be on its way: less than that, then more, then nothing.
        for true_cost in [1, 5, 0] {
            settle(&admission, true_cost).await;
            assert_eq!(used(layer.limiter(), "p").await, true_cost);
        }
    }
}

#[tokio::test]
async fn a_meter_that_is_dropped_after_the_response_settles_its_charge_under_each_policy() {
    for world in World::both() {
        let after = |name| {
            window(name, "10/min")
                .cost(5)
                .charge_after(outcome::success)
        };
        let layer = world.layer([after("calls"), after("p")]);
        let kept = Mutex::new(None);
        let keep = async |own| *kept.lock().expect("a lock") = Some(own);
        read(serve(&layer, 200, keep).await).await.expect("a body");
        let admission = kept.into_inner().expect("a lock").expect("an admission");
        // The charges by the response may still be on their way.
        let mut meter = admission.policy("p").expect("a policy").meter();
        meter.set(2);
        drop(meter);
        until("the meter is settled", async || {
            all_used(layer.limiter(), ["calls", "p"]).await == [5, 2]
        })
        .await;
    }
}

#[tokio::test]
async fn a_response_does_not_refund_again_what_the_handler_refunded() {
    for world in World::both() {
        let policy = window("p", "10/min").cost(4);
        let layer = world.layer([policy.refund_unless(|_| false)]);
        let charged = layer.limiter().check(KEY).cost(5).await;
        assert!(admitted_by_store(&charged));
        let refunds = async |admission: Admission| {
            let refunds = admission.refund(3).await;
            assert_eq!(refunds.expect("a response")[0].units(), 3);
        };
        let response = serve(&layer, 200, refunds).await;
        read(response).await.expect("a body");
        assert_eq!(used(layer.limiter(), "p").await, 5);
    }
}

#[tokio::test]
async fn a_response_does_not_charge_again_what_a_dropped_handler_was_charging() {
    for world in World::both() {
        let layer = world.layer([window("p", "10/min").cost(2).charge_after(outcome::success)]);
        let charges = async |admission: Admission| {
            charge(&admission, 3).await;
            std::future::pending::<()>().await;
        };
        let mut answering = Box::pin(serve(&layer, 200, charges));
        // The client hangs up while it is being charged.
        while used(layer.limiter(), "p").await == 0 {
            assert!(answering.as_mut().now_or_never().is_none());
        }
        drop(answering);
        assert_eq!(used(layer.limiter(), "p").await, 3);
    }
}

/// A policy that charges 4 units after the response.
fn after(name: &str) -> Policy {
    window(name, "99/min").cost(4).charge_after(|_| true)
}

#[tokio::test]
async fn a_response_does_not_charge_what_a_meter_settles_after_another_meter() {
    for world in World::both() {
        let layer = world.layer([after("calls"), after("p")]);
        let meters = async |admission: Admission| {
            for policy in ["calls", "p"] {
                let mut meter = admission.policy(policy).expect("a policy").meter();
                meter.add(1);
            }
        };
        read(serve(&layer, 200, meters).await)
            .await
            .expect("a body");
        until("both meters are settled", async || {
            all_used(layer.limiter(), ["calls", "p"]).await == [1, 1]
        })
        .await;
    }
}

#[tokio::test]
async fn a_response_does_not_charge_what_a_settlement_waits_to_settle() {
    for world in World::both() {
        let layer = world.layer([after("calls"), after("p")]);
        let kept = Mutex::new(None);
        let keep = async |own| *kept.lock().expect("a lock") = Some(own);
        let response = serve(&layer, 200, keep).await;
        let admission = kept.into_inner().expect("a lock").expect("an admission");
        let [calls, p] = ["calls", "p"].map(|name| admission.policy(name).expect("a policy"));
        let mut settlements = Box::pin(join_all([calls.settle(1), p.settle(1)]));
        let settled = settlements.as_mut().now_or_never();
        read(response).await.expect("a body");
        if settled.is_none() {
            settlements.await;
        }
        assert_eq!(all_used(layer.limiter(), ["calls", "p"]).await, [1, 1]);
    }
}

#[tokio::test]
async fn a_rejection_by_the_handler_refunds_what_its_meter_is_charging() {
    for world in World::both() {
        let layer = world.layer([window("p", "99/min").cost(4)]);
        let layer = layer.refund_handler_rejections(true);
        let full = world.limiter([window("full", "1/min")]);
        assert!(admitted_by_store(&full.check(KEY).await));
        let handler = async |request: Request<()>| {
            let mut meter = admission_of(&request)
                .policy("p")
                .expect("a policy")
                .meter();
            meter.add(20);
            let rejected = full.admit(KEY).await.expect_err("it is full");
            let response = rejected.into_response();
            Ok::<_, Infallible>(response.map(|body| body.map_err(io::Error::other).boxed_unsync()))
        };
        let handler = &handler;
        let Ok(response) = call(&layer, request(), handler).await;
        read(response).await.expect("a body");
        until("the meter's charge is refunded", async || {
            used(layer.limiter(), "p").await == 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_meter_is_settled_behind_a_charge_that_is_dropped_before_its_turn() {
    for world in World::both() {
        let limiter = world.limiter([window("calls", "99/min"), window("p", "99/min")]);
        let admission = limiter.admit(KEY).await.expect("room");
        let calls = admission.policy("calls").expect("a policy");
        let mut charges = [1, 2].map(|units| Box::pin(calls.charge(units)));
        for charge in &mut charges {
            let _ = charge.as_mut().now_or_never();
        }
        let mut meter = admission.policy("p").expect("a policy").meter();
        meter.add(9);
        drop(meter);
        // The first has the turn, and the second is the next.
        charges.into_iter().for_each(drop);
        until("the meter is settled", async || {
            used(&limiter, "p").await == 9
        })
        .await;
    }
}

#[tokio::test]
async fn a_settlement_after_a_dropped_meter_counts_also_if_both_wait_for_their_turn() {
    for world in World::both() {
        let limiter = world.limiter([window("calls", "99/min"), window("p", "99/min")]);
        let admission = limiter.admit(KEY).await.expect("room");
        let [calls, p] = ["calls", "p"].map(|name| admission.policy(name).expect("a policy"));
        let mut charge = Box::pin(calls.charge(1));
        let charged = charge.as_mut().now_or_never();
        let mut meter = p.clone().meter();
        meter.add(9);
        drop(meter);
        let mut settlement = Box::pin(p.settle(3));
        let settled = settlement.as_mut().now_or_never();
        if charged.is_none() {
            charge.await.expect("a response");
        }
        if settled.is_none() {
            settlement.await.expect("a response");
        }
        assert_eq!(used(&limiter, "p").await, 3);
    }
}
