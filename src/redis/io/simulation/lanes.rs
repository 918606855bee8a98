//! When a batch leaves, and what is in it.

use super::*;

#[tokio::test(start_paused = true)]
async fn over_a_distant_link_a_batch_leaves_at_once_while_fewer_than_four_are_in_flight() {
    let scene = Scene::new();
    scene.answer_all(Answer::Reply(ms(1)));
    scene.request(0).await.expect("a reply");
    scene.answer_all(Answer::Hold);
    let mut waiting = Vec::new();
    for key in 1..=4 {
        waiting.push(scene.spawn(key));
        settle().await;
        assert_eq!(scene.waiting_calls().len(), key as usize);
    }
    waiting.extend((5..=200).map(|key| scene.spawn(key)));
    settle().await;
    assert_eq!(scene.waiting_calls().len(), 4);
    scene.answer_all(Answer::Reply(ms(1)));
    scene.release(1);
    settle().await;
    let last = scene.calls().pop().expect("a call");
    assert_eq!(last.entries.len(), 128);
    (2..=4).for_each(|call| scene.release(call));
    for request in waiting {
        request.await.expect("it ends").1.expect("a reply");
    }
    assert_eq!(scene.used(), 201);
}

#[tokio::test(start_paused = true)]
async fn to_a_server_nearby_an_extra_batch_leaves_once_it_is_worth_it() {
    let scene = Scene::new();
    scene.request(0).await.expect("a reply");
    scene.answer_all(Answer::Hold);
    let mut waiting = vec![scene.spawn(1)];
    settle().await;
    waiting.extend((2..=32).map(|key| scene.spawn(key)));
    settle().await;
    assert_eq!(scene.waiting_calls().len(), 1);
    waiting.push(scene.spawn(33));
    settle().await;
    assert_eq!(scene.waiting_calls().len(), 2);
    (1..=2).for_each(|call| scene.release(call));
    for request in waiting {
        request.await.expect("it ends").1.expect("a reply");
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_gathered_leaves_with_the_reply_to_the_call_in_flight() {
    let scene = Scene::new();
    scene.request(0).await.expect("a reply");
    scene.answer_all(Answer::Hold);
    let mut waiting = vec![scene.spawn(1)];
    settle().await;
    waiting.extend((2..=9).map(|key| scene.spawn(key)));
    settle().await;
    scene.answer_all(Answer::Reply(Duration::ZERO));
    scene.release(1);
    for request in waiting {
        let (elapsed, result) = request.await.expect("it ends");
        result.expect("a reply");
        assert_eq!(elapsed, Duration::ZERO);
    }
    let sizes: Vec<_> = scene
        .calls()
        .iter()
        .map(|call| call.entries.len())
        .collect();
    assert_eq!(sizes, [1, 1, 8]);
}

#[tokio::test(start_paused = true)]
async fn requests_are_sent_in_the_order_of_their_arrival() {
    let scene = Scene::new();
    let waiting: Vec<_> = (0..300).map(|key| scene.spawn(key)).collect();
    for request in waiting {
        request.await.expect("it ends").1.expect("a reply");
    }
    let calls = scene.calls();
    let entries = calls.iter().flat_map(|call| &call.entries);
    let keys: Vec<_> = entries.map(|entry| entry.keys[0].clone()).collect();
    let expected: Vec<_> = (0..300)
        .map(|key| format!("tg:g3:requests:k{key}"))
        .collect();
    assert_eq!(keys, expected);
}
