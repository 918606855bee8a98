//! Limits on what is in flight, where it is not known when a permit is released.

use tollgate::{Key, MemoryStore, Policy, Quota, extract};

use crate::support::{Time, limiter, limiter_on, look, ms, policy, queued, wait};

fn places(n: u64) -> Policy {
    Policy::new("places", Quota::concurrent(n)).key(extract::global())
}

#[tokio::test(start_paused = true)]
async fn a_permit_released_in_this_process_admits_the_next_waiter_at_once() {
    let (limiter, time) = limiter([places(1)]);
    let first = wait(&limiter).await.expect("a place");
    let mut second = queued(wait(&limiter));
    let mut third = queued(wait(&limiter));
    drop(first);
    let second = look(&mut second).expect("its turn").expect("a place");
    assert!(look(&mut third).is_none());
    drop(second);
    let _ = look(&mut third).expect("its turn").expect("a place");
    assert_eq!(time.passed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn each_admitted_waiter_has_its_own_permit() {
    let (limiter, time) = limiter([places(2)]);
    let both = wait(&limiter).cost(2).await.expect("both places");
    let [mut first, mut second, mut third] = [(); 3].map(|()| queued(wait(&limiter)));
    drop(both);
    let first = look(&mut first).expect("its turn").expect("a place");
    let _second = look(&mut second).expect("its turn").expect("a place");
    assert!(look(&mut third).is_none());
    drop(first);
    let _ = look(&mut third).expect("its turn").expect("a place");
    assert_eq!(time.passed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn a_permit_released_elsewhere_is_found_by_polling() {
    let time = Time::start();
    let store = MemoryStore::builder().clock(time.clone()).build();
    let [here, elsewhere] = [(); 2].map(|()| limiter_on(store.clone(), [places(1)]));
    let first = wait(&elsewhere).await.expect("a place");
    let waiting = queued(wait(&here));
    let held = ms(10_000);
    let freed = tokio::spawn(async move {
        tokio::time::sleep(held).await;
        drop(first);
    });
    let _ = waiting.await.expect("a place");
    freed.await.expect("no panic");
    assert!(time.passed() >= held && time.passed() <= held + ms(250));
    // More often at first, and then every 250 ms; a permit is renewed three times in its 30 seconds.
    assert!(time.questions() < 60, "{}", time.questions());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_wait_is_rejected_only_at_the_deadline() {
    let (limiter, time) = limiter([places(1)]);
    let _first = wait(&limiter).await.expect("a place");
    // The hint of a second is none.
    let refused = limiter.wait(Key::global(), ms(333)).await;
    refused.expect_err("none came free");
    assert_eq!(time.passed(), ms(333));
}

#[tokio::test(start_paused = true)]
async fn beside_a_rate_waiters_wait_for_both() {
    let (limiter, time) = limiter([places(1), policy("rate", "1/s burst 1")]);
    let first = wait(&limiter).await.expect("a place");
    let refused = limiter.wait(Key::global(), ms(999)).await;
    refused.expect_err("the rate is known");
    assert_eq!(time.passed(), ms(0));
    let second = queued(wait(&limiter));
    drop(first);
    let _ = second.await.expect("a place");
    assert!(time.passed() >= ms(1_000) && time.passed() <= ms(1_250));
}
