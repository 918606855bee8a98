//! When a request ends, and how.

use std::{
    sync::atomic::AtomicBool,
    task::{Context, Wake, Waker},
};

use futures_util::FutureExt as _;
use tokio::time::advance;

use super::*;
use crate::{
    redis::{
        io::inbox::MAX_WAITING,
        request::{Followers, Retry, op::OwnedCounterOp},
    },
    strategy::{ErasedLocalRule, LuaScript, QuotaStatus, Rule, RuleInfo, Snapshot},
};

#[tokio::test(start_paused = true)]
async fn a_request_fails_at_its_deadline_and_its_late_reply_is_refunded_once() {
    let scene = Scene::new();
    scene.answer_all(Answer::Hold);
    let (elapsed, result) = scene.spawn(1).await.expect("it ends");
    assert_eq!(elapsed, TIMEOUT);
    let error = result.expect_err("no reply");
    assert!(matches!(error, StoreError::Timeout { may_have_run: true }));
    assert_eq!(scene.used(), 1);
    scene.answer_all(Answer::Reply(ms(1)));
    scene.release(0);
    sleep(ms(5_000)).await;
    assert_eq!(scene.used(), 0);
    let adjustments = scene.batches();
    assert_eq!(adjustments.len(), 2, "{adjustments:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_sent_by_its_deadline_did_not_run() {
    let scene = Scene::new();
    scene.connect(Connect::Hangs);
    let (elapsed, result) = scene.spawn(1).await.expect("it ends");
    assert_eq!(elapsed, TIMEOUT);
    let error = result.expect_err("no connection");
    assert!(matches!(
        error,
        StoreError::Timeout {
            may_have_run: false
        }
    ));
    assert!(scene.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_caller_has_left_is_not_sent_or_else_refunded() {
    let scene = Scene::new();
    drop(scene.push(1));
    settle().await;
    assert!(scene.calls().is_empty());
    scene.answer_all(Answer::Hold);
    let response = scene.push(2);
    settle().await;
    drop(response);
    scene.answer_all(Answer::Reply(ms(1)));
    scene.release(0);
    sleep(ms(10)).await;
    assert_eq!((scene.used(), scene.batches().len()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn replies_that_have_come_count_before_deadlines_after_a_suspension() {
    let scene = Scene::new();
    scene.request(0).await.expect("a reply");
    scene.answer(|_| Answer::Reply(ms(50)));
    let waiting: Vec<_> = (1..=4).map(|key| scene.spawn(key)).collect();
    settle().await;
    assert_eq!(scene.batches().len(), 2);
    // Past the deadlines and the replies at once.
    advance(Duration::from_secs(60)).await;
    for request in waiting {
        let (_, result) = request.await.expect("it ends");
        result.expect("the reply");
    }
    assert_eq!(scene.connects().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waited_in_the_inbox_during_a_suspension_is_not_sent() {
    let scene = Scene::new();
    scene.request(0).await.expect("a reply");
    let waiting = scene.push(1);
    advance(Duration::from_secs(60)).await;
    let error = waiting.result().await.expect_err("it is late");
    assert!(!error.may_have_run(), "{error}");
    assert_eq!(scene.batches().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn equal_requests_are_one_entry_whose_admitted_requests_are_the_first() {
    let scene = Scene::new();
    let limit = register(&scene.store, "few", Gcra, "3/day");
    let counter = CounterOp::new(&limit, key_of(1));
    let requests: Vec<_> = (0..5)
        .map(|_| scene.store.execute(Op::Acquire(1), &[counter]))
        .collect();
    let mut admitted = Vec::new();
    for request in requests {
        admitted.push(request.result().await.expect("a reply").admitted);
    }
    assert_eq!(admitted, [1, 1, 1, 0, 0]);
    let batches = scene.batches();
    assert_eq!(batches.len(), 1);
    let counts: Vec<_> = batches[0].entries.iter().map(|entry| entry.count).collect();
    assert_eq!(counts, [5]);
}

#[tokio::test(start_paused = true)]
async fn a_script_that_the_server_does_not_have_is_sent_with_its_text() {
    let scene = Scene::new();
    scene.answer(|call| match call.name == "EVALSHA" {
        true => Answer::Error("NOSCRIPT none", ms(1)),
        false => Answer::Reply(ms(1)),
    });
    scene.request(1).await.expect("a reply");
    let names: Vec<_> = scene.calls().into_iter().map(|call| call.name).collect();
    assert_eq!(names, ["EVALSHA", "EVAL"]);
    assert_eq!((scene.used(), scene.connects().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_replica_fails_its_requests_and_the_next_ones_go_to_a_new_connection() {
    let scene = Scene::new();
    for answer in [
        Answer::Error("READONLY a replica", ms(1)),
        Answer::EntryErrors("READONLY a replica"),
    ] {
        scene.answer_all(answer);
        let error = scene.request(1).await.expect_err("a replica");
        assert!(matches!(&error, StoreError::Server { code, .. } if &**code == "READONLY"));
        assert!(!error.may_have_run());
        scene.answer_all(Answer::Reply(ms(1)));
        scene.request(1).await.expect("a reply");
    }
    assert_eq!(scene.connects().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn more_requests_than_the_bound_fail_at_once() {
    let scene = Scene::new();
    scene.connect(Connect::Hangs);
    let first = scene.push(0);
    settle().await;
    let others: Vec<_> = (1..MAX_WAITING as u32).map(|key| scene.push(key)).collect();
    for _ in 0..2 {
        let overloaded = scene.push(0).result().now_or_never();
        assert!(matches!(overloaded, Some(Err(StoreError::Overloaded))));
        settle().await;
    }
    drop((first, others));
    assert!(!scene.is_open());
    scene.connect(Connect::Opens);
    sleep(ms(2_000)).await;
    scene.request(0).await.expect("a reply");
}

#[tokio::test(start_paused = true)]
async fn a_refund_that_was_pushed_before_the_store_is_dropped_is_sent() {
    let scene = Scene::new();
    scene.request(1).await.expect("a reply");
    scene.refund(1);
    let (io, script) = (scene.store.inner.io.clone(), scene.script.clone());
    drop(scene);
    sleep(ms(1)).await;
    assert_eq!(lock(&script).used.values().sum::<i64>(), 0);
    assert!(lock(&io.commands).is_closed, "the actor has not ended");
}

#[tokio::test(start_paused = true)]
async fn the_actor_of_a_dropped_store_ends_a_timeout_later_at_most() {
    let scene = Scene::new();
    scene.answer_all(Answer::Hold);
    let waiting = scene.spawn(1);
    settle().await;
    let io = scene.store.inner.io.clone();
    let script = scene.script.clone();
    drop(scene);
    settle().await;
    assert!(!lock(&io.commands).is_closed, "a call is in flight");
    let (elapsed, result) = waiting.await.expect("it ends");
    assert!(result.expect_err("no reply").may_have_run());
    assert_eq!(elapsed, TIMEOUT);
    sleep(ms(1)).await;
    assert!(lock(&io.commands).is_closed, "the actor has not ended");
    assert_eq!(lock(&script).calls.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_client_fails_the_calls_in_flight_and_the_next_request_works() {
    let scene = Scene::new();
    scene.request(0).await.expect("a reply");
    scene.answer_all(Answer::Hold);
    let waiting = scene.spawn(1);
    settle().await;
    scene.answer_all(Answer::Panic);
    // More than 32 are a second batch.
    let others: Vec<_> = (100..140).map(|key| scene.spawn(key)).collect();
    for request in others.into_iter().chain([waiting]) {
        let (elapsed, result) = request.await.expect("it ends");
        assert!(result.expect_err("a panic").may_have_run());
        assert_eq!(elapsed, Duration::ZERO);
    }
    scene.answer_all(Answer::Reply(ms(1)));
    sleep(TIMEOUT).await;
    scene.request(2).await.expect("a reply");
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a panic of a waker");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_reply_is_handled_ends_all_requests_of_the_batch() {
    let scene = Scene::new();
    scene.answer_all(Answer::Hold);
    let mut response = std::pin::pin!(scene.push(1).result());
    let waker = Waker::from(Arc::new(Panics));
    assert!(
        response
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let other = scene.spawn(2);
    settle().await;
    scene.answer_all(Answer::Reply(ms(1)));
    scene.release(0);
    let (elapsed, result) = other.await.expect("it ends");
    assert!(result.expect_err("a panic").may_have_run());
    assert_eq!(elapsed, Duration::ZERO);
    response.await.expect("the reply");
    sleep(TIMEOUT).await;
    scene.request(3).await.expect("a reply");
}

/// Counts as another rule does, until its parameters can't be computed.
#[derive(Debug)]
struct PanickingRule {
    rule: Arc<dyn Rule>,
    panics: Arc<AtomicBool>,
}

impl PanickingRule {
    fn new(panics: bool) -> Self {
        let quota = "9/day".parse().expect("a quota");
        Self {
            rule: Gcra.bind(&quota, &Terms::default()).expect("a rule"),
            panics: Arc::new(panics.into()),
        }
    }
}

impl Rule for PanickingRule {
    fn info(&self) -> RuleInfo {
        self.rule.info()
    }

    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus {
        self.rule.status(snapshot, now, cost)
    }

    fn script(&self) -> Option<LuaScript> {
        self.rule.script()
    }

    fn time_params(&self, _: Timestamp) -> Vec<i64> {
        assert!(!self.panics.load(Ordering::Relaxed), "a panic of a rule");
        vec![1]
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        self.rule.local_rule()
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_rule_fails_its_batch_alone() {
    let scene = Scene::new();
    let rule = PanickingRule::new(false);
    let panics = rule.panics.clone();
    let limit = scene
        .store
        .register("own", Arc::new(rule))
        .expect("a limit");
    let request = || {
        let counter = CounterOp::new(&limit, key_of(9));
        timed(scene.store.execute(Op::Acquire(1), &[counter]))
    };
    // Over a distant link each request leaves at once.
    scene.answer_all(Answer::Reply(ms(50)));
    request().await.expect("it ends").1.expect("a reply");
    let other = scene.spawn(1);
    settle().await;
    panics.store(true, Ordering::Relaxed);
    let (elapsed, result) = request().await.expect("it ends");
    assert!(!result.expect_err("a panic").may_have_run());
    assert_eq!(elapsed, Duration::ZERO);
    panics.store(false, Ordering::Relaxed);
    request().await.expect("it ends").1.expect("a reply");
    other.await.expect("it ends").1.expect("a reply");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_deadline_is_earlier_than_those_before_it_fails_at_its_deadline() {
    let scene = Scene::new();
    scene.request(1).await.expect("admitted");
    scene.answer_all(Answer::Hold);
    let earlier = [scene.spawn(2), scene.spawn(3)];
    settle().await;
    sleep(ms(10)).await;
    let waiting = scene.spawn(4);
    // As what follows the parts of a request in several slots.
    let counters = [OwnedCounterOp::of(&scene.counter(5))].into();
    let (io, deadline) = (&scene.store.inner.io, Instant::now() + ms(20));
    let followers = Followers::default();
    let response = io.execute(Op::Peek, counters, deadline, followers, Retry::IfUnread);
    io.wake();
    let (elapsed, result) = timed(response).await.expect("it ends");
    assert_eq!(elapsed, ms(20));
    assert!(!result.expect_err("not sent").may_have_run());
    for request in earlier.into_iter().chain([waiting]) {
        assert_eq!(request.await.expect("it ends").0, TIMEOUT);
    }
}
