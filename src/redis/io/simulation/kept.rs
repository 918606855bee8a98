//! Adjustments without a waiter that did not run, and are sent later.

use super::*;
use crate::strategy::Concurrency;

/// The refunds that were sent so far.
fn refunds(scene: &Scene) -> usize {
    let calls = scene.calls();
    let entries = calls.iter().flat_map(|call| &call.entries);
    entries.filter(|entry| entry.is_refund).count()
}

#[tokio::test(start_paused = true)]
async fn adjustments_are_kept_up_to_a_bound_and_releases_of_permits_beyond_it() {
    let scene = Scene::new();
    scene.open_breaker().await;
    for key in 0..10_005 {
        scene.refund(key);
    }
    settle().await;
    let stats = scene.store.stats();
    assert_eq!((stats.queued_refunds, stats.dropped_refunds), (10_000, 5));
    let permits = register(&scene.store, "permits", Concurrency::new(), "9 concurrent");
    for key in 0..100 {
        let release = CounterOp::new(&permits, key_of(key)).with_receipt(receipt());
        let store = &scene.store;
        store.execute_detached(Op::Adjust, &[release], None);
    }
    settle().await;
    let stats = scene.store.stats();
    assert_eq!((stats.queued_refunds, stats.dropped_refunds), (10_100, 5));
    scene.answer_all(Answer::Reply(Duration::ZERO));
    sleep(ms(2_000)).await;
    assert_eq!(scene.store.stats().queued_refunds, 0);
    assert_eq!(refunds(&scene), 10_100);
}

#[tokio::test(start_paused = true)]
async fn one_batch_of_kept_adjustments_goes_with_each_reply() {
    let scene = Scene::new();
    scene.open_breaker().await;
    for key in 0..300 {
        scene.refund(key);
    }
    settle().await;
    // One that is refused is kept before the server replies again.
    scene.answer(|call| match call.is_batch() {
        true => Answer::Hold,
        false => Answer::Reply(ms(1)),
    });
    sleep(ms(40)).await;
    assert!(!scene.is_open());
    let mut sizes = Vec::new();
    while let Some(call) = scene.waiting_calls().first().copied() {
        sizes.push(scene.calls()[call].entries.len());
        assert_eq!(scene.waiting_calls().len(), 1);
        scene.release(call);
        settle().await;
    }
    assert_eq!(sizes, [128, 128, 44]);
}

#[tokio::test(start_paused = true)]
async fn a_kept_adjustment_is_sent_by_a_timer_without_any_reply() {
    let scene = Scene::new();
    scene.connect(Connect::Refused);
    scene.refund(1);
    settle().await;
    assert_eq!(scene.store.stats().queued_refunds, 1);
    scene.connect(Connect::Opens);
    sleep(ms(249)).await;
    assert_eq!(refunds(&scene), 0);
    sleep(ms(2)).await;
    assert_eq!(
        (refunds(&scene), scene.store.stats().queued_refunds),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn kept_adjustments_of_a_key_are_dropped_when_it_is_reset() {
    let scene = Scene::new();
    scene.connect(Connect::Refused);
    scene.refund(1);
    scene.refund(2);
    settle().await;
    scene.connect(Connect::Opens);
    let reset = scene.store.execute(Op::Reset, &[scene.counter(1)]);
    reset.result().await.expect("a reply");
    sleep(ms(1_000)).await;
    let calls = scene.calls();
    let entries = calls.iter().flat_map(|call| &call.entries);
    let refunded = entries.filter(|entry| entry.is_refund);
    let keys: Vec<_> = refunded.map(|entry| &*entry.keys[0]).collect();
    assert_eq!(keys, ["tg:g3:requests:k2"]);
}

#[tokio::test(start_paused = true)]
async fn kept_adjustments_are_sent_by_the_timer_alone_while_the_server_rejects_them() {
    for text in ["OOM used memory", "READONLY a replica"] {
        let scene = Scene::with(RedisStoreBuilder::no_circuit_breaker);
        scene.answer(
            move |call| match call.entries.iter().any(|entry| entry.op == ADJUST) {
                true => Answer::EntryErrors(text),
                false => Answer::Reply(Duration::ZERO),
            },
        );
        scene.refund(1);
        settle().await;
        let begun = Instant::now();
        for key in 0..100 {
            scene.request(100 + key).await.expect("a reply");
            sleep(ms(10)).await;
        }
        let sent = refunds(&scene);
        let intervals = begun.elapsed().as_millis() as usize / 250;
        assert!((2..=intervals + 2).contains(&sent), "{sent} in {intervals}");
        scene.answer_all(Answer::Reply(Duration::ZERO));
        sleep(ms(300)).await;
        assert_eq!(scene.store.stats().queued_refunds, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn kept_adjustments_are_sent_when_the_store_is_dropped() {
    let scene = Scene::new();
    scene.connect(Connect::Refused);
    for key in 0..300 {
        scene.refund(key);
    }
    settle().await;
    assert_eq!(scene.store.stats().queued_refunds, 300);
    scene.connect(Connect::Opens);
    let script = scene.script.clone();
    drop(scene);
    sleep(TIMEOUT).await;
    assert_eq!(lock(&script).used.values().sum::<i64>(), -300);
}

#[tokio::test(start_paused = true)]
async fn an_adjustment_that_may_have_run_is_not_sent_again() {
    let scene = Scene::new();
    scene.answer_all(Answer::Break(ms(1)));
    scene.refund(1);
    sleep(ms(10)).await;
    scene.answer_all(Answer::Reply(ms(1)));
    sleep(ms(2_000)).await;
    let stats = scene.store.stats();
    assert_eq!((stats.queued_refunds, stats.unconfirmed_refunds), (0, 1));
    assert_eq!(refunds(&scene), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_permit_without_a_reply_leaves_a_release() {
    let scene = Scene::new();
    let permits = register(&scene.store, "permits", Concurrency::new(), "9 concurrent");
    let permit = CounterOp::new(&permits, key_of(1));
    scene.answer_all(Answer::Break(ms(1)));
    let taken = scene.store.execute(Op::Acquire(1), &[permit]);
    taken.result().await.expect_err("it broke");
    scene.answer_all(Answer::Reply(ms(1)));
    sleep(ms(1_000)).await;
    assert_eq!((refunds(&scene), scene.used()), (1, 0));
}
