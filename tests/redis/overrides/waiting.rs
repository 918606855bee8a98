//! Requests that wait are decided anew when an override of their key is set, replaced or removed, or ends.

use std::time::SystemTime;

use tokio::time::advance;
use tollgate::{clock::Clock, limiter::Override};
use tollgate_tests::prelude::*;

const LONG: Duration = secs(100 * 86_400);

fn quota(text: &str) -> Quota {
    text.parse().expect(text)
}

/// On the runtime's time, which leaps to the next timer when there is nothing to do.
fn limiter(text: &str) -> (Limiter, TokioClock) {
    let clock = TokioClock::new();
    let store = MemoryStore::builder().clock(clock).build();
    let policy = Policy::new("api", quota(text)).strategy(FixedWindow);
    let limiter = Limiter::builder().store(store).policy(policy).build();
    (limiter.expect("a limiter"), clock)
}

type Waiter = Pin<Box<dyn Future<Output = Result<Admission, Rejected>> + Send>>;

#[track_caller]
fn queued(limiter: &Limiter, timeout: Duration) -> Waiter {
    let mut waiter: Waiter = Box::pin(limiter.wait("alice", timeout).into_future());
    assert!((&mut waiter).now_or_never().is_none(), "no need to wait");
    waiter
}

fn time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + at.since(Timestamp::from_micros(0))
}

#[tokio::test(start_paused = true)]
async fn a_larger_quota_and_an_exemption_admit_those_that_wait_at_once() {
    for (larger, admitted) in [
        (Override::quota(quota("2/day")), 1),
        (Override::quota(quota("9/day")), 3),
        (Override::exempt(), 3),
    ] {
        let (limiter, clock) = limiter("1/day");
        let api = limiter.policy("api").expect("a policy");
        assert!(limiter.check("alice").await.is_admitted());
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
        api.set_override("alice", larger).await.expect("it is set");
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
    let api = limiter.policy("api").expect("a policy");
    assert!(limiter.check("alice").await.is_admitted());
    let end = clock.now() + secs(600);
    let strict = Override::quota(quota("1/day")).until(time(end));
    api.set_override("alice", strict).await.expect("it is set");
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
    let builder = ["a", "b"]
        .into_iter()
        .fold(Limiter::builder().store(store), |builder, name| {
            builder.policy(Policy::new(name, quota("3/day")).strategy(FixedWindow))
        });
    let limiter = builder.build().expect("a limiter");
    assert!(limiter.check("alice").await.is_admitted());
    let [first, second] = [600, 7_200].map(|seconds| clock.now() + secs(seconds));
    for (name, text, end) in [("a", "1/day", first), ("b", "9/day", second)] {
        let policy = limiter.policy(name).expect("a policy");
        let setting = Override::quota(quota(text)).until(time(end));
        policy
            .set_override("alice", setting)
            .await
            .expect("it is set");
    }
    let waiter = queued(&limiter, LONG);
    assert!(waiter.await.is_ok());
    assert!(clock.now() < second);
}

#[tokio::test(start_paused = true)]
async fn those_that_wait_under_a_stricter_override_go_on_when_it_is_removed() {
    let (limiter, clock) = limiter("3/day");
    let api = limiter.policy("api").expect("a policy");
    assert!(limiter.check("alice").await.is_admitted());
    let strict = Override::quota(quota("1/day"));
    api.set_override("alice", strict).await.expect("it is set");
    let waiters = [(); 2].map(|()| queued(&limiter, LONG));
    advance(secs(5)).await;
    let start = clock.now();
    api.remove_override("alice").await.expect("it is removed");
    for waiter in waiters {
        assert!(waiter.await.is_ok());
    }
    assert_eq!(clock.now(), start);
}
