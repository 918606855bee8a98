//! Requests that wait while the policies are replaced: each is decided once, in its order, under the new ones.

use tollgate_tests::prelude::*;

use crate::{
    outgoing::{
        slow_store::Slow,
        support::{limiter, queued},
    },
    reconfigure::support::*,
};

fn fixed(quota: &str) -> Policy {
    window("p", quota)
}

/// The numbers of the waiters that were admitted, in order.
type Order = Arc<Mutex<Vec<usize>>>;

/// Spawns waiters; each one's number is recorded when it is admitted.
fn spawn_waiters(limiter: &Limiter, n: usize) -> (Vec<tokio::task::JoinHandle<()>>, Order) {
    let order = Order::default();
    let tasks = (0..n).map(|number| {
        let (wait, order) = (limiter.wait(KEY, LONG), order.clone());
        tokio::spawn(async move {
            drop(wait.await.expect("admitted"));
            order.lock().expect("no panic").push(number);
        })
    });
    (tasks.collect(), order)
}

fn taken(order: &Order) -> Vec<usize> {
    order.lock().expect("no panic").clone()
}

fn in_order(n: usize) -> Vec<usize> {
    (0..n).collect()
}

/// Lets the other tasks run until none can go on: the time is frozen.
async fn yield_often() {
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_on_several_threads_keep_their_order() {
    for _ in 0..50 {
        let limiter = World::memory().limiter([fixed("1/h")]);
        drop(limiter.wait(KEY, LONG).await.expect("the first"));
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..16 {
            let mut waiter = queued(limiter.wait(KEY, 2 * LONG));
            let order = order.clone();
            tasks.push(tokio::spawn(async move {
                let admitted = (&mut waiter).await.expect("admitted");
                let place = admitted.decisions()[0].policy("p").expect("p").remaining();
                order
                    .lock()
                    .expect("no panic")
                    .push((u64::MAX - place, number));
            }));
        }
        replace(&limiter, [fixed("100/h")]);
        for task in tasks {
            task.await.expect("admitted");
        }
        // What is left after each charge says when it was made.
        let mut order = std::mem::take(&mut *order.lock().expect("no panic"));
        order.sort_unstable();
        let numbers: Vec<_> = order.into_iter().map(|(_, number)| number).collect();
        assert_eq!(numbers, (0..16).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_keep_their_own_timeout() {
    let (limiter, time) = limiter([fixed("1/h")]);
    drop(limiter.wait(KEY, LONG).await.expect("the first"));
    // The window ends in an hour, and the next one for the second would a day later.
    let [first, second] =
        [3_605, 20_000].map(|timeout| tokio::spawn(queued(limiter.wait(KEY, secs(timeout)))));
    yield_often().await;
    tokio::time::advance(secs(3_000)).await;
    replace(&limiter, [fixed("1/day")]);
    drop(first.await.expect("no panic").expect("admitted"));
    assert_eq!(time.passed(), secs(3_600));
    let rejected = second
        .await
        .expect("no panic")
        .expect_err("a day is too long");
    assert_eq!(time.passed(), secs(3_600));
    assert!(matches!(rejected.decision().kind(), DecisionKind::Rejected));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_counts_from_the_first_poll_and_not_from_the_change() {
    let (limiter, time) = limiter([permits(2).cost(2)]);
    let held = limiter.wait(KEY, LONG).await.expect("permits");
    let waiters = [(); 3].map(|()| tokio::spawn(queued(limiter.wait(KEY, secs(10)))));
    yield_often().await;
    for _ in 0..3 {
        tokio::time::advance(secs(3)).await;
        replace(&limiter, [permits(2), policy("q", "9/h")]);
        yield_often().await;
    }
    for waiter in waiters {
        assert!(waiter.await.expect("no panic").is_err());
        assert_eq!(time.passed(), secs(10));
    }
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn waiters_for_a_removed_policy_are_rejected_as_if_they_named_an_unknown_one() {
    let (limiter, _) = limiter([fixed("1/h"), policy("q", "1/h")]);
    let wait = |name: &str| limiter.wait([(name, KEY)], LONG).into_future();
    let (first, second) = (wait("p"), wait("q"));
    drop((
        first.await.expect("admitted"),
        second.await.expect("admitted"),
    ));
    let waiters = [wait("p"), wait("p"), wait("q")].map(tokio::spawn);
    yield_often().await;
    replace(&limiter, [policy("q", "2/h burst 2")]);
    let [first, second, other] = waiters;
    for removed in [first, second] {
        let rejected = removed.await.expect("no panic").expect_err("unknown");
        let kind = rejected.decision().kind().clone();
        assert!(matches!(kind, DecisionKind::UnknownPolicy(_)), "{kind:?}");
    }
    drop(other.await.expect("no panic").expect("admitted"));
}

#[tokio::test(start_paused = true)]
async fn no_waiter_is_lost_or_admitted_twice_by_several_changes_in_a_row() {
    let (limiter, time) = limiter([fixed("1/h")]);
    drop(limiter.wait(KEY, LONG).await.expect("the first"));
    let (waiters, order) = spawn_waiters(&limiter, 500);
    yield_often().await;
    for round in 0..100 {
        let quota = format!("{}/h", 1 + 3 * round);
        replace(&limiter, [fixed(&quota)]);
        if round % 3 == 0 {
            yield_often().await;
        }
    }
    yield_often().await;
    assert_eq!(taken(&order), in_order(297));
    assert_eq!(used(&limiter, "p").await, 298);
    replace(&limiter, [fixed("1000/h")]);
    for waiter in waiters {
        waiter.await.expect("admitted");
    }
    assert_eq!(taken(&order), in_order(500));
    assert_eq!(used(&limiter, "p").await, 501);
    assert_eq!(time.passed(), ms(0), "none had to sleep");
}

#[tokio::test(start_paused = true)]
async fn dropped_waiters_leave_no_charge_behind() {
    let (limiter, _) = limiter([fixed("1/h")]);
    drop(limiter.wait(KEY, LONG).await.expect("the first"));
    let mut waiters: Vec<_> = (0..9).map(|_| queued(limiter.wait(KEY, LONG))).collect();
    replace(&limiter, [fixed("5/h")]);
    // The leader and others leave before they are polled again.
    drop(waiters.remove(0));
    drop(waiters.remove(4));
    let mut admitted = 0;
    for waiter in &mut waiters {
        admitted += u64::from((&mut *waiter).now_or_never().is_some());
    }
    for waiter in &mut waiters[admitted as usize..] {
        admitted += u64::from((&mut *waiter).now_or_never().is_some());
    }
    assert_eq!(admitted, 4);
    drop(waiters);
    assert_eq!(used(&limiter, "p").await, 5);
}

#[tokio::test(start_paused = true)]
async fn an_admission_that_is_in_flight_during_the_change_counts_once() {
    let (limiter, store, time) = Slow::limiter("3/h");
    let (waiters, order) = spawn_waiters(&limiter, 9);
    yield_often().await;
    assert_eq!(time.calls(), 1);
    replace(&limiter, [fixed("6/h")]);
    yield_often().await;
    assert!(order.lock().expect("no panic").is_empty());
    store.open.send_replace(true);
    yield_often().await;
    assert_eq!(taken(&order), in_order(6));
    assert_eq!(used(&limiter, "p").await, 6);
    replace(&limiter, [fixed("9/h")]);
    for waiter in waiters {
        waiter.await.expect("admitted");
    }
    assert_eq!(taken(&order), in_order(9));
    assert_eq!(used(&limiter, "p").await, 9);
}

/// The rejection says how long to wait under the old policies, which is longer than the timeout; the new ones admit.
#[tokio::test(start_paused = true)]
async fn no_waiter_is_rejected_for_a_wait_that_the_old_policies_reported_after_the_change() {
    let (limiter, store, time) = Slow::limiter("1/h");
    store.open.send_replace(true);
    assert!(limiter.check(KEY).await.is_admitted());
    store.open.send_replace(false);
    let waiters = [(); 5].map(|()| queued(limiter.wait(KEY, secs(10))));
    replace(&limiter, [fixed("100/h")]);
    store.open.send_replace(true);
    for waiter in waiters {
        assert!(waiter.await.is_ok(), "100 an hour are in force");
    }
    assert_eq!(used(&limiter, "p").await, 6);
    assert_eq!(time.passed(), ms(0));
}

/// Such as on a runtime that stands still.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_one_that_is_not_polled_is_decided_under_the_new_policies_at_its_timeout() {
    let (limiter, time) = limiter([fixed("1/h")]);
    assert!(limiter.check(KEY).await.is_admitted());
    let unpolled = queued(limiter.wait(KEY, LONG));
    let behind = queued(limiter.wait(KEY, LONG));
    tokio::time::advance(secs(10)).await;
    replace(&limiter, [fixed("100/h")]);
    drop(behind.await.expect("100 an hour are in force"));
    assert_eq!(time.passed(), LONG);
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn a_permit_of_before_the_change_wakes_a_waiter_when_it_is_released() {
    let (limiter, time) = limiter([permits(1)]);
    let held = limiter.wait(KEY, LONG).await.expect("a permit");
    let waiter = tokio::spawn(queued(limiter.wait(KEY, LONG)));
    yield_often().await;
    replace(&limiter, [policy("q", "9/h"), permits(1)]);
    yield_often().await;
    let before = time.passed();
    drop(held);
    drop(waiter.await.expect("no panic").expect("admitted"));
    assert_eq!(time.passed(), before, "it was woken");
}
