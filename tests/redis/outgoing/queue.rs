//! First come, first served: what waits, for how long, and what is rejected.

use tollgate_tests::prelude::*;

use crate::outgoing::{
    script::play,
    support::{TEST_TIMEOUT, *},
};

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_and_as_soon_as_the_quota_allows() {
    let (limiter, time) = limiter([policy("p", "5/s burst 1")]);
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let waiters = (0..20).map(|who| {
        let (limiter, time, arrivals) = (limiter.clone(), time.clone(), arrivals.clone());
        tokio::spawn(async move {
            let _ = wait(&limiter).await.expect("a turn");
            arrivals
                .lock()
                .expect("no panic")
                .push((who, time.passed()));
        })
    });
    // Spawned in order, and polled in order: the runtime has one thread.
    for ended in join_all(waiters.collect::<Vec<_>>()).await {
        ended.expect("no panic");
    }
    let even: Vec<_> = (0..20).map(|n| (n, ms(200) * n)).collect();
    assert_eq!(*arrivals.lock().expect("no panic"), even);
}

#[tokio::test(start_paused = true)]
async fn no_waiter_is_overtaken_and_a_dropped_one_makes_way() {
    for script in [
        // There is room, and the first has not polled the store yet: a request that arrives then is no faster.
        "send first: admitted, send a: waits, +1s, left p: 1, send b: waits, left p: 1, \
         poll a: admitted, poll b: waits, left p: 0, +1s, poll b: admitted",
        // The queue is closed once it is empty: the next waiter is alone in a new one.
        "send first: admitted, send a: waits, send b: waits, send c: waits, drop b, drop a, \
         poll c: waits, +1s, poll c: admitted, send d: waits, +1s, poll d: admitted",
        // The next waiter uses the result of the first.
        "send first: admitted, send a: waits, send b: waits, calls, drop a, poll b: waits, calls: 0, \
         await b: admitted, passed: 1s",
    ] {
        play(limiter([policy("p", "1/s burst 1")]), script).await;
    }
    // Two units are left, but one that costs more was there before.
    let script = "send first cost 2: admitted, send dear cost 3: waits, send cheap: waits, left p: 2, +1s, \
                  poll cheap: waits, poll dear: admitted, poll cheap: admitted, passed: 1s, left p: 0";
    play(limiter([window("p", "4/s")]), script).await;
}

#[tokio::test(start_paused = true)]
async fn only_the_first_of_a_thousand_waiters_calls_the_store() {
    let (limiter, time) = limiter([policy("p", "100/s burst 1")]);
    let waiters = (0..1_000).map(|_| wait(&limiter).into_future());
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    assert_eq!(time.passed(), ms(9_990));
    // One for each that is admitted: the units left after it give the next one its wait.
    assert!(time.calls() <= 1_001, "{}", time.calls());
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_queue() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1"), policy("q", "2/s burst 2")]);
    let keys = |name: &str| [("p", Key::new(name)), ("q", KEY)];
    let _ = limiter
        .wait(keys("a"), TEST_TIMEOUT)
        .await
        .expect("the first");
    let mut same = queued(limiter.wait(keys("a"), TEST_TIMEOUT));
    let _ = limiter
        .wait(keys("b"), TEST_TIMEOUT)
        .await
        .expect("another");
    assert_eq!(time.passed(), ms(0));
    // However they are put, they are the same keys.
    let [p, q] = keys("a");
    let mut reversed = queued(limiter.wait([q, p], TEST_TIMEOUT));
    tokio::time::advance(ms(1_000)).await;
    assert!(poll_once(&mut reversed).is_none());
    let _ = poll_once(&mut same).expect("its turn").expect("admitted");
}

#[tokio::test(start_paused = true)]
async fn several_policies_are_waited_for_together_and_charged_together() {
    let policies = [policy("p", "2/s burst 2"), policy("q", "1/s burst 1")];
    let script = "send first: admitted, send a: waits, left p: 1, +500ms, poll a: waits, left p: 2, \
                  await a: admitted, passed: 1s";
    play(limiter(policies), script).await;
}

