//! What opens and closes the circuit breaker.

use super::*;
use crate::observe::BreakerState;

#[tokio::test(start_paused = true)]
async fn three_failures_in_a_row_open_it_and_a_reply_in_time_resets_the_count() {
    let scene = Scene::new();
    for _ in 0..2 {
        scene.answer_all(Answer::Error("BUSY a script runs", ms(1)));
        for key in 0..2 {
            scene.request(key).await.expect_err("busy");
        }
        scene.answer_all(Answer::Reply(ms(1)));
        scene.request(3).await.expect("a reply");
    }
    scene.open_breaker().await;
    let calls = scene.calls().len();
    let (elapsed, result) = scene.spawn(4).await.expect("it ends");
    assert_eq!(elapsed, Duration::ZERO);
    let error = result.expect_err("it is open");
    assert!(matches!(
        error,
        StoreError::CircuitOpen { cause: Some(_), .. }
    ));
    assert_eq!(scene.calls().len(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_does_not_reset_the_count() {
    let scene = Scene::new();
    let busy = Answer::Error("BUSY a script runs", ms(1));
    scene.answer_all(busy);
    scene.request(1).await.expect_err("busy");
    scene.answer_all(Answer::Reply(ms(150)));
    // Its late reply leaves no refund, whose reply would be in time.
    let peek = scene.store.execute(Op::Peek, &[scene.counter(1)]);
    peek.result().await.expect_err("late");
    sleep(ms(60)).await;
    assert!(scene.waiting_calls().is_empty() && !scene.is_open());
    scene.answer_all(busy);
    scene.request(1).await.expect_err("busy");
    assert!(scene.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_silence_counts_once_however_many_calls_wait() {
    let scene = Scene::new();
    scene.answer_all(Answer::Reply(ms(1)));
    // Over a distant link each request leaves at once.
    scene.request(0).await.expect("a reply");
    scene.answer_all(Answer::Hold);
    let mut waiting = Vec::new();
    for key in 1..=4 {
        waiting.push(scene.spawn(key));
        settle().await;
    }
    assert_eq!(scene.waiting_calls().len(), 4);
    for request in waiting {
        request.await.expect("it ends").1.expect_err("no reply");
    }
    settle().await;
    assert!(!scene.is_open());
    for key in 5..=6 {
        scene.request(key).await.expect_err("no reply");
    }
    settle().await;
    assert!(scene.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_with_four_calls_counts_once() {
    let scene = Scene::new();
    for round in 1..=3 {
        assert!(!scene.is_open(), "round {round}");
        let connection = scene.connects().len() + usize::from(round == 1);
        scene.answer_all(Answer::Hold);
        let mut waiting = Vec::new();
        for key in 0..4 {
            let keys = 200 * key..200 * key + 128;
            waiting.extend(keys.map(|key| scene.spawn(key)));
            settle().await;
        }
        assert_eq!(scene.waiting_calls().len(), 4);
        let connection = scene
            .calls()
            .last()
            .map_or(connection, |call| call.connection);
        scene.break_connection(connection);
        for request in waiting {
            let (_, result) = request.await.expect("it ends");
            assert!(result.expect_err("it broke").may_have_run());
        }
    }
    assert!(scene.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_refused_counts_once_for_all_that_wait() {
    let scene = Scene::new();
    scene.connect(Connect::Refused);
    for _ in 0..3 {
        assert!(!scene.is_open());
        let waiting: Vec<_> = (0..300).map(|key| scene.spawn(key)).collect();
        for request in waiting {
            let (elapsed, result) = request.await.expect("it ends");
            let error = result.expect_err("refused");
            assert!(!error.may_have_run(), "{error}");
            assert_eq!(elapsed, Duration::ZERO);
        }
    }
    assert!(scene.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_open_is_silent_for_each_timeout() {
    let scene = Scene::new();
    scene.connect(Connect::Hangs);
    let begun = Instant::now();
    while !scene.is_open() {
        scene.request(1).await.expect_err("no connection");
        settle().await;
    }
    // The first attempt to connect has not ended.
    assert_eq!(begun.elapsed(), 3 * TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn probes_are_sent_with_pauses_that_double_to_a_second() {
    let scene = Scene::new();
    scene.open_breaker().await;
    let opened = Instant::now();
    sleep(Duration::from_secs(10)).await;
    let calls = scene.calls();
    let probes: Vec<_> = calls.iter().filter(|call| call.name == "PROBE").collect();
    let mut last = opened;
    let mut longest = ms(25);
    for probe in &probes {
        let pause = probe.at - last;
        // The clock of timers has steps of a millisecond.
        assert!(
            (longest / 2..=longest + ms(1)).contains(&pause),
            "{pause:?} of {longest:?}"
        );
        last = probe.at;
        longest = (longest * 2).min(ms(1_000));
    }
    assert!(probes.len() > 12, "{}", probes.len());
    let mut connections: Vec<_> = probes.iter().map(|probe| probe.connection).collect();
    connections.dedup();
    assert_eq!(connections.len(), probes.len(), "each on its own");
}

#[tokio::test(start_paused = true)]
async fn at_most_six_probes_wait_for_a_reply() {
    let scene = Scene::with(|builder| builder.timeout(Duration::from_secs(3)));
    scene.open_breaker().await;
    scene.answer_all(Answer::Hold);
    let before = scene.calls().len();
    for _ in 0..100 {
        sleep(ms(100)).await;
        assert!(scene.waiting_calls().len() <= 6);
    }
    assert!(scene.calls().len() > before + 8);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_answered_closes_it_and_its_connection_is_used() {
    let scene = Scene::new();
    scene.open_breaker().await;
    scene.answer_all(Answer::Reply(ms(5)));
    sleep(ms(35)).await;
    assert!(!scene.is_open());
    assert_eq!(scene.store.stats().nodes[0].breaker, BreakerState::Closed);
    let connects = scene.connects().len();
    scene.request(1).await.expect("a reply");
    assert_eq!(scene.connects().len(), connects);
}

#[tokio::test(start_paused = true)]
async fn one_failure_after_a_probe_does_not_open_it_and_two_do() {
    let scene = Scene::new();
    scene.open_breaker().await;
    scene.answer(|call| match call.is_batch() {
        true => Answer::Error("BUSY a script runs", ms(1)),
        false => Answer::Reply(ms(1)),
    });
    sleep(ms(30)).await;
    scene.request(1).await.expect_err("busy");
    assert!(!scene.is_open());
    scene.request(1).await.expect_err("busy");
    assert!(scene.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_is_used_within_two_seconds() {
    for down in [Connect::Hangs, Connect::Refused] {
        let scene = Scene::new();
        scene.request(0).await.expect("a reply");
        scene.answer_all(Answer::Hold);
        scene.connect(down);
        let outage = Instant::now();
        while outage.elapsed() < Duration::from_secs(60) {
            let (elapsed, result) = scene.spawn(1).await.expect("it ends");
            result.expect_err("it is down");
            assert!(elapsed <= TIMEOUT);
            sleep(ms(7)).await;
        }
        scene.connect(Connect::Opens);
        scene.answer_all(Answer::Reply(ms(1)));
        let back = Instant::now();
        while scene.request(1).await.is_err() {
            sleep(ms(7)).await;
        }
        let elapsed = back.elapsed();
        assert!(elapsed <= Duration::from_secs(2), "{down:?} {elapsed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn probes_that_end_by_a_panic_do_not_end_the_probing() {
    let scene = Scene::new();
    scene.open_breaker().await;
    scene.answer_all(Answer::Panic);
    sleep(Duration::from_secs(10)).await;
    scene.answer_all(Answer::Reply(ms(1)));
    sleep(Duration::from_secs(2)).await;
    scene.request(1).await.expect("a reply");
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_when_it_opens_fail_at_once() {
    let scene = Scene::new();
    scene.request(0).await.expect("a reply");
    scene.answer_all(Answer::Hold);
    let mut batches = Vec::new();
    for key in 0..4 {
        let keys = 200 * key..200 * key + 128;
        batches.extend(keys.map(|key| scene.spawn(key)));
        settle().await;
    }
    let first = scene.calls().len() - 4;
    let waiting: Vec<_> = (1_000..1_100).map(|key| scene.spawn(key)).collect();
    settle().await;
    scene.answer_all(Answer::Error("BUSY a script runs", Duration::ZERO));
    {
        let mut script = lock(&scene.script);
        for call in script.pending.values_mut() {
            call.reply = Err(server_error("BUSY a script runs"));
        }
        (first..first + 4).for_each(|call| script.release(call));
    }
    for request in waiting {
        let (elapsed, result) = request.await.expect("it ends");
        let error = result.expect_err("it is open");
        assert!(matches!(error, StoreError::CircuitOpen { .. }), "{error}");
        assert_eq!(elapsed, Duration::ZERO);
    }
    for request in batches {
        request.await.expect("it ends").1.expect_err("busy");
    }
}
