//! Bans, which count rejections: waiting is none.

use tollgate_tests::{prelude::*, until::TEST_TIMEOUT};

use crate::outgoing::{
    redis::{on, server},
    script::play,
    support::*,
};

const TEN_MINUTES: Duration = secs(600);

/// Two rejections an hour are too many.
fn abuse() -> Policy {
    policy("abuse", "2/hour").strategy(Ban::for_duration(TEN_MINUTES))
}

async fn rejections_left(limiter: &Limiter) -> u64 {
    let seen = limiter.peek([("abuse", KEY)]).await.expect("a response");
    seen.left("abuse")
}

/// The policies that reject.
fn rejecting(rejected: &Rejected) -> Vec<&str> {
    let policies = rejected.decision().policies();
    let rejecting = policies.filter(PolicyDecision::rejected);
    rejecting.map(|policy| policy.policy()).collect()
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
    assert_eq!(rejecting(&crowded), ["p", "abuse"]);
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
    assert_eq!(rejecting(&late), ["p", "abuse"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_counted_once_at_its_deadline_however_often_it_retried_and_waits_for_a_ban() {
    // Waiting for a permit polls the store again and again.
    let policies = [policy("p", "1/hour burst 1"), permits(1), abuse()];
    let script =
        "send held: admitted, reset p, send a for 5s: waits, await a: rejected, left abuse: 1";
    play(limiter(policies), script).await;
    for script in [
        // Until the ban ends, or it is rejected at once.
        "block 600s, send a for 599999ms: rejected 600000ms, passed: 0ms, send b: waits, \
         await b: admitted, passed: 600s, left p: 4, left abuse: 2",
        // Its cost may exceed the quota of the ban.
        "send a cost 5: admitted, send b cost 5: waits, await b: admitted, passed: 1s, left abuse: 2",
    ] {
        play(limiter([window("p", "5/s"), abuse()]), script).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_waits_until_the_end_of_a_ban_that_was_prolonged_meanwhile() {
    let script = "prolong 1s, send a: waits, +400ms, prolong 3s, prolong 100ms, poll a: waits, \
                  await a: admitted, passed: 3400ms";
    play(limiter([window("p", "5/s"), abuse()]), script).await;
}

#[tokio::test]
async fn on_redis_a_waiter_sees_a_ban_that_another_process_prolongs() {
    let (clock, server) = server();
    let process = || on(&server, [window("p", "5/s"), abuse()]);
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
    for script in [
        // Another key is no concern of it. No result has the ban any more, however short the timeout.
        "block 600s, send a: waits, unblock other, calls, poll a: waits, calls: 0, unblock, \
         send b for 0ms: waits, poll a: admitted, poll b: admitted, passed: 0ms",
        "block 600s, send a: waits, calls, poll a: waits, calls: 0, reset abuse, \
         send b for 0ms: waits, poll a: admitted, poll b: admitted, passed: 0ms",
        "send all cost 2: admitted, send a: waits, reset p, await a: admitted, passed: 0ms",
    ] {
        play(limiter([window("p", "2/hour"), abuse()]), script).await;
    }
}

#[tokio::test]
async fn on_redis_a_waiters_retries_are_not_counted_by_a_ban() {
    let (clock, server) = server();
    let limiter = on(&server, [window("p", "2/300ms"), abuse()]);
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
