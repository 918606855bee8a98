//! Shadows, which no request waits for: each request is compared once.

use tollgate_tests::{prelude::*, until::TEST_TIMEOUT};

use crate::outgoing::{
    redis::{on, server},
    support::*,
};

/// How often a shadow was evaluated, and would have been stricter and looser.
fn stats(limiter: &Limiter, name: &str) -> (u64, u64, u64) {
    let stats = limiter.shadow_stats(name).expect(name);
    (stats.evaluated, stats.stricter, stats.looser)
}

async fn used(limiter: &Limiter, policy: &str) -> u64 {
    let seen = limiter.peek(KEY).await.expect("a response");
    seen.used(policy)
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_compared_and_charged_once_when_it_is_admitted() {
    let (limiter, time) = limiter([
        policy("live", "1/s burst 1"),
        window("looser", "50/hour").shadow_of("live"),
        window("beside", "50/hour").shadow(),
    ]);
    let waiters: Vec<_> = (0..10).map(|_| wait(&limiter).into_future()).collect();
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    assert_eq!(time.passed(), ms(9_000));
    for name in ["looser", "beside"] {
        assert_eq!(stats(&limiter, name), (10, 0, 0), "{name}");
        assert_eq!(used(&limiter, name).await, 10, "{name}");
    }
    // A dropped waiter is not compared.
    drop(queued(wait(&limiter)));
    assert_eq!(stats(&limiter, "looser"), (10, 0, 0));
    assert_eq!(used(&limiter, "looser").await, 10);
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_for_a_shadow() {
    let (limiter, time) = limiter([
        window("live", "2/s"),
        window("stricter", "1/hour").shadow_of("live"),
        permits(1).shadow(),
    ]);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(wait(&limiter).await.expect("a turn"));
    }
    assert_eq!(time.passed(), ms(1_000));
    assert_eq!(stats(&limiter, "stricter"), (3, 2, 0));
    assert_eq!(stats(&limiter, "permits"), (3, 2, 0));
    // Nor is a request rejected since it would never admit it.
    let _ = wait(&limiter).cost(2).await.expect("a turn");
    assert_eq!(time.passed(), ms(2_000));
    assert_eq!(stats(&limiter, "stricter"), (4, 3, 0));
    // The next one has to wait for a second and no more, as its result reports.
    let rejected = limiter.wait(KEY, ms(999)).await;
    let rejected = rejected.expect_err("too late");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(1_000)));
    assert_eq!(time.passed(), ms(2_000));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_waiter_is_compared_once_with_the_state_at_its_rejection() {
    let (limiter, _) = limiter([
        window("live", "1/hour"),
        window("looser", "3/hour").shadow_of("live"),
        window("stricter", "1/hour").shadow(),
    ]);
    let _ = wait(&limiter).await.expect("the first");
    let _head = queued(wait(&limiter));
    for _ in 0..4 {
        let rejected = limiter.wait(KEY, ms(5_000)).await;
        rejected.expect_err("too late");
    }
    // It would have admitted two of them, so it charges them.
    assert_eq!(used(&limiter, "looser").await, 3);
    assert_eq!(stats(&limiter, "stricter"), (5, 0, 0));
    assert_eq!(stats(&limiter, "looser"), (5, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn waiters_admitted_together_are_each_compared_with_the_shadow() {
    let (limiter, _) = limiter([window("live", "3/s"), window("new", "2/hour").shadow()]);
    // All of what there is, and nothing of the shadow.
    let charged = limiter.charge([("live", KEY)], 3).await;
    charged.expect("a response");
    let waiters: Vec<_> = (0..3).map(|_| queued(wait(&limiter))).collect();
    let turns = join_all(waiters).await.into_iter();
    let turns: Vec<_> = turns.map(|turn| turn.expect("a turn")).collect();
    let shown = turns.iter().map(|admission| {
        let decisions = admission.decisions();
        let shadow = decisions[0].count("new");
        (shadow.would_reject(), shadow.remaining())
    });
    let expected = [(false, 1), (false, 0), (true, 0)];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert_eq!(stats(&limiter, "new"), (3, 1, 0));
    // What it charged goes back with what it was charged for.
    for (turn, charged) in turns.iter().zip([1, 0, 0]) {
        for name in ["live", "new"] {
            let policy = turn.policy(name).expect("a policy");
            policy.refund(1).await.expect("a response");
        }
        assert_eq!(used(&limiter, "new").await, charged);
    }
    assert_eq!(left(&limiter, "live").await, 3);
}

#[tokio::test]
async fn redis_charges_no_shadow_twice() {
    let (clock, server) = server();
    let looser = window("looser", "50/hour").shadow_of("live");
    let limiter = on(&server, [window("live", "2/300ms"), looser]);
    let _ = wait(&limiter).cost(2).await.expect("all");
    let others: Vec<_> = (0..6)
        .map(|_| tokio::spawn(limiter.wait(KEY, TEST_TIMEOUT).into_future()))
        .collect();
    let sent = server.calls("evalsha");
    until("it is called again", async || {
        server.calls("evalsha") >= sent + 3
    })
    .await;
    assert_eq!(used(&limiter, "looser").await, 2);
    for (n, other) in others.into_iter().enumerate() {
        if n % 2 == 0 {
            clock.advance(ms(301));
        }
        let _ = other.await.expect("no panic").expect("a turn");
    }
    assert_eq!(used(&limiter, "looser").await, 8);
    assert_eq!(stats(&limiter, "looser"), (7, 0, 0));
}

/// A candidate is charged for a check in place of the live policy, and for a waiter only once it is rejected.
#[tokio::test]
async fn a_check_and_a_waiter_of_one_batch_charge_a_shadow_separately() {
    let (_clock, server) = server();
    let looser = window("looser", "9/hour").shadow_of("live");
    let limiter = on(&server, [window("live", "1/hour"), looser]);
    assert!(limiter.check(KEY).await.is_admitted());
    let check = limiter.check(KEY).into_future();
    let wait = limiter.wait(KEY, ms(5_000)).into_future();
    let (rejected, waited) = tokio::join!(check, wait);
    assert!(!rejected.is_admitted() && waited.is_err());
    assert_eq!(used(&limiter, "looser").await, 3);
    assert_eq!(stats(&limiter, "looser"), (3, 0, 2));
}
