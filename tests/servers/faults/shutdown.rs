//! What is queued in a process is sent to the store before the process ends, or the error lists what is not.

use crate::faults::support::*;
use tokio::runtime::Builder;

const MOMENT: Duration = ms(50);

fn permits(store: RedisStore) -> Limiter {
    under(
        crate::faults::support::permits(300),
        store,
        OnStoreError::Reject,
    )
}

/// A limiter that counts in process while the store fails, and writes it back.
fn writing_back(store: RedisStore) -> Limiter {
    let fallback = LocalFallback::shared_by(2).write_back(true);
    under(policy(100).strategy(FixedWindow), store, fallback)
}

async fn held(limiter: &Limiter, many: usize) -> Vec<Admission> {
    let mut held = Vec::new();
    for _ in 0..many {
        held.push(limiter.admit(KEY).await.expect("a permit"));
    }
    held
}

#[tokio::test]
async fn permits_dropped_right_before_a_shutdown_are_free() {
    let (server, network) = network();
    let (limiter, other) = (permits(through(&network)), permits(store(&server)));
    // More than one call takes.
    let held = held(&limiter, 200).await;
    drop(held);
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 0);
}

#[tokio::test]
async fn refunds_kept_during_an_outage_are_made_by_a_shutdown() {
    let (server, network) = network();
    let (limiter, other) = (permits(through(&network)), permits(store(&server)));
    let held = held(&limiter, 200).await;
    network.cut();
    opened(&limiter).await;
    drop(held);
    let error = limiter.shutdown(MOMENT).await.expect_err("an outage");
    // Requests without a reply may hold permits too.
    let operations = error.operations();
    assert!(operations >= 200 && error.write_backs() == 0, "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("not sent to the store in time: {operations} refunds and charges, 0 write-backs")
    );
    network.pass();
    // They stay queued, for a second call.
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 0);
    // Nothing has ended.
    let admission = limiter.admit(KEY).await.expect("a permit");
    assert_eq!(used_on_the_store(&other, KEY).await, 1);
    drop(admission);
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 0);
}

#[tokio::test]
async fn charges_in_process_are_written_back_by_a_shutdown() {
    let (server, network) = network();
    let (limiter, other) = (
        writing_back(through(&network)),
        writing_back(store(&server)),
    );
    let charged_on_redis = limiter.check(KEY).cost(3).await;
    assert!(charged_on_redis.is_admitted());
    network.cut();
    opened_in_process(&limiter).await;
    assert!(limiter.check(KEY).cost(4).await.is_admitted());
    let error = limiter.shutdown(MOMENT).await.expect_err("an outage");
    assert_eq!((error.operations(), error.write_backs()), (0, 1));
    network.pass();
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 7);
}

#[tokio::test]
async fn background_settlements_of_meters_are_made_by_a_shutdown() {
    let server = Server::start();
    let [limiter, other] = [0, 1].map(|_| rejecting(store(&server), 100));
    for (units, outside) in [(20, false), (30, true)] {
        let admission = limiter.admit(KEY).await.expect("room");
        let mut meter = admission.policy("p").expect("a policy").meter();
        meter.add(units);
        match outside {
            true => thread::spawn(move || drop(meter)).join().expect("no panic"),
            false => drop(meter),
        }
        flushed(&limiter).await;
    }
    assert_eq!(used_on_the_store(&other, KEY).await, 50);
}

#[tokio::test]
async fn with_nothing_queued_a_shutdown_is_done_at_once() {
    let (_server, network) = network();
    let limiter = writing_back(through(&network));
    assert!(limiter.check(KEY).await.is_admitted());
    network.cut();
    assert_eq!(limiter.shutdown(TEST_TIMEOUT).now_or_never(), Some(Ok(())));
}

#[test]
fn a_shutdown_in_process_needs_no_runtime() {
    let limiter = Limiter::builder().policy(policy(9)).built();
    assert_eq!(limiter.shutdown(TEST_TIMEOUT).now_or_never(), Some(Ok(())));
}

#[test]
fn a_shutdown_without_timers_reports_at_once_what_is_queued() {
    let (server, network) = network();
    let runtime = current_thread();
    let limiter = permits(through(&network));
    let held = runtime.block_on(held(&limiter, 3));
    network.cut();
    // Not sent, since the runtime is not driven.
    drop(held);
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    for result in [
        limiter.shutdown(TEST_TIMEOUT).now_or_never(),
        Some(without_timers.block_on(limiter.shutdown(TEST_TIMEOUT))),
    ] {
        let error = result.expect("a result at once").expect_err("queued");
        assert_eq!((error.operations(), error.write_backs()), (3, 0));
    }
    network.pass();
    runtime.block_on(flushed(&limiter));
    let other = permits(store(&server));
    assert_eq!(runtime.block_on(used_on_the_store(&other, KEY)), 0);
}
