//! Waiters that are admitted by one call.

use tollgate_tests::prelude::*;

use crate::outgoing::{script::play, support::*};

#[tokio::test(start_paused = true)]
async fn one_call_admits_as_many_waiters_as_there_is_room_for() {
    let (limiter, time) = limiter([window("p", "3/s")]);
    let waiters = (0..8).map(|_| wait(&limiter).into_future());
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    assert_eq!(time.passed(), ms(2_000));
    // One for each of the three that find room as they come, one that finds none, then one for three and one for two.
    assert!(time.calls() <= 6, "{}", time.calls());
    assert_eq!(left(&limiter, "p").await, 1);
}

#[tokio::test(start_paused = true)]
async fn waiters_admitted_together_have_separate_charges() {
    let (limiter, _) = limiter([policy("p", "9/s").strategy(SlidingLog)]);
    let _ = wait(&limiter).cost(9).await.expect("all");
    let waiters: Vec<_> = (0..3).map(|_| queued(wait(&limiter).cost(3))).collect();
    let turns = join_all(waiters).await.into_iter();
    let admissions: Vec<_> = turns.map(|turn| turn.expect("a turn")).collect();
    let shown = admissions.iter().map(|a| {
        let decision = &a.decisions()[0];
        let has_room = decision.count("p").retry_after() == RetryAfter::Now;
        (decision.admitted(), decision.left("p"), has_room)
    });
    // As if they had come one after the other.
    let expected = [(1, 6, true), (1, 3, true), (1, 0, false)];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    // No admission can refund another's charge.
    let of = |admission: &Admission| admission.policy("p").expect("a policy");
    of(&admissions[1]).refund(100).await.expect("a response");
    assert_eq!(left(&limiter, "p").await, 3);
    of(&admissions[1]).refund(100).await.expect("a response");
    assert_eq!(left(&limiter, "p").await, 3);
    of(&admissions[0]).settle(1).await.expect("a response");
    assert_eq!(left(&limiter, "p").await, 5);
    of(&admissions[2]).settle(4).await.expect("a response");
    assert_eq!(left(&limiter, "p").await, 4);
}

#[tokio::test(start_paused = true)]
async fn the_charge_of_a_dropped_waiter_is_refunded() {
    // Three are admitted together, of which one is never polled again: so there is a unit for the last, which slept until the window
    // ends.
    let script = "send first cost 3: admitted, send a: waits, send gone: waits, send b: waits, send c: waits, \
                  +1s, poll a: admitted, left p: 0, poll c: waits, drop gone, poll b: admitted, \
                  poll c: admitted, left p: 0, passed: 1s";
    play(limiter([window("p", "3/s")]), script).await;
}

/// Each waiter with a request of its own is recorded as the caller that the policy finds there.
#[tokio::test(start_paused = true)]
async fn waiters_admitted_together_are_recorded_as_separate_callers() {
    let list = policy("p", "3/s").strategy(ListWindow);
    let (limiter, _) = limiter([list.caller(extract::header("x-user"))]);
    let _ = wait(&limiter).cost(3).await.expect("all");
    let users = ["alice", "bob", "alice"];
    let waiters = users.map(|user| {
        let request = http::Request::get("/").header("x-user", user);
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        queued(wait(&limiter).parts(&parts))
    });
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    let policy = limiter.policy("p").expect("a policy");
    let callers = policy.callers(KEY).await.expect("callers");
    assert_eq!(callers, users.map(Key::new));
}

#[tokio::test(start_paused = true)]
async fn with_charged_rejections_only_the_first_waiter_is_rejected() {
    let counts = policy("p", "4/s burst 4").charge_rejected(true);
    let (limiter, time) = limiter([counts]);
    let _ = wait(&limiter).cost(4).await.expect("all");
    let waiters = (0..4).map(|_| wait(&limiter).into_future());
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    // Each is rejected once before it is admitted, so it costs two: 500 ms.
    assert_eq!(time.passed(), ms(2_000));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_charges_by_outcome_is_only_checked() {
    let failures = policy("p", "2/s").charge_after(outcome::failure);
    let (limiter, time) = limiter([failures.strategy(FixedWindow)]);
    let _ = limiter.charge(KEY, 2).await.expect("a response");
    let waiters: Vec<_> = (0..5).map(|_| queued(wait(&limiter))).collect();
    for turn in join_all(waiters).await {
        let admission = turn.expect("a turn");
        assert_eq!(admission.remaining("p"), Some(2));
    }
    assert_eq!(time.passed(), ms(1_000));
}
