//! Many calls that wait for one key: the work for each does not grow with their number, and none is left behind.

use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

/// Calls that wait, in tasks of their own, and have been polled.
async fn spawn_waiting(limiter: &Limiter, number: usize) -> JoinSet<()> {
    let mut calls = JoinSet::new();
    for _ in 0..number {
        let wait = wait(limiter).queue(usize::MAX);
        calls.spawn(async move { drop(wait.await.expect("a turn")) });
    }
    tokio::time::sleep(ms(1)).await;
    calls
}

#[tokio::test(start_paused = true)]
async fn each_of_ten_thousand_calls_sends_few_calls_to_the_store() {
    let (limiter, time) = limiter([window("p", "1000/s")]);
    let calls = spawn_waiting(&limiter, 10_000).await;
    assert_eq!(limiter.stats().policies[0].waiters, 9_000);
    // One for each that found room, and two of the first that did not.
    assert_eq!(time.calls(), 1_002);
    calls.join_all().await;
    assert_eq!(time.passed(), secs(9));
    // After each window's last one, the status says when the next begins.
    assert!(time.calls() <= 10_020, "{}", time.calls());
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_leave_nothing_behind_and_strand_none() {
    let (limiter, time) = limiter([window("p", "10/s")]);
    drop(at_once(wait(&limiter).cost(10)));
    let mut calls = spawn_waiting(&limiter, 10_000).await;
    let sent = time.calls();
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    assert_eq!(limiter.stats().policies[0].waiters, 0);
    assert_eq!(time.calls(), sent);
    // Every other one.
    let stay = spawn_waiting(&limiter, 1).await;
    let mut kept = vec![stay];
    for _ in 0..99 {
        let mut leaves = spawn_waiting(&limiter, 1).await;
        kept.push(spawn_waiting(&limiter, 1).await);
        leaves.abort_all();
    }
    for calls in kept {
        calls.join_all().await;
    }
    assert_eq!(time.passed(), secs(10));
}

/// 1,000 a second, one by one: the timer of the runtime ticks every millisecond.
#[tokio::test(start_paused = true)]
async fn a_burst_of_one_reaches_its_rate() {
    let (limiter, time) = limiter([policy("p", "1000/s burst 1")]);
    let calls = spawn_waiting(&limiter, 5_000).await;
    calls.join_all().await;
    assert!(time.passed() <= ms(5_000) * 100 / 95, "{:?}", time.passed());
}

#[tokio::test(start_paused = true)]
async fn a_call_starts_when_units_are_given_back_and_not_when_the_window_ends() {
    for way in [
        "settle",
        "refund",
        "meter",
        "credit",
        "reset",
        "refund of all policies",
    ] {
        let (limiter, time) = limiter([window("p", "1000/h")]);
        let reserved = at_once(wait(&limiter).cost(900));
        let mut waiting = queued(wait(&limiter).cost(500));
        advance(300).await;
        still_waits(&mut waiting);
        let policy = limiter.policy("p").expect("its policy");
        let charge = reserved.policy("p").expect("its policy");
        match way {
            "settle" => charge.settle(100).await.expect("a response"),
            "refund" => drop(charge.refund(800).await.expect("a response")),
            "meter" => {
                let mut meter = charge.meter();
                meter.add(100);
                drop(meter);
            }
            "credit" => drop(policy.credit(KEY, 800).await.expect("a response")),
            "reset" => drop(policy.reset(KEY).await.expect("a response")),
            _ => drop(reserved.refund(800).await.expect("a response")),
        }
        let _ = admitted(waiting);
        assert_eq!(time.passed(), ms(300), "{way}");
    }
}