/// Waiters that are rejected, and when.
#[tokio::test(start_paused = true)]
async fn a_request_is_rejected_as_soon_as_it_is_known_that_it_would_wait_past_its_deadline() {
    for script in [
        // To the microsecond; and it costs nothing.
        "send a for 999ms: admitted, send b for 999ms: rejected 1000ms, passed: 0ms, \
         send c for 1000ms: waits, await c: admitted, passed: 1s",
        // Behind another one, whose answer is known.
        "send first: admitted, send a: waits, +400ms, calls, send b for 599ms: rejected 600ms from cache, \
         calls: 0, passed: 400ms, poll a: waits",
        // Its turn would be at two seconds, which is known when the one before it is admitted.
        "send first: admitted, send a: waits, send b for 1500ms: waits, +1s, poll a: admitted, \
         poll b: rejected 1000ms, passed: 1s",
        // A full queue rejects at once. A dropped waiter makes room, and so does an admitted one.
        "send first queue 2: admitted, send a queue 2: waits, send b queue 2: waits, \
         send c queue 2: rejected 1000ms, passed: 0ms, drop b, send d queue 2: waits, +1s, \
         poll a: admitted, send e queue 2: waits, send f queue 2: rejected, drop d, send g queue 0: rejected",
        // Without a queue, a wait is a check.
        "send a queue 0: admitted, send b queue 0: rejected, send c for 0ms: rejected, passed: 0ms",
    ] {
        play(limiter([policy("p", "1/s burst 1")]), script).await;
    }
    // One with a smaller cost may be admitted earlier than the one before it, if that leaves: it is rejected at its deadline.
    let script = "send first cost 2: admitted, send dear cost 2: waits, send cheap for 300ms: waits, \
                  await cheap: rejected 1700ms, passed: 300ms, poll dear: waits";
    play(limiter([policy("p", "1/s burst 2")]), script).await;
    // A cost above the capacity, also behind others, whose turn it doesn't take; and what costs nothing doesn't wait.
    let script = "send a cost 5: rejected never, send first cost 4: admitted, send b: waits, \
                  send c cost 5: rejected, send larger cost 5 under 10/s: waits, passed: 0ms, poll b: waits, \
                  send free cost 0: admitted, left p: 0";
    play(limiter([window("p", "4/s")]), script).await;
}

/// Nothing listens there.
fn no_store() -> RedisStore {
    let store = RedisStore::builder().url("redis://127.0.0.1:1");
    store.timeout(ms(50)).built()
}

#[tokio::test]
async fn a_store_failure_is_no_reason_to_wait() {
    for action in [OnStoreError::Reject, OnStoreError::Admit] {
        let admits = matches!(action, OnStoreError::Admit);
        let builder = Limiter::builder().store(no_store()).on_store_error(action);
        let limiter = stores::limiter(builder, [policy("p", "1/s")]);
        let waits = (0..20).map(|_| wait(&limiter).into_future());
        for turn in join_all(waits).await {
            match turn {
                Ok(admission) => {
                    let source = admission.decisions()[0].source();
                    assert!(admits && source == DecisionSource::Fallback, "{source:?}");
                }
                Err(rejected) => {
                    let kind = rejected.decision().kind();
                    let failed = matches!(kind, DecisionKind::StoreFailed(_));
                    assert!(!admits && failed, "{kind:?}");
                }
            }
        }
    }
}

/// In-flight limits, where it is not known when a permit will be released.
#[tokio::test(start_paused = true)]
async fn a_permit_released_in_this_process_admits_the_next_waiter_at_once() {
    for (n, script) in [
        (
            1,
            "send a: admitted, send b: waits, send c: waits, drop a, poll b: admitted, poll c: waits, \
             drop b, poll c: admitted, passed: 0ms",
        ),
        // Each admitted waiter has its own permit.
        (
            2,
            "send both cost 2: admitted, send a: waits, send b: waits, send c: waits, drop both, \
             poll a: admitted, poll b: admitted, poll c: waits, drop a, poll c: admitted, passed: 0ms",
        ),
        // An unknown wait is rejected only at the deadline: the hint of a second is none.
        (
            1,
            "send a: admitted, send b for 333ms: waits, await b: rejected, passed: 333ms",
        ),
    ] {
        play(limiter([permits(n)]), script).await;
    }
    // Beside a rate, waiters wait for both, of which the rate is known.
    let policies = [permits(1), policy("rate", "1/s burst 1")];
    let script = "send a: admitted, send b for 999ms: rejected, passed: 0ms, send c: waits, drop a, \
                  await c: admitted, passed: 1s to 1250ms";
    play(limiter(policies), script).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_released_elsewhere_is_found_by_polling() {
    let time = Time::start();
    let store = MemoryStore::builder().clock(time.clone()).build();
    let [here, elsewhere] = [(); 2].map(|()| limiter_on(store.clone(), [permits(1)]));
    let first = wait(&elsewhere).await.expect("a permit");
    let waiting = queued(wait(&here));
    let held = ms(10_000);
    let freed = tokio::spawn(async move {
        tokio::time::sleep(held).await;
        drop(first);
    });
    let _ = waiting.await.expect("a permit");
    freed.await.expect("no panic");
    assert!(time.passed() >= held && time.passed() <= held + ms(250));
    // More often at first, and then every 250 ms; a permit is renewed three times in its 30 seconds.
    assert!(time.calls() < 60, "{}", time.calls());
}
