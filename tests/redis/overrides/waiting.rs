//! Requests that wait are decided anew when an override of their key is set, replaced or removed, or ends.

use tokio::time::advance;
use tollgate::{clock::Clock, limiter::Override};
use tollgate_tests::prelude::*;

use super::support::*;

const LONG: Duration = secs(100 * 86_400);

/// On the runtime's time, which leaps to the next timer when there is nothing to do.
fn limiter(text: &str) -> (Limiter, TokioClock) {
    let clock = TokioClock::new();
    let store = MemoryStore::builder().clock(clock).build();
    let builder = Limiter::builder().store(store);
    (stores::limiter(builder, [policy(text)]), clock)
}

type Waiter = Pin<Box<dyn Future<Output = Result<Admission, Rejected>> + Send>>;

#[track_caller]
fn queued(limiter: &Limiter, timeout: Duration) -> Waiter {
    let mut waiter: Waiter = Box::pin(limiter.wait(ALICE, timeout).into_future());
    assert!((&mut waiter).now_or_never().is_none(), "no need to wait");
    waiter
}

#[tokio::test(start_paused = true)]
async fn a_larger_quota_and_an_exemption_admit_those_that_wait_at_once() {
    for (larger, admitted) in [(of("2/day"), 1), (of("9/day"), 3), (Override::exempt(), 3)] {
        let (limiter, clock) = limiter("1/day");
        assert!(limiter.check(ALICE).await.is_admitted());
        let start = clock.now();
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks = (0..3).map(|number| {
            let (waiter, order) = (queued(&limiter, LONG), order.clone());
            tokio::spawn(async move {
                drop(waiter.await.expect("admitted"));
                order.lock().expect("no panic").push(number);
            })
        });
        let mut tasks: Vec<_> = tasks.collect();
        set(&limiter, ALICE, larger).await;
        for task in tasks.drain(..admitted) {
            task.await.expect("no panic");
        }
        assert_eq!(clock.now(), start);
        for task in tasks {
            task.await.expect("no panic");
        }
        // One more at the start of each day, or all.
        assert_eq!(*order.lock().expect("no panic"), [0, 1, 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stricter_override_is_waited_for_until_its_end() {
    let (limiter, clock) = limiter("3/day");
    assert!(limiter.check(ALICE).await.is_admitted());
    let end = clock.now() + secs(600);
    let strict = of("1/day").until(system_time(end));
    set(&limiter, ALICE, strict).await;
    // Not rejected at once, though the window lasts longer than its timeout.
    let waiter = queued(&limiter, secs(3_600));
    assert!(waiter.await.is_ok());
    let late = clock.now().since(end);
    assert!(late < secs(1), "{late:?} after the end");
}

#[tokio::test(start_paused = true)]
async fn the_first_end_of_several_overrides_is_waited_for() {
    let clock = TokioClock::new();
    let store = MemoryStore::builder().clock(clock).build();
    let policies = ["a", "b"].map(|name| Policy::new(name, quota("3/day")).strategy(FixedWindow));
    let limiter = stores::limiter(Limiter::builder().store(store), policies);
    assert!(limiter.check(ALICE).await.is_admitted());
    let [first, second] = [600, 7_200].map(|seconds| clock.now() + secs(seconds));
    for (name, text, end) in [("a", "1/day", first), ("b", "9/day", second)] {
        set_under(&limiter, name, ALICE, of(text).until(system_time(end))).await;
    }
    let waiter = queued(&limiter, LONG);
    assert!(waiter.await.is_ok());
    assert!(clock.now() < second);
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_under_a_stricter_override_go_on_when_it_is_removed() {
    let (limiter, clock) = limiter("3/day");
    assert!(limiter.check(ALICE).await.is_admitted());
    let strict = of("1/day");
    set(&limiter, ALICE, strict).await;
    let waiters = [(); 2].map(|()| queued(&limiter, LONG));
    advance(secs(5)).await;
    let start = clock.now();
    remove(&limiter, ALICE).await;
    for waiter in waiters {
        assert!(waiter.await.is_ok());
    }
    assert_eq!(clock.now(), start);
}
