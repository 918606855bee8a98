//! Waiters that are admitted together: as many as there is room for.

use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

#[tokio::test(start_paused = true)]
async fn as_many_waiters_are_admitted_together_as_there_is_room_for() {
    let (limiter, time) = limiter([window("p", "3/s")]);
    let waiters = (0..8).map(|_| wait(&limiter).into_future());
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    assert_eq!(time.passed(), ms(2_000));
    // One for each, and two of the fourth that find no room.
    assert!(time.calls() <= 10, "{}", time.calls());
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
async fn a_waiter_that_is_dropped_when_it_could_be_admitted_makes_way() {
    let (limiter, time) = limiter([window("p", "3/s")]);
    let _ = at_once(wait(&limiter).cost(3));
    let [first, dropped, third, mut last] = [(); 4].map(|()| queued(wait(&limiter)));
    advance(1_000).await;
    // There is room for two more, of which one is never polled again: so there is a unit for the last.
    let _ = admitted(first);
    still_waits(&mut last);
    drop(dropped);
    let _ = (admitted(third), admitted(last));
    assert_eq!((time.passed(), left(&limiter, "p").await), (secs(1), 0));
}
