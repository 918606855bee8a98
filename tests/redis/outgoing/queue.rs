//! First come, first served: what waits, for how long, and what is rejected.

use tollgate_tests::prelude::*;

use crate::outgoing::support::{TEST_TIMEOUT, *};

/// One a second.
fn each_second() -> (Limiter, Time) {
    limiter([policy("p", "1/s burst 1")])
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_and_as_soon_as_the_quota_allows() {
    let (limiter, time) = limiter([policy("p", "5/s burst 1")]);
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let waiters = (0..20).map(|who| {
        let (limiter, time, arrivals) = (limiter.clone(), time.clone(), arrivals.clone());
        tokio::spawn(async move {
            let _ = wait(&limiter).await.expect("a turn");
            let arrival = (who, time.passed());
            arrivals.lock().expect("no panic").push(arrival);
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
async fn no_waiter_is_overtaken() {
    let (limiter, time) = each_second();
    let _ = at_once(wait(&limiter));
    let first = queued(wait(&limiter));
    advance(1_000).await;
    // There is room, and the first has not polled the store yet: a request that arrives then is no faster.
    assert_eq!(left(&limiter, "p").await, 1);
    let mut second = queued(wait(&limiter));
    assert_eq!(left(&limiter, "p").await, 1);
    let _ = admitted(first);
    still_waits(&mut second);
    assert_eq!(left(&limiter, "p").await, 0);
    advance(1_000).await;
    let _ = admitted(second);
    assert_eq!(time.passed(), secs(2));
    // Two units are left, but one that costs more was there before.
    let (limiter, time) = self::limiter([window("p", "4/s")]);
    let _ = at_once(wait(&limiter).cost(2));
    let dear = queued(wait(&limiter).cost(3));
    let mut cheap = queued(wait(&limiter));
    assert_eq!(left(&limiter, "p").await, 2);
    advance(1_000).await;
    still_waits(&mut cheap);
    let _ = (admitted(dear), admitted(cheap));
    assert_eq!((time.passed(), left(&limiter, "p").await), (secs(1), 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_makes_way_for_the_next_which_uses_its_result() {
    let (limiter, time) = each_second();
    let _ = at_once(wait(&limiter));
    let [first, second, mut third] = [(); 3].map(|()| queued(wait(&limiter)));
    let calls = time.calls();
    drop((second, first));
    still_waits(&mut third);
    assert_eq!(time.calls(), calls);
    advance(1_000).await;
    let _ = admitted(third);
    // The queue is closed once it is empty: the next waiter is alone in a new one.
    let _ = queued(wait(&limiter)).await.expect("a turn");
    assert_eq!(time.passed(), secs(2));
}

#[tokio::test(start_paused = true)]
async fn only_the_first_of_a_thousand_waiters_calls_the_store() {
    let (limiter, time) = limiter([policy("p", "100/s burst 1")]);
    let waiters = (0..1_000).map(|_| wait(&limiter).into_future());
    for turn in join_all(waiters).await {
        let _ = turn.expect("a turn");
    }
    assert_eq!(time.passed(), ms(9_990));
    // One for each that is admitted, and two that find no unit: the status after an admission gives the next one its wait.
    assert!(time.calls() <= 1_002, "{}", time.calls());
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_queue() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1"), policy("q", "2/s burst 2")]);
    let keys = |name: &str| [("p", Key::new(name)), ("q", KEY)];
    let _ = at_once(limiter.wait(keys("a"), TEST_TIMEOUT));
    let same = queued(limiter.wait(keys("a"), TEST_TIMEOUT));
    let _ = at_once(limiter.wait(keys("b"), TEST_TIMEOUT));
    assert_eq!(time.passed(), ms(0));
    // However they are put, they are the same keys.
    let [p, q] = keys("a");
    let mut reversed = queued(limiter.wait([q, p], TEST_TIMEOUT));
    advance(1_000).await;
    still_waits(&mut reversed);
    let _ = admitted(same);
}

#[tokio::test(start_paused = true)]
async fn several_policies_are_waited_for_together_and_charged_together() {
    let (limiter, time) = limiter([policy("p", "2/s burst 2"), policy("q", "1/s burst 1")]);
    let _ = at_once(wait(&limiter));
    let mut waiter = queued(wait(&limiter));
    assert_eq!(left(&limiter, "p").await, 1);
    advance(500).await;
    still_waits(&mut waiter);
    assert_eq!(left(&limiter, "p").await, 2);
    let _ = waiter.await.expect("a turn");
    assert_eq!(time.passed(), secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_rejected_as_soon_as_it_is_known_that_it_would_wait_past_its_deadline() {
    let (limiter, time) = each_second();
    let within = |timeout| limiter.wait(KEY, ms(timeout));
    let _ = at_once(within(999));
    // To the microsecond; and it costs nothing.
    assert_eq!(rejected_at_once(within(999)), RetryAfter::In(secs(1)));
    let waiter = queued(within(1_000));
    advance(400).await;
    // Behind another one, whose answer is known.
    let calls = time.calls();
    let rejected = within(599).await.expect_err("too late");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(600)));
    assert_eq!(rejected.decision().source(), DecisionSource::RejectionCache);
    assert_eq!((time.calls(), time.passed()), (calls, ms(400)));
    // Its turn would be at two seconds, which is known when the one before it is admitted.
    let mut behind = queued(within(1_500));
    let _ = waiter.await.expect("a turn");
    let rejected = poll_once(&mut behind).expect("a result");
    let rejected = rejected.expect_err("too late");
    assert_eq!(rejected.retry_after(), RetryAfter::In(secs(1)));
    assert_eq!(time.passed(), secs(1));
    // One with a smaller cost may be admitted earlier than the one before it, if that leaves: it is rejected at its deadline.
    let (limiter, time) = self::limiter([policy("p", "1/s burst 2")]);
    let _ = at_once(wait(&limiter).cost(2));
    let mut dear = queued(wait(&limiter).cost(2));
    let rejected = queued(limiter.wait(KEY, ms(300))).await;
    let rejected = rejected.expect_err("too late");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(1_700)));
    assert_eq!(time.passed(), ms(300));
    still_waits(&mut dear);
}

/// A dropped waiter makes room, and so does an admitted one.
#[tokio::test(start_paused = true)]
async fn a_full_queue_rejects_at_once() {
    let (limiter, time) = each_second();
    let queue = |most| wait(&limiter).queue(most);
    let _ = at_once(queue(2));
    let [first, second] = [(); 2].map(|()| queued(queue(2)));
    assert_eq!(rejected_at_once(queue(2)), RetryAfter::In(secs(1)));
    assert_eq!(time.passed(), ms(0));
    drop(second);
    let third = queued(queue(2));
    advance(1_000).await;
    let _ = admitted(first);
    let _fourth = queued(queue(2));
    rejected_at_once(queue(2));
    drop(third);
    // Without a queue, a wait is a check, and so it is without time.
    rejected_at_once(queue(0));
    let (limiter, time) = each_second();
    let _ = at_once(wait(&limiter).queue(0));
    rejected_at_once(wait(&limiter).queue(0));
    rejected_at_once(limiter.wait(KEY, ms(0)));
    assert_eq!(time.passed(), ms(0));
}

/// Also behind others, whose turn it doesn't take; and what costs nothing doesn't wait.
#[tokio::test(start_paused = true)]
async fn a_cost_above_the_capacity_is_rejected_for_ever_at_once() {
    let (limiter, time) = limiter([window("p", "4/s")]);
    assert_eq!(rejected_at_once(wait(&limiter).cost(5)), RetryAfter::Never);
    let _ = at_once(wait(&limiter).cost(4));
    let mut waiter = queued(wait(&limiter));
    rejected_at_once(wait(&limiter).cost(5));
    let larger = wait(&limiter).quota_for("p", stores::quota("10/s"));
    let _larger = queued(larger.cost(5));
    still_waits(&mut waiter);
    let _ = at_once(wait(&limiter).cost(0));
    assert_eq!((time.passed(), left(&limiter, "p").await), (ms(0), 0));
}

#[tokio::test]
async fn a_call_that_costs_nothing_passes_while_the_store_fails_also_under_a_ban() {
    let policies = [policy("p", "1/s"), Policy::block_list("refused")];
    let limiter = stores::limiter(Limiter::builder().store(StubStore::unreachable()), policies);
    let _ = at_once(wait(&limiter).cost(0));
}

#[tokio::test]
async fn a_store_failure_is_no_reason_to_wait() {
    for action in [OnStoreError::Reject, OnStoreError::Admit] {
        let admits = matches!(action, OnStoreError::Admit);
        let builder = Limiter::builder().store(StubStore::unreachable());
        let limiter = stores::limiter(builder.on_store_error(action), [policy("p", "1/s")]);
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
    let (limiter, time) = limiter([permits(2)]);
    let both = at_once(wait(&limiter).cost(2));
    let [first, second, mut third] = [(); 3].map(|()| queued(wait(&limiter)));
    drop(both);
    // Each admitted waiter has its own permit.
    let (first, _second) = (admitted(first), admitted(second));
    still_waits(&mut third);
    drop(first);
    let _third = admitted(third);
    assert_eq!(time.passed(), ms(0));
    // An unknown wait is rejected only at the deadline: the hint of a second is none.
    let late = queued(limiter.wait(KEY, ms(333))).await;
    late.expect_err("both are taken");
    assert_eq!(time.passed(), ms(333));
    // Beside a rate, waiters wait for both, of which the rate is known.
    let (limiter, time) = self::limiter([permits(1), policy("rate", "1/s burst 1")]);
    let held = at_once(wait(&limiter));
    rejected_at_once(limiter.wait(KEY, ms(999)));
    let waiter = queued(wait(&limiter));
    drop(held);
    let _ = waiter.await.expect("a turn");
    assert!((secs(1)..=ms(1_250)).contains(&time.passed()));
}

#[tokio::test(start_paused = true)]
async fn a_permit_released_elsewhere_is_found_by_polling() {
    let (store, time) = Time::start();
    let [here, elsewhere] = [(); 2].map(|()| limiter_on(store.clone(), [permits(1)]));
    let first = at_once(wait(&elsewhere));
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

/// Each request is compared with it once.
#[tokio::test(start_paused = true)]
async fn no_request_waits_for_a_shadow() {
    let (limiter, time) = limiter([
        window("live", "2/s"),
        window("stricter", "1/hour").shadow(),
        permits(1).shadow(),
    ]);
    let stats = |name| {
        let stats = limiter.shadow_stats(name).expect(name);
        (stats.evaluated, stats.would_reject)
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(wait(&limiter).await.expect("a turn"));
    }
    assert_eq!(time.passed(), ms(1_000));
    assert_eq!(stats("stricter"), (3, 2));
    assert_eq!(stats("permits"), (3, 2));
    // Nor is a request rejected since it would never admit it.
    let _ = wait(&limiter).cost(2).await.expect("a turn");
    assert_eq!(time.passed(), ms(2_000));
    assert_eq!(stats("stricter"), (4, 3));
    // The next one has to wait for a second and no more, as its result reports.
    let rejected = limiter.wait(KEY, ms(999)).await;
    let rejected = rejected.expect_err("too late");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(1_000)));
    assert_eq!(time.passed(), ms(2_000));
}
