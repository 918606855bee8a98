//! Bans, which count rejections: waiting is none.

use tollgate_tests::{prelude::*, until::TEST_TIMEOUT};

use crate::outgoing::{
    redis::{on, server},
    support::*,
};

const TEN_MINUTES: Duration = secs(600);

/// Two rejections an hour are too many.
fn abuse() -> Policy {
    policy("abuse", "2/hour").strategy(Ban::for_duration(TEN_MINUTES))
}

async fn rejections_left(limiter: &Limiter) -> u64 {
    let seen = limiter.peek([("abuse", KEY)]).await.expect("a response");
    seen.policy("abuse").expect("its policy").remaining()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_admitted_was_never_rejected() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1"), abuse()]);
    let waiters: Vec<_> = (0..20).map(|_| wait(&limiter).into_future()).collect();
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    assert_eq!(time.passed(), ms(19_000));
    assert_eq!(rejections_left(&limiter).await, 2);
    // Nor was a dropped one.
    for _ in 0..5 {
        drop(queued(wait(&limiter)));
    }
    assert_eq!(rejections_left(&limiter).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_rejected_is_counted_once_and_has_the_wait_of_the_ban() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1"), abuse()]);
    let _ = wait(&limiter).await.expect("the first");
    let mut head = queued(wait(&limiter));
    tokio::time::advance(ms(400)).await;
    // Behind another waiter, whose calls include it.
    let late = limiter.wait(KEY, ms(500)).await;
    let late = late.expect_err("too late");
    assert_eq!(late.retry_after(), RetryAfter::In(ms(600)));
    assert_eq!(rejections_left(&limiter).await, 1);

    let crowded = wait(&limiter).queue(1).await.expect_err("it is full");
    assert_eq!(crowded.retry_after(), RetryAfter::In(TEN_MINUTES));
    let rejected = crowded.decision().policies().filter(|v| v.rejected());
    let names: Vec<_> = rejected.map(|verdict| verdict.policy()).collect();
    assert_eq!(names, ["p", "abuse"]);
    // The waiter is banned with it, and waits for that too.
    assert!(poll_once(&mut head).is_none());
    let _ = head.await.expect("a turn");
    assert_eq!(time.passed(), ms(400) + TEN_MINUTES);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_rejected_is_counted_by_the_quota_of_its_call() {
    let strict = Quota::requests(1).per_hour();
    let (limiter, _) = limiter([policy("p", "1/hour burst 1"), abuse().tier_quotas([strict])]);
    let _ = wait(&limiter).await.expect("the first");
    let late = limiter.wait(KEY, ms(500)).quota_for("abuse", strict).await;
    let late = late.expect_err("too late");
    let rejected = late
        .decision()
        .policies()
        .filter(|policy| policy.rejected());
    let names: Vec<_> = rejected.map(|policy| policy.policy()).collect();
    assert_eq!(names, ["p", "abuse"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_ends_at_its_deadline_is_counted_once_however_often_it_retried() {
    let (limiter, _) = limiter([
        policy("p", "1/hour burst 1"),
        Policy::new("permits", Quota::concurrent(1)).key(extract::global()),
        abuse(),
    ]);
    // Waiting for a permit polls the store again and again.
    let held = wait(&limiter).await.expect("a permit");
    let _ = limiter.reset([("p", KEY)]).await.expect("a response");
    let rejected = limiter.wait(KEY, ms(5_000)).await;
    rejected.expect_err("no permit");
    assert_eq!(rejections_left(&limiter).await, 1);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_banned_waiter_waits_until_the_ban_ends_or_is_rejected_at_once() {
    let (limiter, time) = limiter([policy("p", "5/s").strategy(FixedWindow), abuse()]);
    limiter.block(KEY, TEN_MINUTES).await.expect("a ban");
    let hurried = limiter.wait(KEY, TEN_MINUTES - ms(1)).await;
    let rejected = hurried.expect_err("banned");
    assert_eq!(rejected.retry_after(), RetryAfter::In(TEN_MINUTES));
    assert_eq!(time.passed(), ms(0));
    let _ = wait(&limiter).await.expect("a turn");
    assert_eq!(time.passed(), TEN_MINUTES);
    assert_eq!(left(&limiter, "p").await, 4);
    assert_eq!(rejections_left(&limiter).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_waits_until_the_end_of_a_ban_that_was_prolonged_meanwhile() {
    let (limiter, time) = limiter([policy("p", "5/s").strategy(FixedWindow), abuse()]);
    let key = KEY;
    limiter.prolong_block(key, ms(1_000)).await.expect("a ban");
    let mut head = queued(wait(&limiter));
    tokio::time::advance(ms(400)).await;
    limiter.prolong_block(key, ms(3_000)).await.expect("a ban");
    limiter.prolong_block(key, ms(100)).await.expect("a ban");
    assert!(poll_once(&mut head).is_none());
    let _ = head.await.expect("a turn");
    assert_eq!(time.passed(), ms(3_400));
}

#[tokio::test]
async fn on_redis_a_waiter_sees_a_ban_that_another_process_prolongs() {
    let (clock, server) = server();
    let process = || on(&server, [policy("p", "5/s").strategy(FixedWindow), abuse()]);
    let (a, b) = (process(), process());
    a.prolong_block(KEY, ms(20)).await.expect("a ban");
    let waiter = tokio::spawn(wait(&a).into_future());
    until("it waits", async || a.stats().policies[0].waiters == 1).await;
    b.prolong_block(KEY, ms(60)).await.expect("a ban");
    b.prolong_block(KEY, ms(10)).await.expect("a ban");
    clock.advance(ms(59));
    let asked = server.calls("evalsha");
    until("it asks again", async || server.calls("evalsha") > asked).await;
    assert!(!waiter.is_finished());
    clock.advance(ms(1));
    let _ = waiter.await.expect("no panic").expect("a turn");
}

#[tokio::test(start_paused = true)]
async fn an_unblocked_or_reset_waiter_is_admitted_at_once_and_the_old_ban_is_gone() {
    let (limiter, time) = limiter([policy("p", "2/hour").strategy(FixedWindow), abuse()]);
    let key = KEY;
    for round in 0..2 {
        limiter.block(key, TEN_MINUTES).await.expect("a ban");
        let mut head = queued(wait(&limiter));
        // Nothing that concerns it.
        limiter
            .unblock([("abuse", Key::new("other"))])
            .await
            .expect("a response");
        let sent = time.calls();
        assert!(poll_once(&mut head).is_none());
        assert_eq!(time.calls(), sent);
        match round {
            0 => drop(limiter.unblock(key).await.expect("a response")),
            _ => drop(limiter.reset([("abuse", key)]).await.expect("a response")),
        }
        // No result has the ban any more, however short the timeout.
        let mut hurried = queued(limiter.wait(key, ms(0)));
        let _ = poll_once(&mut head).expect("its turn").expect("admitted");
        let _ = poll_once(&mut hurried)
            .expect("its turn")
            .expect("admitted");
        let _ = limiter.reset([("p", key)]).await.expect("a response");
    }
    let _ = wait(&limiter).cost(2).await.expect("all");
    let head = queued(wait(&limiter));
    let _ = limiter.reset([("p", key)]).await.expect("a response");
    let _ = head.await.expect("admitted");
    assert_eq!(time.passed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_cost_exceeds_the_quota_of_the_ban_waits_like_any_other() {
    let (limiter, time) = limiter([policy("p", "5/s").strategy(FixedWindow), abuse()]);
    let _ = wait(&limiter).cost(5).await.expect("all");
    let _ = wait(&limiter).cost(5).await.expect("a turn");
    assert_eq!(time.passed(), ms(1_000));
    assert_eq!(rejections_left(&limiter).await, 2);
}

#[tokio::test]
async fn on_redis_a_waiters_retries_are_not_counted_by_a_ban() {
    let (clock, server) = server();
    let limiter = on(
        &server,
        [policy("p", "2/300ms").strategy(FixedWindow), abuse()],
    );
    let _ = wait(&limiter).cost(2).await.expect("all");
    let others: Vec<_> = (0..10)
        .map(|_| tokio::spawn(limiter.wait(KEY, TEST_TIMEOUT).into_future()))
        .collect();
    // Each time the first of them calls the store, the others are rejected with it.
    let sent = server.calls("evalsha");
    until("it is called again", async || {
        server.calls("evalsha") >= sent + 3
    })
    .await;
    assert_eq!(rejections_left(&limiter).await, 2);
    for (n, other) in others.into_iter().enumerate() {
        if n % 2 == 0 {
            clock.advance(ms(301));
        }
        let _ = other.await.expect("no panic").expect("a turn");
    }
    assert_eq!(rejections_left(&limiter).await, 2);

    let rejected = limiter.wait(KEY, ms(0)).await;
    rejected.expect_err("no time");
    assert_eq!(rejections_left(&limiter).await, 1);
    let banned = limiter.wait(KEY, ms(0)).await;
    let banned = banned.expect_err("banned");
    assert_eq!(banned.retry_after(), RetryAfter::In(TEN_MINUTES));
    assert_eq!(server.immortal_keys(), [""; 0]);
}
