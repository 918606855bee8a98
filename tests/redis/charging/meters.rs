//! Meters: units that are counted while a request is served.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use tollgate::limiter::UnitMeter;
use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// A layer that charges each request 4 of 100 tokens.
fn layer(world: &World) -> RateLimitLayer {
    let tokens = window("tokens", "100/min").cost(4);
    world.layer([tokens, even("requests", "9/min")])
}

/// An admission of one request, and its limiter.
async fn admitted(world: &World) -> (Limiter, Admission) {
    let layer = layer(world);
    forget(&layer).await;
    let admission = layer.limiter().admit(KEY).await.expect("room");
    (layer.limiter().clone(), admission)
}

fn meter(admission: &Admission) -> UnitMeter {
    admission.policy("tokens").expect("a policy").meter()
}

/// Waits for what is settled in the background.
async fn until_used(limiter: &Limiter, units: u64) {
    until("it is settled", async || {
        used(limiter, "tokens").await == units
    })
    .await;
}

/// A response that streams thirty pieces, one unit each.
fn metered(mut meter: UnitMeter) -> Response<PiecesBody> {
    // The closure calls `add` alone, and captures the meter.
    let pieces = stream::iter(0..30).map(move |_| {
        meter.add(1);
        Ok(Frame::data(Bytes::from_static(b"piece")))
    });
    Response::new(StreamBody::new(pieces).boxed_unsync())
}

#[tokio::test]
async fn a_stream_is_charged_what_its_meter_counted_and_its_arrival_if_that_is_nothing() {
    for world in World::both() {
        for (pieces, units) in [(30, 30), (7, 7), (0, 4)] {
            let layer = layer(&world);
            forget(&layer).await;
            let handler = async |request: Request<()>| {
                Ok::<_, Infallible>(metered(meter(&admission_of(&request))))
            };
            let Ok(response) = call(&layer, request(), handler).await;
            let mut body = response.into_body();
            for _ in 0..pieces {
                body.frame().await.expect("a piece").expect("a piece");
            }
            drop(body);
            until_used(layer.limiter(), units).await;
            // The other policy is left alone.
            assert_eq!(used(layer.limiter(), "requests").await, 1);
        }
    }
}

#[tokio::test]
async fn a_meter_settles_the_last_number_also_if_it_is_smaller_or_zero_and_a_finish_once() {
    for world in World::both() {
        for last in [30, 5, 0] {
            let (limiter, admission) = admitted(&world).await;
            let mut meter = meter(&admission);
            meter.add(20);
            meter.set(last);
            assert_eq!(meter.units(), last);
            drop(meter);
            until_used(&limiter, last).await;
        }
        for is_cancelled in [false, true] {
            let (limiter, admission) = admitted(&world).await;
            let mut meter = meter(&admission);
            meter.set(8);
            meter.add(2);
            let finished = meter.finish();
            if is_cancelled {
                drop(finished.now_or_never());
            } else {
                finished.await.expect("a response");
                assert_eq!(admission.remaining("tokens"), Some(90));
            }
            until_used(&limiter, 10).await;
        }
        let (limiter, admission) = admitted(&world).await;
        meter(&admission).finish().await.expect("nothing to settle");
        meter(&admission).add(0);
        assert_eq!(used(&limiter, "tokens").await, 4);
    }
}

/// Another task's settlement waits for its reply. A dropped `finish` is a dropped meter.
#[tokio::test]
async fn a_meter_that_is_dropped_during_another_settlement_is_settled_after_it() {
    let world = World::redis();
    let server = world.server();
    for finishes in [false, true] {
        let (limiter, admission) = admitted(&world).await;
        let mut meter = meter(&admission);
        meter.set(7);
        server.pause();
        let tokens = admission.policy("tokens").expect("a policy");
        let mut settling = Box::pin(tokens.settle(30));
        assert!((&mut settling).now_or_never().is_none());
        if finishes {
            assert!(meter.finish().now_or_never().is_none());
        } else {
            drop(meter);
        }
        server.resume();
        settling.await.expect("a response");
        until_used(&limiter, 7).await;
    }
}

/// Its runtime is gone, and nothing uses the store: the next runtime that does brings it there. The meter outlives its runtime, or is
/// dropped with its task.
#[test]
fn a_meter_dropped_without_or_with_its_runtime_is_settled_by_the_next_runtime() {
    for world in World::both() {
        for is_in_a_task in [false, true] {
            // Of one thread: while another thread ends the connection, a settlement may be lost on its way.
            let first = current_thread();
            let (limiter, admission) = first.block_on(admitted(&world));
            let mut meter = meter(&admission);
            meter.add(20);
            let task = async move {
                std::future::pending::<()>().await;
                drop(meter);
            };
            if is_in_a_task {
                first.spawn(task);
                first.block_on(tokio::task::yield_now());
                drop(first);
            } else {
                drop(first);
                drop(task);
            }
            current_thread().block_on(async {
                until_used(&limiter, 20).await;
                // What was settled counts for what follows.
                let tokens = admission.policy("tokens").expect("a policy");
                tokens.settle(22).await.expect("a response");
                until_used(&limiter, 22).await;
            });
        }
    }
}

#[tokio::test]
async fn a_meter_does_not_panic_when_the_store_fails() {
    let builder = Limiter::builder().store(StubStore::unreachable());
    let limiter = stores::limiter(builder, [window("tokens", "9/min")]);
    let admission = limiter.admit(KEY).await.expect("admitted without a store");
    for outside in [false, true] {
        let mut meter = meter(&admission);
        meter.add(20);
        match outside {
            false => meter.finish().await.expect("nothing was charged"),
            true => thread::spawn(move || drop(meter)).join().expect("no panic"),
        }
    }
}
