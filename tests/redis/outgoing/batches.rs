//! Waiters that are admitted by one call.

use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

#[tokio::test(start_paused = true)]
async fn one_call_admits_as_many_waiters_as_there_is_room_for() {
    let (limiter, time) = limiter([policy("p", "3/s").strategy(FixedWindow)]);
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
    let turns = join_all(waiters).await;
    let admissions: Vec<_> = turns
        .into_iter()
        .map(|turn| turn.expect("a turn"))
        .collect();
    let shown = admissions.iter().map(|a| {
        let decision = &a.decisions()[0];
        assert_eq!(decision.admitted(), 1);
        let verdict = decision.policy("p").expect("its policy");
        (
            verdict.remaining(),
            verdict.retry_after() == RetryAfter::Now,
        )
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [(6, true), (3, true), (0, false)],
        "as if they had come one after the other"
    );
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
    let (limiter, time) = limiter([policy("p", "3/s").strategy(FixedWindow)]);
    let _ = wait(&limiter).cost(3).await.expect("all");
    let mut head = queued(wait(&limiter));
    let [gone, mut next, mut last] = [(); 3].map(|()| queued(wait(&limiter)));
    tokio::time::advance(ms(1_000)).await;
    let _ = poll_once(&mut head).expect("its turn").expect("admitted");
    // Three were admitted together; the second has not been polled since, and never will be.
    assert_eq!(left(&limiter, "p").await, 0);
    assert!(poll_once(&mut last).is_none());
    drop(gone);
    // So there is one for the last, which slept until the window ends.
    let _ = poll_once(&mut next).expect("its turn").expect("admitted");
    let _ = poll_once(&mut last).expect("its turn").expect("admitted");
    assert_eq!(left(&limiter, "p").await, 0);
    assert_eq!(time.passed(), ms(1_000));
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
