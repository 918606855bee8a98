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
    seen.left("abuse")
}

/// The policies that reject.
fn rejecting(rejected: &Rejected) -> Vec<&str> {
    let policies = rejected.decision().policies();
    let rejecting = policies.filter(PolicyDecision::rejected);
    rejecting.map(|policy| policy.policy()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_admitted_or_dropped_was_never_rejected() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1"), abuse()]);
    let waiters: Vec<_> = (0..20).map(|_| wait(&limiter).into_future()).collect();
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    assert_eq!(time.passed(), ms(19_000));
    for _ in 0..5 {
        drop(queued(wait(&limiter)));
    }
    assert_eq!(rejections_left(&limiter).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_rejected_is_counted_once_and_has_the_wait_of_the_ban() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1"), abuse()]);
    let _ = at_once(wait(&limiter));
    let mut head = queued(wait(&limiter));
    advance(400).await;
    // Behind another waiter, whose calls include it.
    let late = limiter.wait(KEY, ms(500)).await;
    let late = late.expect_err("too late");
    assert_eq!(late.retry_after(), RetryAfter::In(ms(600)));
    assert_eq!(rejections_left(&limiter).await, 1);

    let crowded = wait(&limiter).queue(1).await.expect_err("it is full");
    assert_eq!(crowded.retry_after(), RetryAfter::In(TEN_MINUTES));
    assert_eq!(rejecting(&crowded), ["p", "abuse"]);
    // The waiter is banned with it, and waits for that too.
    still_waits(&mut head);
    let _ = head.await.expect("a turn");
    assert_eq!(time.passed(), ms(400) + TEN_MINUTES);
    // However often it has retried: waiting for a permit polls the store again and again.
    let policies = [policy("p", "1/hour burst 1"), permits(1), abuse()];
    let (limiter, _) = self::limiter(policies);
    let _held = at_once(wait(&limiter));
    let _ = limiter.reset([("p", KEY)]).await.expect("a response");
    let late = queued(limiter.wait(KEY, secs(5))).await;
    late.expect_err("it is held");
    assert_eq!(rejections_left(&limiter).await, 1);
    // By the quota of its call.
    let strict = Quota::requests(1).per_hour();
    let policies = [policy("p", "1/hour burst 1"), abuse().tier_quotas([strict])];
    let (limiter, _) = self::limiter(policies);
    let _ = at_once(wait(&limiter));
    let late = limiter.wait(KEY, ms(500)).quota_for("abuse", strict).await;
    assert_eq!(rejecting(&late.expect_err("too late")), ["p", "abuse"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_waits_until_the_end_of_a_ban_also_if_that_is_prolonged_meanwhile() {
    let (limiter, time) = limiter([window("p", "5/s"), abuse()]);
    let prolong = async |time| {
        let prolonged = limiter.prolong_block(KEY, ms(time)).await;
        prolonged.expect("a ban");
    };
    prolong(1_000).await;
    // It is rejected at once if that is too late.
    let wait = rejected_at_once(limiter.wait(KEY, ms(999)));
    assert_eq!(wait, RetryAfter::In(secs(1)));
    let mut waiter = queued(self::wait(&limiter));
    advance(400).await;
    prolong(3_000).await;
    prolong(100).await;
    still_waits(&mut waiter);
    let _ = waiter.await.expect("a turn");
    assert_eq!(time.passed(), ms(3_400));
    assert_eq!(rejections_left(&limiter).await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_unblocked_or_reset_waiter_is_admitted_at_once_and_the_old_ban_is_gone() {
    for lifts in ["unblock", "reset"] {
        let (limiter, time) = limiter([window("p", "2/hour"), abuse()]);
        limiter.block(KEY, TEN_MINUTES).await.expect("a ban");
        let mut waiter = queued(wait(&limiter));
        // Another key is no concern of it.
        let other = limiter.unblock([("abuse", Key::new("other"))]).await;
        other.expect("a response");
        let calls = time.calls();
        still_waits(&mut waiter);
        assert_eq!(time.calls(), calls);
        let lifted = match lifts {
            "unblock" => limiter.unblock(KEY).await,
            _ => limiter.reset([("abuse", KEY)]).await,
        };
        lifted.expect("a response");
        // No result has the ban any more, however short the timeout.
        let behind = queued(limiter.wait(KEY, ms(0)));
        let _ = (admitted(waiter), admitted(behind));
        assert_eq!(time.passed(), ms(0), "{lifts}");
    }
    let (limiter, time) = limiter([window("p", "2/hour"), abuse()]);
    let _ = at_once(wait(&limiter).cost(2));
    let waiter = queued(wait(&limiter));
    let _ = limiter.reset([("p", KEY)]).await.expect("a response");
    let _ = waiter.await.expect("a turn");
    assert_eq!(time.passed(), ms(0));
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
    assert_eq!(server.immortal_keys(), [""; 0]);
}
