//! First come, first served.

use tollgate_tests::prelude::*;

use crate::outgoing::support::{TEST_TIMEOUT, *};

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_and_as_soon_as_the_quota_allows() {
    let (limiter, time) = limiter([policy("p", "5/s burst 1")]);
    let arrivals = Arrivals::default();
    let waiters = (0..20).map(|who| {
        let (limiter, time, arrivals) = (limiter.clone(), time.clone(), arrivals.clone());
        tokio::spawn(async move {
            let _ = wait(&limiter).await.expect("a turn");
            arrivals.record(who, time.passed());
        })
    });
    // Spawned in order, and polled in order: the runtime has one thread.
    for ended in join_all(waiters.collect::<Vec<_>>()).await {
        ended.expect("no panic");
    }
    assert_eq!(arrivals.order(), (0..20).collect::<Vec<_>>());
    let even: Vec<_> = (0..20).map(|n| ms(200) * n).collect();
    assert_eq!(arrivals.when(), even);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_when_a_unit_refills_does_not_overtake_a_waiter() {
    let (limiter, _) = limiter([policy("p", "1/s burst 1")]);
    let _ = wait(&limiter).await.expect("the first");
    let mut first = queued(wait(&limiter));
    tokio::time::advance(ms(1_000)).await;
    // There is room now, and the first has not polled the store yet.
    assert_eq!(left(&limiter, "p").await, 1);
    let mut second = queued(wait(&limiter));
    assert_eq!(left(&limiter, "p").await, 1);
    let _ = poll_once(&mut first).expect("its turn").expect("admitted");
    assert!(poll_once(&mut second).is_none());
    assert_eq!(left(&limiter, "p").await, 0);
    tokio::time::advance(ms(1_000)).await;
    let _ = poll_once(&mut second).expect("its turn").expect("admitted");
}

#[tokio::test(start_paused = true)]
async fn only_the_first_of_a_thousand_waiters_calls_the_store() {
    let (limiter, time) = limiter([policy("p", "100/s burst 1")]);
    let waiters = (0..1_000).map(|_| wait(&limiter).into_future());
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    assert_eq!(time.passed(), ms(9_990));
    // One for each that is admitted: the units left after it give the next one its wait.
    assert!(time.calls() <= 1_001, "{}", time.calls());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_does_not_block_the_next_ones() {
    let (limiter, _) = limiter([policy("p", "1/s burst 1")]);
    let _ = wait(&limiter).await.expect("the first");
    let [head, middle] = [(); 2].map(|()| queued(wait(&limiter)));
    let mut last = queued(wait(&limiter));
    drop(middle);
    drop(head);
    assert!(poll_once(&mut last).is_none());
    tokio::time::advance(ms(1_000)).await;
    let _ = poll_once(&mut last).expect("its turn").expect("admitted");
    // The queue is closed: the next waiter is alone in a new one.
    let mut next = queued(wait(&limiter));
    tokio::time::advance(ms(1_000)).await;
    let _ = poll_once(&mut next).expect("its turn").expect("admitted");
}

#[tokio::test(start_paused = true)]
async fn the_next_waiter_uses_the_firsts_result() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let _ = wait(&limiter).await.expect("the first");
    let head = queued(wait(&limiter));
    let mut next = queued(wait(&limiter));
    let sent = time.calls();
    drop(head);
    assert!(poll_once(&mut next).is_none());
    assert_eq!(time.calls(), sent);
    let _ = next.await.expect("admitted");
    assert_eq!(time.passed(), ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_costs_more_is_not_overtaken_by_one_that_costs_less() {
    let (limiter, time) = limiter([policy("p", "4/s").strategy(FixedWindow)]);
    let _ = wait(&limiter).cost(2).await.expect("two of four");
    let mut dear = queued(wait(&limiter).cost(3));
    // Two are left, but another waiter was there before.
    let mut cheap = queued(wait(&limiter));
    assert_eq!(left(&limiter, "p").await, 2);
    tokio::time::advance(ms(1_000)).await;
    assert!(poll_once(&mut cheap).is_none());
    let _ = poll_once(&mut dear).expect("its turn").expect("admitted");
    let _ = poll_once(&mut cheap).expect("its turn").expect("admitted");
    assert_eq!(time.passed(), ms(1_000));
    assert_eq!(left(&limiter, "p").await, 0);
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_queue() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1"), policy("q", "2/s burst 2")]);
    let keys = |name: &str| [("p", Key::new(name)), ("q", KEY)];
    let _ = limiter
        .wait(keys("a"), TEST_TIMEOUT)
        .await
        .expect("the first");
    let mut same = queued(limiter.wait(keys("a"), TEST_TIMEOUT));
    let _ = limiter
        .wait(keys("b"), TEST_TIMEOUT)
        .await
        .expect("another");
    assert_eq!(time.passed(), ms(0));
    // However they are put, they are the same keys.
    let [p, q] = keys("a");
    let mut reversed = queued(limiter.wait([q, p], TEST_TIMEOUT));
    tokio::time::advance(ms(1_000)).await;
    assert!(poll_once(&mut reversed).is_none());
    let _ = poll_once(&mut same).expect("its turn").expect("admitted");
}

#[tokio::test(start_paused = true)]
async fn several_policies_are_waited_for_together_and_charged_together() {
    let policies = [policy("p", "2/s burst 2"), policy("q", "1/s burst 1")];
    let (limiter, time) = limiter(policies);
    let _ = wait(&limiter).await.expect("the first");
    let mut second = queued(wait(&limiter));
    assert_eq!(left(&limiter, "p").await, 1);
    tokio::time::advance(ms(500)).await;
    assert!(poll_once(&mut second).is_none());
    assert_eq!(left(&limiter, "p").await, 2);
    let _ = second.await.expect("admitted");
    assert_eq!(time.passed(), ms(1_000));
}
