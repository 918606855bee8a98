//! A charge whose result is not read is refunded.

use tokio::{task::JoinHandle, time::timeout};
use tollgate_tests::prelude::*;

use crate::store::support::*;

/// Sends 400 requests, of which every other is dropped at once; returns how many had a result.
async fn half_of_them_leave(limiter: &Limiter) -> u64 {
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
    let answered = all(tasks)
        .await
        .into_iter()
        .filter(|is_answered| *is_answered);
    let read = answered.count() as u64;
    assert!(read >= 200, "{read} were answered");
    read
}

/// Time may pass before a charge is refunded. What has not refilled by then is still a whole unit, less some milliseconds of 43
/// minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_before_its_result_costs_nothing_and_affects_no_other_result() {
    let (clock, server) = on_a_clock();
    for strategy in EACH {
        let limiter = single(&server, strategy, "1000/month");
        let read = half_of_them_leave(&limiter).await;
        until_used(&limiter, "key", [read]).await;
    }
    server.flush();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(ms(1)).await;
            clock.advance(ms(1));
        }
    });
    for strategy in EACH {
        let limiter = single(&server, strategy, "1000/month");
        let read = half_of_them_leave(&limiter).await;
        until("what was not read is refunded", async || {
            let used = used(&limiter, "key").await;
            used == [read] || used == [read + 1]
        })
        .await;
    }
}

/// The result is there, and is not read.
#[tokio::test]
async fn a_request_dropped_after_its_result_arrived_costs_nothing() {
    let (_clock, server) = on_a_clock();
    for strategy in EACH {
        let limiter = single(&server, strategy, "1000/month");
        let mut left = limiter.check("key").into_future();
        assert!((&mut left).now_or_never().is_none());
        // Results come in the order of the requests.
        assert!(admitted_by_store(&limiter.check("key").await));
        assert_eq!(used(&limiter, "key").await, [2], "{strategy:?}");
        drop(left);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_while_the_script_runs_costs_nothing() {
    let (_clock, server) = on_a_clock();
    for strategy in EACH {
        let limiter = single(&server, strategy, "1000/month");
        assert_eq!(used(&limiter, "key").await, [0]);
        server.pause();
        let ask = || tokio::spawn(limiter.check("key").cost(2).into_future());
        let tasks: Vec<_> = (0..50).map(|_| (ask(), ask())).collect();
        // Some are in flight by now, some wait for the next batch.
        tokio::task::yield_now().await;
        let (gone, stay): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
        gone.iter().for_each(JoinHandle::abort);
        for task in gone {
            assert!(task.await.expect_err("it was aborted").is_cancelled());
        }
        server.resume();
        assert!(all(stay).await.iter().all(admitted_by_store));
        until_used(&limiter, "key", [100]).await;
    }
}

#[tokio::test]
async fn a_dropped_check_of_several_requests_has_all_of_them_refunded() {
    let (_clock, server) = on_a_clock();
    for strategy in EACH {
        let limiter = single(&server, strategy, "1000/month");
        let mut several = Box::pin(limiter.check("key").cost(3).times(5).into_future());
        assert!(several.as_mut().now_or_never().is_none());
        // Results come in the order of the requests.
        assert!(admitted_by_store(&limiter.check("key").await));
        assert_eq!(used(&limiter, "key").await, [16], "{strategy:?}");
        drop(several);
        until_used(&limiter, "key", [1]).await;
    }
}
