//! Requests that wait are decided anew when an override of their key is set, replaced or removed, or ends.

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
async fn the_first_end_of_several_overrides_is_waited_for_and_a_removal() {
    let clock = TokioClock::new();
    let store = MemoryStore::builder().clock(clock).build();
    let policies = ["a", "b"].map(|name| Policy::new(name, quota("3/day")).strategy(FixedWindow));
    let limiter = stores::limiter(Limiter::builder().store(store), policies);
    assert!(limiter.check(ALICE).await.is_admitted());
    let [first, second] = [600, 7_200].map(|seconds| clock.now() + secs(seconds));
    for (name, text, end) in [("a", "1/day", first), ("b", "9/day", second)] {
        set_under(&limiter, name, ALICE, of(text).until(system_time(end))).await;
    }
    // Not rejected at once, though the window lasts longer than its timeout.
    let waiter = queued(&limiter, secs(3_600));
    assert!(waiter.await.is_ok());
    let late = clock.now().since(first);
    assert!(
        late < secs(1) && clock.now() < second,
        "{late:?} after the end"
    );
    // One that is removed holds no longer either.
    set_under(&limiter, "a", ALICE, of("2/day")).await;
    let waiter = queued(&limiter, LONG);
    let start = clock.now();
    limiter
        .remove_override("a", ALICE)
        .await
        .expect("it is removed");
    assert!(waiter.await.is_ok());
    assert_eq!(clock.now(), start);
}
