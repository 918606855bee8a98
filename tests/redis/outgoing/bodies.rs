//! A call of an HTTP client is in flight until its response's body has ended.

use std::io;

use futures_util::stream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tollgate::{
    outcome::RequestEnd,
    outgoing::{BoxError, Outgoing},
};
use tollgate_tests::{prelude::*, until::TEST_TIMEOUT};
use tower::util::BoxCloneSyncService;

use crate::outgoing::support::*;

type Frame = Result<&'static str, io::Error>;

/// What the client of a test responds.
type Reply = Result<Response<Body>, io::Error>;

/// A client that responds what the request has.
type Client = Outgoing<BoxCloneSyncService<Reply, Response<Body>, io::Error>>;

fn client(limiter: &Limiter) -> Client {
    let layer = OutgoingLayer::new(limiter.clone()).timeout(TEST_TIMEOUT);
    layer.layer(BoxCloneSyncService::new(service_fn(std::future::ready)))
}

/// A response whose body has what is sent.
fn streaming() -> (UnboundedSender<Frame>, Reply) {
    let (sender, frames) = unbounded_channel();
    let next = async |mut frames: UnboundedReceiver<Frame>| Some((frames.recv().await?, frames));
    let body = Body::from_stream(stream::unfold(frames, next));
    (sender, Ok(Response::new(body)))
}

fn empty(status: StatusCode) -> Reply {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    Ok(response)
}

#[tokio::test]
async fn a_call_holds_its_permit_until_its_body_has_ended_however_it_ends() {
    for world in World::both() {
        let (ended, ends) = std::sync::mpsc::channel();
        let charged = window("charged", "9/h").charge_after(move |outcome| {
            let sent = ended.send((
                outcome.status().map(|status| status.as_u16()),
                outcome.end(),
            ));
            sent.is_ok() && outcome.end() == RequestEnd::Completed
        });
        let limiter = world.limiter([permits(1), charged]);
        let client = client(&limiter);
        for end in [
            RequestEnd::Completed,
            RequestEnd::BodyFailed,
            RequestEnd::BodyDropped,
        ] {
            let _case = Case(format!("{end:?} on {}", world.name()));
            let (frames, reply) = streaming();
            let response = client.clone().oneshot(reply).await.expect("a response");
            let mut body = response.into_body();
            frames.send(Ok("data")).expect("a receiver");
            let frame = body.frame().await.expect("a frame").expect("data");
            assert_eq!(frame.into_data().expect("data"), "data");
            // The call is in flight.
            assert_eq!(left(&limiter, "permits").await, 0);
            assert!(ends.try_recv().is_err());
            let next = client.clone().oneshot(empty(StatusCode::NO_CONTENT));
            let mut next = Box::pin(next);
            assert!((&mut next).now_or_never().is_none());
            match end {
                RequestEnd::Completed => {
                    drop(frames);
                    assert!(body.frame().await.is_none());
                }
                RequestEnd::BodyFailed => {
                    let cut = Err(io::Error::other("cut"));
                    frames.send(cut).expect("a receiver");
                    let failed = body.frame().await.expect("the failure");
                    failed.expect_err("cut");
                }
                _ => drop(std::mem::take(&mut body)),
            }
            // A body that has ended may be kept.
            let _ = next.await.expect("a response");
            let seen = [ends.try_recv(), ends.try_recv()].map(|end| end.expect("an end"));
            assert_eq!(seen, [(Some(200), end), (Some(204), RequestEnd::Completed)]);
        }
        // Of three calls with a body one completed, and all three without.
        until("charged", async || left(&limiter, "charged").await == 5).await;
        assert_eq!(left(&limiter, "permits").await, 1);
    }
}

#[tokio::test]
async fn a_call_without_a_response_ends_at_once() {
    for world in World::both() {
        let (ended, ends) = std::sync::mpsc::channel();
        let charged = window("charged", "9/h")
            .refund_unless(move |outcome| ended.send(outcome.end()).is_err());
        let limiter = world.limiter([permits(1), charged]);
        let client = client(&limiter);
        let failed = client.clone().oneshot(Err(io::Error::other("refused")));
        let error: BoxError = failed.await.expect_err("an error");
        assert!(error.is::<io::Error>());
        assert_eq!(ends.try_recv(), Ok(RequestEnd::ServiceFailed));
        until("free", async || left(&limiter, "permits").await == 1).await;
        until("refunded", async || left(&limiter, "charged").await == 9).await;
    }
}

/// Otherwise a caller that keeps the response of one call during its next would wait for itself.
#[tokio::test]
async fn a_response_without_a_body_holds_no_permit() {
    for world in World::both() {
        let limiter = world.limiter([permits(1)]);
        let mut kept = Vec::new();
        for _ in 0..3 {
            let call = client(&limiter).oneshot(empty(StatusCode::OK));
            kept.push(call.await.expect("a response"));
        }
        until("free", async || left(&limiter, "permits").await == 1).await;
    }
}

#[tokio::test]
async fn the_caller_holds_the_permit_of_a_connection_that_is_upgraded() {
    for world in World::both() {
        let limiter = world.limiter([permits(1)]);
        let call = client(&limiter).oneshot(empty(StatusCode::SWITCHING_PROTOCOLS));
        let response = call.await.expect("a response");
        let admission: &Admission = response.extensions().get().expect("an admission");
        let held = admission.hold_permits();
        drop(response);
        assert_eq!(left(&limiter, "permits").await, 0);
        drop(held);
        until("free", async || left(&limiter, "permits").await == 1).await;
    }
}

#[tokio::test]
async fn an_admission_that_outlives_its_response_holds_no_permit_and_settles() {
    for world in World::both() {
        let limiter = world.limiter([permits(1), window("tokens", "100/h")]);
        let (_frames, reply) = streaming();
        let response = client(&limiter).oneshot(reply).await.expect("a response");
        let (head, body) = response.into_parts();
        assert_eq!(left(&limiter, "permits").await, 0);
        drop(body);
        until("free", async || left(&limiter, "permits").await == 1).await;
        let admission: &Admission = head.extensions.get().expect("an admission");
        let tokens = admission.policy("tokens").expect("a policy");
        tokens.settle(30).await.expect("settled");
        assert_eq!(left(&limiter, "tokens").await, 70);
    }
}
