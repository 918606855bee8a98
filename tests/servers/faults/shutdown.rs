//! What is queued in a process is sent to the store before the process ends, or the error lists what is not.

use crate::faults::support::*;
use tokio::runtime::Builder;

const MOMENT: Duration = ms(50);

/// More permits than one call takes.
#[tokio::test]
async fn refunds_made_before_a_shutdown_or_kept_during_an_outage_are_made_by_it() {
    let (server, network) = network();
    let (limiter, other) = (
        permit_policy(through(&network), 300),
        permit_policy(store(&server), 300),
    );
    drop(take(&limiter, 200).await);
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 0);

    let held = take(&limiter, 200).await;
    network.cut();
    opened(&limiter).await;
    drop(held);
    let error = limiter.shutdown(MOMENT).await.expect_err("an outage");
    assert_eq!(error.operations(), 200);
    assert_contains(error, ["200 refunds and charges"]);
    network.pass();
    // They stay queued, for a second call.
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 0);
    // Nothing has ended.
    let _permit = limiter.admit(KEY).await.expect("a permit");
    assert_eq!(used_on_the_store(&other, KEY).await, 1);
}

#[tokio::test]
async fn with_nothing_queued_a_shutdown_is_done_at_once() {
    let (_server, network) = network();
    let in_process = Limiter::builder().policy(policy(9)).built();
    for limiter in [sharing(through(&network), 100, 2), in_process] {
        assert!(limiter.check(KEY).await.is_admitted());
        network.cut();
        assert_eq!(limiter.shutdown(TEST_TIMEOUT).now_or_never(), Some(Ok(())));
    }
}

#[test]
fn a_shutdown_without_timers_reports_at_once_what_is_queued() {
    let (server, network) = network();
    let runtime = current_thread();
    let limiter = permit_policy(through(&network), 300);
    let held = runtime.block_on(take(&limiter, 3));
    network.cut();
    drop(held);
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    for result in [
        limiter.shutdown(TEST_TIMEOUT).now_or_never(),
        Some(without_timers.block_on(limiter.shutdown(TEST_TIMEOUT))),
    ] {
        let error = result.expect("a result at once").expect_err("queued");
        assert_eq!(error.operations(), 3);
    }
    network.pass();
    runtime.block_on(flushed(&limiter));
    let other = permit_policy(store(&server), 300);
    assert_eq!(runtime.block_on(used_on_the_store(&other, KEY)), 0);
}
