//! Waiters that are rejected, and when.

use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_past_the_deadline_is_rejected_at_once_and_costs_nothing() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let hurried = limiter.wait(KEY, ms(999));
    let _ = hurried.clone().await.expect("the first");
    let rejected = hurried.clone().await.expect_err("too late");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(1_000)));
    assert_eq!(time.passed(), ms(0));
    // And to the microsecond: that is just enough.
    let _ = limiter.wait(KEY, ms(1_000)).await.expect("in time");
    assert_eq!(time.passed(), ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn a_request_behind_others_is_rejected_at_once_too() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let _ = wait(&limiter).await.expect("the first");
    let mut head = queued(wait(&limiter));
    tokio::time::advance(ms(400)).await;
    let sent = time.calls();
    let rejected = limiter.wait(KEY, ms(599)).await;
    let rejected = rejected.expect_err("too late");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(600)));
    assert_eq!(rejected.decision().source(), DecisionSource::RejectionCache);
    assert_eq!(time.calls(), sent, "the answer to the first is known");
    assert_eq!(time.passed(), ms(400));
    assert!(poll_once(&mut head).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_others_is_rejected_at_its_deadline() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let _ = wait(&limiter).await.expect("the first");
    let mut head = queued(wait(&limiter));
    let mut second = queued(limiter.wait(KEY, ms(1_500)));
    tokio::time::advance(ms(1_000)).await;
    let _ = poll_once(&mut head).expect("its turn").expect("admitted");
    // The one after that would be at two seconds, which is known now.
    let rejected = poll_once(&mut second)
        .expect("too late")
        .expect_err("rejected");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(1_000)));
    assert_eq!(time.passed(), ms(1_000));
}

/// It may be admitted earlier than the one before it, if that leaves.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_smaller_cost_is_rejected_at_its_deadline() {
    let (limiter, time) = limiter([policy("p", "1/s burst 2")]);
    let _ = wait(&limiter).cost(2).await.expect("the first");
    let mut dear = queued(wait(&limiter).cost(2));
    let cheap = queued(limiter.wait(KEY, ms(300)));
    let rejected = cheap.await.expect_err("rejected");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(1_700)));
    assert_eq!(time.passed(), ms(300));
    assert!(poll_once(&mut dear).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_rejects_at_once() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let bounded = || wait(&limiter).queue(2);
    let _ = bounded().await.expect("the first");
    let mut head = queued(bounded());
    let second = queued(bounded());
    let rejected = bounded().await.expect_err("it is full");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(1_000)));
    assert_eq!(time.passed(), ms(0));
    // A dropped waiter makes room, and so does an admitted one.
    drop(second);
    let third = queued(bounded());
    tokio::time::advance(ms(1_000)).await;
    let _ = poll_once(&mut head).expect("its turn").expect("admitted");
    let _fourth = queued(bounded());
    bounded().await.expect_err("it is full");
    drop(third);
    // Without a queue, no request waits.
    wait(&limiter).queue(0).await.expect_err("no queue");
}

#[tokio::test(start_paused = true)]
async fn without_a_queue_a_wait_is_a_check() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let _ = wait(&limiter).queue(0).await.expect("the first");
    wait(&limiter).queue(0).await.expect_err("none is left");
    limiter.wait(KEY, ms(0)).await.expect_err("no time");
    assert_eq!(time.passed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_capacity_is_rejected_at_once() {
    let (limiter, time) = limiter([policy("p", "4/s").strategy(FixedWindow)]);
    let rejected = wait(&limiter).cost(5).await.expect_err("too much");
    assert_eq!(rejected.retry_after(), RetryAfter::Never);
    let _ = wait(&limiter).cost(4).await.expect("all");
    let mut head = queued(wait(&limiter));
    // Also behind others, whose turn it doesn't take.
    wait(&limiter).cost(5).await.expect_err("too much");
    let larger = "10/s".parse().expect("a quota");
    let _larger = queued(wait(&limiter).quota_for("p", larger).cost(5));
    assert_eq!(time.passed(), ms(0));
    assert!(poll_once(&mut head).is_none());
    // And what costs nothing doesn't wait.
    let _ = wait(&limiter).cost(0).await.expect("free");
    assert_eq!(left(&limiter, "p").await, 0);
}

/// Nothing listens there.
fn no_store() -> RedisStore {
    let store = RedisStore::builder()
        .url("redis://127.0.0.1:1")
        .timeout(ms(50));
    store.build().expect("a store")
}

#[tokio::test]
async fn a_store_failure_is_no_reason_to_wait() {
    let rejecting = limiter_on(no_store(), [policy("p", "1/s")]);
    let waits = (0..20).map(|_| wait(&rejecting));
    let turns = futures_util::future::join_all(waits.map(IntoFuture::into_future)).await;
    for turn in turns {
        let rejected: Rejected = turn.expect_err("a store error");
        assert!(matches!(
            rejected.decision().kind(),
            DecisionKind::StoreFailed(_)
        ));
    }
    let admitting = Limiter::builder()
        .store(no_store())
        .policy(policy("p", "1/s"));
    let admitting = admitting.on_store_error(OnStoreError::Admit);
    let admitting = admitting.build().expect("a limiter");
    let waits = (0..20).map(|_| wait(&admitting).into_future());
    for turn in futures_util::future::join_all(waits).await {
        let admission = turn.expect("admitted");
        assert_eq!(admission.decisions()[0].source(), DecisionSource::Fallback);
    }
}
