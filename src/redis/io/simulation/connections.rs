//! Which connection a call is sent on, and when one is replaced.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_replaced_after_a_timeout_and_its_calls_may_still_answer() {
    let scene = Scene::with(|builder| builder.timeout(ms(100)));
    let begun = Instant::now();
    scene.answer_all(Answer::Hold);
    let first = scene.spawn(1);
    sleep(ms(60)).await;
    // It follows on the same connection: its deadline is later.
    let second = scene.spawn(2);
    for _ in 3..60 {
        drop(scene.spawn(3));
    }
    settle().await;
    let (elapsed, result) = first.await.expect("it ends");
    result.expect_err("no reply");
    assert_eq!(elapsed, TIMEOUT);
    settle().await;
    let connects = scene.connects();
    assert_eq!(connects, [begun, begun + TIMEOUT]);
    scene.answer_all(Answer::Reply(ms(1)));
    let (elapsed, result) = scene.spawn(4).await.expect("it ends");
    result.expect("a reply");
    assert_eq!(elapsed, ms(1));
    assert_eq!(scene.calls().last().map(|call| call.connection), Some(2));
    scene.release(1);
    let (_, result) = second.await.expect("it ends");
    result.expect("a reply on the replaced connection");
}

#[tokio::test(start_paused = true)]
async fn a_reply_shows_that_a_connection_is_not_silent() {
    let scene = Scene::new();
    scene.answer(|call| match call.entries.len() {
        1 => Answer::Reply(ms(70)),
        _ => Answer::Hold,
    });
    for round in 0..3 {
        let reply = scene.spawn(round);
        settle().await;
        for key in 0..40 {
            drop(scene.spawn(1_000 + 100 * round + key));
        }
        reply.await.expect("it ends").1.expect("a reply");
    }
    assert_eq!(scene.connects().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_has_at_most_four_connections_and_the_calls_of_the_oldest_end() {
    let scene = Scene::with(RedisStoreBuilder::no_circuit_breaker);
    scene.answer_all(Answer::Hold);
    for key in 0..6 {
        let result = scene.request(key).await;
        assert!(result.expect_err("no reply").may_have_run());
        settle().await;
    }
    assert_eq!(scene.connects().len(), 7);
    let nodes = scene.store.stats().nodes;
    assert_eq!(nodes[0].connections, 4);
    assert_eq!(scene.waiting_calls(), [3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_after_a_minute() {
    let scene = Scene::new();
    scene.answer(|call| match call.is_batch() {
        true => Answer::Hold,
        false => Answer::Reply(ms(1)),
    });
    scene.request(1).await.expect_err("no reply");
    sleep(ms(59_800)).await;
    assert_eq!(scene.waiting_calls(), [0]);
    sleep(ms(200)).await;
    assert!(scene.waiting_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_tried_and_replaced_if_it_has_no_reply() {
    let scene = Scene::new();
    scene.request(1).await.expect("a reply");
    scene.answer_all(Answer::Hold);
    sleep(ms(30_000)).await;
    settle().await;
    assert_eq!(scene.calls().last().map(|call| &*call.name), Some("PING"));
    sleep(TIMEOUT).await;
    settle().await;
    assert_eq!(scene.connects().len(), 2);
    scene.answer_all(Answer::Reply(ms(1)));
    scene.request(2).await.expect("a reply");
    sleep(ms(59_950)).await;
    assert!(
        scene.waiting_calls().is_empty(),
        "the PING is still awaited"
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_was_closed_costs_no_request() {
    let scene = Scene::new();
    scene.request(1).await.expect("a reply");
    scene.break_connection(1);
    let (elapsed, result) = scene.spawn(2).await.expect("it ends");
    result.expect("a reply");
    assert_eq!(elapsed, Duration::ZERO);
    assert_eq!((scene.connects().len(), scene.used()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_fails_its_calls_which_are_not_sent_again() {
    let scene = Scene::new();
    scene.answer_all(Answer::Break(ms(10)));
    let (elapsed, result) = scene.spawn(1).await.expect("it ends");
    let error = result.expect_err("it broke");
    assert!(matches!(
        error,
        StoreError::Connection {
            may_have_run: true,
            ..
        }
    ));
    assert_eq!(elapsed, ms(10));
    scene.answer_all(Answer::Reply(ms(1)));
    scene.request(2).await.expect("a reply");
    sleep(ms(5_000)).await;
    assert_eq!(scene.calls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn requests_of_several_batches_that_no_connection_took_keep_their_deadlines() {
    let scene = Scene::new();
    scene.connect(Connect::OpensAfter(ms(20)));
    scene.answer_all(Answer::NotTaken);
    let mut waiting: Vec<_> = (0..128).map(|key| scene.spawn(key)).collect();
    sleep(ms(10)).await;
    waiting.extend((200..240).map(|key| scene.spawn(key)));
    sleep(ms(5)).await;
    scene.connect(Connect::Hangs);
    for request in waiting {
        let (elapsed, result) = request.await.expect("it ends");
        assert!(!result.expect_err("no connection").may_have_run());
        assert_eq!(elapsed, TIMEOUT);
    }
}
