//! Requests that wait while the policies are replaced: each is decided once, in its order, under the new ones.

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;
use tollgate::limiter::Wait;
use tollgate_tests::prelude::*;

use super::*;

type Waiter = Pin<Box<dyn Future<Output = Result<Admission, Rejected>> + Send>>;

/// Joins the queue.
#[track_caller]
fn queued(wait: Wait) -> Waiter {
    let mut waiter: Waiter = Box::pin(wait.into_future());
    assert!((&mut waiter).now_or_never().is_none(), "no need to wait");
    waiter
}

#[tokio::test]
async fn waiters_keep_their_order_however_they_are_polled() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "1/h")]);
        assert!(limiter.check(KEY).await.is_admitted());
        let mut first = queued(limiter.wait(KEY, LONG));
        // Calls that come before the first rejection are in no order.
        until("the first one is rejected", async || {
            assert!((&mut first).now_or_never().is_none());
            limiter.stats().policies[0].waiters == 1
        })
        .await;
        let waiters = (1..16).map(|_| queued(limiter.wait(KEY, LONG)));
        let waiters = [first].into_iter().chain(waiters).zip(0..);
        let named = waiters.map(|(waiter, number)| {
            waiter.map(move |admission| (number, admission.expect("admitted")))
        });
        let mut waiters: Vec<_> = named.collect();
        waiters.reverse();
        let mut waiters: FuturesUnordered<_> = waiters.into_iter().collect();
        replace(&limiter, [window("p", "9/h")]);
        // One unit is used, so there is room for eight.
        let mut admitted = HashSet::new();
        while admitted.len() < 8 {
            let (number, _) = waiters.next().await.expect("sixteen wait");
            admitted.insert(number);
        }
        assert_eq!(admitted, (0..8).collect());
        assert!(waiters.next().now_or_never().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_keep_their_own_timeout() {
    let (limiter, start) = (timed([window("p", "1/h")]), Instant::now());
    assert!(limiter.check(KEY).await.is_admitted());
    // The window ends in an hour, and the next one for the second would a day later.
    let [first, second] =
        [3_605, 20_000].map(|timeout| tokio::spawn(queued(limiter.wait(KEY, secs(timeout)))));
    tokio::time::advance(secs(3_000)).await;
    replace(&limiter, [window("p", "1/day")]);
    drop(first.await.expect("no panic").expect("admitted"));
    let rejected = second.await.expect("no panic").expect_err("a day is long");
    assert_eq!(start.elapsed(), secs(3_600));
    assert!(matches!(rejected.decision().kind(), DecisionKind::Rejected));

    // A timeout counts from the first poll, and not from a change.
    replace(&limiter, [permits(1)]);
    let (held, start) = (limiter.admit(KEY).await.expect("a permit"), Instant::now());
    let waiter = tokio::spawn(queued(limiter.wait(KEY, secs(10))));
    for _ in 0..3 {
        tokio::time::sleep(secs(3)).await;
        replace(&limiter, [permits(1), policy("q", "9/h")]);
    }
    assert!(waiter.await.expect("no panic").is_err());
    assert_eq!(start.elapsed(), secs(10));
    drop(held);
}

#[tokio::test]
async fn waiters_for_a_removed_policy_are_rejected_as_if_they_named_an_unknown_one() {
    let limiter = World::memory().limiter([window("p", "1/h"), window("q", "1/h")]);
    assert!(limiter.check([("p", KEY), ("q", KEY)]).await.is_admitted());
    let wait = |name: &str| tokio::spawn(queued(limiter.wait([(name, KEY)], LONG)));
    let [first, second, other] = ["p", "p", "q"].map(wait);
    replace(&limiter, [window("q", "2/h")]);
    for removed in [first, second] {
        let rejected = removed.await.expect("no panic").expect_err("unknown");
        let kind = rejected.decision().kind().clone();
        assert!(
            matches!(kind, DecisionKind::Invalid(CallError::UnknownPolicy(_))),
            "{kind:?}"
        );
    }
    drop(other.await.expect("no panic").expect("admitted"));
}

/// The rejection says how long to wait under the old policies, which is longer than the timeout; the new ones admit.
#[tokio::test]
async fn waiters_whose_call_is_on_its_way_during_the_change_are_decided_by_the_new_policies() {
    let world = World::redis();
    let (server, limiter) = (world.server(), world.limiter([window("p", "1/h")]));
    assert!(limiter.check(KEY).await.is_admitted());
    server.pause();
    let waiters = [(); 5].map(|()| queued(limiter.wait(KEY, secs(1_800))));
    replace(&limiter, [window("p", "100/h")]);
    server.resume();
    for waiter in waiters {
        assert!(waiter.await.is_ok(), "100 an hour are in force");
    }
    assert_eq!(used(&limiter, "p").await, 6);
}

#[tokio::test(start_paused = true)]
async fn a_permit_of_before_the_change_wakes_a_waiter_when_it_is_released() {
    let (limiter, start) = (timed([permits(1)]), Instant::now());
    let held = limiter.wait(KEY, LONG).await.expect("a permit");
    let waiter = tokio::spawn(queued(limiter.wait(KEY, LONG)));
    replace(&limiter, [policy("q", "9/h"), permits(1)]);
    // Not when it would look again by itself.
    tokio::time::sleep(ms(1_370)).await;
    drop(held);
    drop(waiter.await.expect("no panic").expect("admitted"));
    assert_eq!(start.elapsed(), ms(1_370), "it was woken");
}

#[tokio::test]
async fn waiters_have_their_quotas_by_request_under_the_new_policies() {
    for world in World::both() {
        let of =
            |text: &'static str| window("p", "1/h").quota_with(move |_| Some(stores::quota(text)));
        let limiter = world.limiter([of("2/h")]);
        let parts = Request::new(()).into_parts().0;
        let wait = || limiter.wait(KEY, LONG).parts(&parts).into_future();
        let mut waiters: JoinSet<_> = (0..20).map(|_| wait()).collect();
        let other = policy("other", "99/h").key(extract::header("x"));
        for (set, admits) in [(vec![of("15/h")], 15), (vec![of("20/h"), other], 5)] {
            replace(&limiter, set);
            for _ in 0..admits {
                let next = waiters.join_next().await.expect("a waiter");
                drop(next.expect("no panic").expect("admitted"));
            }
        }
        let peek = limiter.peek([("p", KEY)]).parts(&parts).await;
        assert_eq!(peek.expect("a response").left("p"), 0);
    }
}
