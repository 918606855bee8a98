//! What the service does to those that go out.

use std::{
    future::{Ready, ready},
    io,
    sync::{atomic::AtomicU32, mpsc},
    task::{Context, Poll},
};

use tollgate::outgoing::BoxError;
use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

/// Returns the number of the clone that was called; panics if that was not polled ready.
#[derive(Default)]
struct PolledReadyOnly {
    number: u32,
    ready: bool,
}

impl Clone for PolledReadyOnly {
    fn clone(&self) -> Self {
        Self {
            number: self.number + 1,
            ready: false,
        }
    }
}

impl Service<()> for PolledReadyOnly {
    type Response = u32;
    type Error = Infallible;
    type Future = Ready<Result<u32, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(self.ready, "called without being ready");
        self.ready = false;
        ready(Ok(self.number))
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let mut service = OutgoingLayer::for_any_response(limiter).layer(PolledReadyOnly::default());
    for number in 0..3 {
        let ready = service.ready().await.expect("ready");
        assert_eq!(ready.call(()).await.expect("a response"), number);
    }
    assert_eq!(time.passed(), ms(2_000));
}

#[tokio::test(start_paused = true)]
async fn neither_poll_ready_nor_an_unpolled_call_charges_anything() {
    let (limiter, _) = limiter([policy("p", "5/s burst 5")]);
    let echo = service_fn(async |text: String| Ok::<_, Infallible>(text));
    let mut service = OutgoingLayer::for_any_response(limiter.clone()).layer(echo);
    for _ in 0..10 {
        service.ready().await.expect("ready");
    }
    drop(service.call("a".into()));
    assert_eq!(left(&limiter, "p").await, 5);
    service.call("b".into()).await.expect("a response");
    assert_eq!(left(&limiter, "p").await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_an_error_and_the_service_is_not_called() {
    let (limiter, _) = limiter([policy("p", "1/hour burst 1")]);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let failing = service_fn(move |()| {
        counted.fetch_add(1, Ordering::SeqCst);
        ready(Err::<(), _>(io::Error::other("upstream")))
    });
    let service = OutgoingLayer::for_any_response(limiter).layer(failing);
    let error: BoxError = service.clone().oneshot(()).await.expect_err("it fails");
    assert!(error.is::<io::Error>(), "{error:?}");
    let error: BoxError = service.oneshot(()).await.expect_err("rejected");
    let rejected: &Rejected = error.downcast_ref().expect("a rejection");
    assert!(rejected.retry_after().duration() > Some(secs(3_599)));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_while_it_waits_costs_nothing_and_calls_no_service() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let (sender, called) = mpsc::channel();
    let service =
        OutgoingLayer::for_any_response(limiter.clone()).layer(service_fn(move |who: u32| {
            let sent = sender.send(who);
            ready(sent)
        }));
    service.clone().oneshot(1).await.expect("a response");
    let mut waiting = Box::pin(service.clone().oneshot(2));
    assert!((&mut waiting).now_or_never().is_none());
    tokio::time::advance(ms(1_000)).await;
    drop(waiting);
    assert_eq!(left(&limiter, "p").await, 1);
    service.oneshot(3).await.expect("a response");
    assert_eq!(time.passed(), ms(1_000));
    assert_eq!(called.try_iter().collect::<Vec<_>>(), [1, 3]);
}

#[derive(Clone, Debug)]
struct Query {
    shard: &'static str,
    rows: u64,
}

#[tokio::test(start_paused = true)]
async fn a_function_of_the_request_selects_its_keys_and_cost() {
    let (limiter, time) = limiter([window("rows", "10/s").key(extract::peer())]);
    let layer = OutgoingLayer::for_any_response(limiter.clone())
        .key_with(|query: &Query| Key::new(query.shard))
        .cost_with(|query: &Query| query.rows)
        .timeout(ms(2_000))
        .queue(10);
    let database = service_fn(async |query: Query| Ok::<_, Infallible>(query.rows));
    let database = ServiceBuilder::new().layer(layer).service(database);
    let ask = |shard, rows| database.clone().oneshot(Query { shard, rows });
    assert_eq!(ask("a", 8).await.expect("rows"), 8);
    assert_eq!(ask("b", 8).await.expect("rows"), 8);
    assert_eq!(time.passed(), ms(0));
    assert_eq!(ask("a", 3).await.expect("rows"), 3);
    assert_eq!(time.passed(), ms(1_000));
    let error = ask("a", 11).await.expect_err("too much");
    assert!(error.is::<Rejected>());
}

#[tokio::test(start_paused = true)]
async fn the_caller_settles_the_true_cost_by_the_responses_admission() {
    let (limiter, _) = limiter([window("tokens", "100/s")]);
    let layer = OutgoingLayer::for_any_response(limiter.clone())
        .cost(50)
        .with_admission();
    let model = layer.layer(service_fn(async |prompt: &'static str| {
        Ok::<_, Infallible>(prompt.len() as u64)
    }));
    let (tokens, admission) = model.clone().oneshot("Hello").await.expect("a response");
    assert_eq!(left(&limiter, "tokens").await, 50);
    let charged = admission.policy("tokens").expect("a policy");
    charged.settle(tokens).await.expect("a response");
    assert_eq!(left(&limiter, "tokens").await, 95);

    // Or with what is in the extensions of HTTP's.
    let layer = OutgoingLayer::new(limiter.clone());
    let client = layer.layer(service_fn(async |()| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let response = client.oneshot(()).await.expect("a response");
    let admission: &Admission = response.extensions().get().expect("the admission");
    assert_eq!(admission.remaining("tokens"), Some(94));
    let charged = admission.policy("tokens").expect("a policy");
    charged.charge(4).await.expect("a response");
    assert_eq!(left(&limiter, "tokens").await, 90);
}

#[tokio::test(start_paused = true)]
async fn a_disabled_service_passes_everything_uncounted() {
    let (limiter, time) = limiter([policy("p", "1/s burst 1")]);
    let layer = OutgoingLayer::for_any_response(limiter.clone())
        .with_admission()
        .enabled(false);
    let echo = layer.layer(service_fn(async |n: u32| Ok::<_, Infallible>(n)));
    for n in 0..3 {
        let (response, admission) = echo.clone().oneshot(n).await.expect("a response");
        assert_eq!(response, n);
        assert_eq!(admission.decisions().len(), 0);
        let charged = admission.policy("p").expect("a policy");
        charged.settle(10).await.expect("nothing to settle");
    }
    assert_eq!(left(&limiter, "p").await, 1);
    assert_eq!(time.passed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_refunded_its_reservation() {
    let (limiter, _) = limiter([window("p", "9/s").refund_unless(outcome::success)]);
    let layer = OutgoingLayer::for_any_response(limiter.clone());
    let calls = layer.layer(service_fn(async |ok: bool| match ok {
        true => Ok(()),
        false => Err(io::Error::other("upstream")),
    }));
    calls.clone().oneshot(true).await.expect("a response");
    assert_eq!(left(&limiter, "p").await, 8);
    calls.clone().oneshot(false).await.expect_err("it fails");
    assert_eq!(left(&limiter, "p").await, 8);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_charged_unless_configured_otherwise() {
    for (charged, left_then) in [(true, 8), (false, 9)] {
        let reserved = window("p", "9/s").refund_unless(outcome::success);
        let reserved = reserved.charge_dropped(charged);
        let (limiter, _) = limiter([reserved]);
        let never = service_fn(|()| std::future::pending::<Result<(), Infallible>>());
        let service = OutgoingLayer::for_any_response(limiter.clone()).layer(never);
        let mut call = Box::pin(service.oneshot(()));
        assert!((&mut call).now_or_never().is_none());
        assert_eq!(left(&limiter, "p").await, 8);
        drop(call);
        assert_eq!(left(&limiter, "p").await, left_then);
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_until_there_is_a_response() {
    let (limiter, _) = limiter([permits(1)]);
    let layer = OutgoingLayer::for_any_response(limiter.clone());
    let (open, opened) = tokio::sync::watch::channel(false);
    let gate = service_fn(move |()| {
        let mut opened = opened.clone();
        async move { opened.wait_for(|open| *open).await.map(drop) }
    });
    let service = layer.layer(gate);
    let mut first = Box::pin(service.clone().oneshot(()));
    let mut second = Box::pin(service.clone().oneshot(()));
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(left(&limiter, "permits").await, 0);
    open.send_replace(true);
    first.await.expect("a response");
    second.await.expect("a response");
    assert_eq!(left(&limiter, "permits").await, 1);

    // Or for as long as the admission exists.
    let beside = layer
        .with_admission()
        .layer(service_fn(async |()| Ok::<_, Infallible>(())));
    let ((), admission) = beside.oneshot(()).await.expect("a response");
    assert_eq!(left(&limiter, "permits").await, 0);
    drop(admission);
    assert_eq!(left(&limiter, "permits").await, 1);
}
