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

/// A response that streams `pieces` pieces, one unit each.
fn metered(mut meter: UnitMeter, pieces: usize) -> Response<PiecesBody> {
    // The closure calls `add` alone, and captures the meter.
    let pieces = stream::iter(0..pieces).map(move |_| {
        meter.add(1);
        Ok(Frame::data(Bytes::from_static(b"piece")))
    });
    Response::new(StreamBody::new(pieces).boxed_unsync())
}

/// A response of a handler behind a layer, and what is left to be read.
async fn streaming(world: &World, pieces: usize) -> (Limiter, LayerResponse) {
    let layer = layer(world);
    let handler = move |request: Request<()>| {
        let meter = meter(request.extensions().get().expect("an admission"));
        async move { Ok::<_, Infallible>(metered(meter, pieces)) }
    };
    let Ok(response) = call(&layer, request(), handler).await;
    (layer.limiter().clone(), response)
}

#[tokio::test]
async fn a_stream_read_to_its_end_is_charged_what_its_meter_counted() {
    for world in World::both() {
        let (limiter, response) = streaming(&world, 30).await;
        read(response).await.expect("a body");
        until_used(&limiter, 30).await;
        // The other policy is left alone.
        assert_eq!(used(&limiter, "requests").await, 1);
    }
}

#[tokio::test]
async fn a_dropped_stream_is_charged_what_its_meter_had_counted() {
    for world in World::both() {
        let (limiter, response) = streaming(&world, 30).await;
        let mut body = response.into_body();
        for _ in 0..7 {
            body.frame().await.expect("a piece").expect("a piece");
        }
        drop(body);
        until_used(&limiter, 7).await;
    }
}

#[tokio::test]
async fn a_meter_that_counted_nothing_leaves_the_charge_on_arrival() {
    for world in World::both() {
        let (limiter, response) = streaming(&world, 30).await;
        drop(response);
        assert_eq!(used(&limiter, "tokens").await, 4);
        let (limiter, admission) = admitted(&world).await;
        meter(&admission).finish().await.expect("nothing to settle");
        assert_eq!(used(&limiter, "tokens").await, 4);
    }
}

#[tokio::test]
async fn finishing_a_meter_settles_once() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world).await;
        let mut meter = meter(&admission);
        meter.add(20);
        meter.add(u64::MAX);
        meter = self::meter(&admission);
        meter.add(20);
        assert_eq!(meter.units(), 20);
        meter.finish().await.expect("a response");
        until_used(&limiter, 20).await;
        assert_eq!(admission.remaining("tokens"), Some(80));
    }
}

#[tokio::test]
async fn a_meter_that_is_set_settles_the_last_number_also_if_it_is_smaller_or_zero() {
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
        let (limiter, admission) = admitted(&world).await;
        let mut meter = meter(&admission);
        meter.set(8);
        meter.add(2);
        meter.finish().await.expect("a response");
        assert_eq!(admission.remaining("tokens"), Some(90));
        until_used(&limiter, 10).await;
        // Nothing that counts was added.
        let (limiter, admission) = admitted(&world).await;
        self::meter(&admission).add(0);
        assert_eq!(used(&limiter, "tokens").await, 4);
    }
}

#[tokio::test]
async fn a_finish_cancelled_half_way_settles_once() {
    for world in World::both() {
        let (limiter, admission) = admitted(&world).await;
        let mut meter = meter(&admission);
        meter.add(20);
        drop(meter.finish().now_or_never());
        until_used(&limiter, 20).await;
    }
}

#[tokio::test]
async fn a_meter_that_is_dropped_outside_a_runtime_settles() {
    for world in World::both() {
        for strategy in [
            StrategyKind::Fixed,
            StrategyKind::Gcra,
            StrategyKind::Bucket,
        ] {
            let limiter = world.limiter([together(strategy, "tokens", "100/min").cost(4)]);
            for units in [20, 1] {
                let _ = limiter.reset(KEY).await;
                let admission = limiter.admit(KEY).await.expect("room");
                let mut meter = meter(&admission);
                meter.add(units);
                let dropped = thread::spawn(move || drop(meter));
                dropped.join().expect("no panic");
                until_used(&limiter, units).await;
                // What was settled counts for what follows.
                let tokens = admission.policy("tokens").expect("a policy");
                tokens.settle(units + 2).await.expect("a response");
                until_used(&limiter, units + 2).await;
            }
        }
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
            current_thread().block_on(until_used(&limiter, 20));
        }
    }
}

#[tokio::test]
async fn a_meter_does_not_panic_when_the_store_fails() {
    let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let builder = Limiter::builder().store(store);
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
