//! A charge whose result is not read is refunded.

use tokio::time::timeout;
use tollgate_tests::prelude::*;

use crate::store::support::*;

/// Of 400 requests every other one is dropped at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_before_its_result_costs_nothing_and_affects_no_other_result() {
    let (_clock, server) = on_a_clock();
    for strategy in EACH {
        let limiter = single(&server, strategy, "1000/month");
        let tasks = (0..400).map(|client| {
            let check = limiter.check("key").into_future();
            tokio::spawn(async move {
                if client % 2 == 0 {
                    return admitted_by_store(&check.await);
                }
                let decision = timeout(Duration::ZERO, check).await;
                decision.is_ok_and(|decision| admitted_by_store(&decision))
            })
        });
        let answered = all(tasks).await.into_iter();
        let read = answered.filter(|is_answered| *is_answered).count() as u64;
        assert!(read >= 200, "{read} were answered");
        until_used(&limiter, "key", [read]).await;
    }
}

/// The result is there, and is not read.
#[tokio::test]
async fn a_check_of_several_requests_dropped_after_its_result_arrived_costs_nothing() {
    let (_clock, server) = on_a_clock();
    for strategy in EACH {
        let limiter = single(&server, strategy, "1000/month");
        let mut several = limiter.check("key").cost(3).times(5).into_future();
        assert!((&mut several).now_or_never().is_none());
        // Results come in the order of the requests.
        assert!(admitted_by_store(&limiter.check("key").await));
        assert_eq!(used(&limiter, "key").await, [16], "{strategy:?}");
        drop(several);
        until_used(&limiter, "key", [1]).await;
    }
}

/// Nothing else holds the limiter and its store.
#[tokio::test]
async fn a_dropped_request_that_was_the_last_owner_of_its_limiter_costs_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let other = single(&server, StrategyKind::Fixed, "1000/month");
    for is_answered in [false, true] {
        let policy = StrategyKind::Fixed.policy("p", "1000/month");
        let limiter = limiter(store_at(format!("redis://{}", proxy.addr())), [policy]);
        assert_eq!(used(&limiter, "key").await, [0]);
        if !is_answered {
            proxy.delay(ms(200));
        }
        let mut left = limiter.check("key").into_future();
        drop(limiter);
        assert!((&mut left).now_or_never().is_none());
        until_used(&other, "key", [1]).await;
        drop(left);
        proxy.pass();
        until_used(&other, "key", [0]).await;
    }
}
