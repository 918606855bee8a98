//! In-flight limits, where it is not known when a permit will be released.

use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

fn permit_policy(n: u64) -> Policy {
    Policy::new("permits", Quota::concurrent(n)).key(extract::global())
}

#[tokio::test(start_paused = true)]
async fn a_permit_released_in_this_process_admits_the_next_waiter_at_once() {
    let (limiter, time) = limiter([permit_policy(1)]);
    let first = wait(&limiter).await.expect("a permit");
    let mut second = queued(wait(&limiter));
    let mut third = queued(wait(&limiter));
    drop(first);
    let second = poll_once(&mut second).expect("its turn").expect("a permit");
    assert!(poll_once(&mut third).is_none());
    drop(second);
    let _ = poll_once(&mut third).expect("its turn").expect("a permit");
    assert_eq!(time.passed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn each_admitted_waiter_has_its_own_permit() {
    let (limiter, time) = limiter([permit_policy(2)]);
    let both = wait(&limiter).cost(2).await.expect("both permits");
    let [mut first, mut second, mut third] = [(); 3].map(|()| queued(wait(&limiter)));
    drop(both);
    let first = poll_once(&mut first).expect("its turn").expect("a permit");
    let _second = poll_once(&mut second).expect("its turn").expect("a permit");
    assert!(poll_once(&mut third).is_none());
    drop(first);
    let _ = poll_once(&mut third).expect("its turn").expect("a permit");
    assert_eq!(time.passed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn a_permit_released_elsewhere_is_found_by_polling() {
    let time = Time::start();
    let store = MemoryStore::builder().clock(time.clone()).build();
    let [here, elsewhere] = [(); 2].map(|()| limiter_on(store.clone(), [permit_policy(1)]));
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

#[tokio::test(start_paused = true)]
async fn an_unknown_wait_is_rejected_only_at_the_deadline() {
    let (limiter, time) = limiter([permit_policy(1)]);
    let _first = wait(&limiter).await.expect("a permit");
    // The hint of a second is none.
    let rejected = limiter.wait(KEY, ms(333)).await;
    rejected.expect_err("none came free");
    assert_eq!(time.passed(), ms(333));
}

#[tokio::test(start_paused = true)]
async fn beside_a_rate_waiters_wait_for_both() {
    let (limiter, time) = limiter([permit_policy(1), policy("rate", "1/s burst 1")]);
    let first = wait(&limiter).await.expect("a permit");
    let rejected = limiter.wait(KEY, ms(999)).await;
    rejected.expect_err("the rate is known");
    assert_eq!(time.passed(), ms(0));
    let second = queued(wait(&limiter));
    drop(first);
    let _ = second.await.expect("a permit");
    assert!(time.passed() >= ms(1_000) && time.passed() <= ms(1_250));
}
