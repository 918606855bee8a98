use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::{BoxError, ClientResponse, obey::HeedFuture};
use crate::{
    layer::body::InFlightRequest,
    limiter::{Admission, Keys, WaitFuture},
    outcome::RequestEnd,
};

pin_project! {
    /// The future of an [`Outgoing`](super::Outgoing) service. Dropping it while the request waits leaves the queue and charges
    /// nothing; dropping it after the inner service was called ends the request as
    /// [dropped](crate::outcome::RequestEnd::Dropped). Once the service has responded, dropping it while an obeyed response is written
    /// to the store discards the response; the key may or may not be blocked.
    pub struct ResponseFuture<S, Req, R>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, S::Future, Req, S::Response>,
        responses: R,
        // `None` if responses are not obeyed.
        keys: Option<Keys>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, Req, Res> {
        Waiting { waiting: WaitFuture, deferred: Option<(Req, S)> },
        // Dropped in this order: the call ends before its permit is released.
        Called { #[pin] inner: F, in_flight: Option<Box<InFlightRequest>> },
        // A block is written to the store before the response is returned, so that no call that follows it is sent.
        Heeding { heed: HeedFuture, responded: Option<(Res, Box<InFlightRequest>)> },
    }
}

impl<S, Req, R> ResponseFuture<S, Req, R>
where
    S: Service<Req>,
{
    pub(super) fn new(
        waiting: WaitFuture,
        request: Req,
        ready: S,
        responses: R,
        keys: Option<Keys>,
    ) -> Self {
        let deferred = Some((request, ready));
        Self {
            state: State::Waiting { waiting, deferred },
            responses,
            keys,
        }
    }

    pub(super) fn passthrough(inner: S::Future, responses: R) -> Self {
        let in_flight = Some(InFlightRequest::outgoing(Admission::none()));
        Self {
            state: State::Called { inner, in_flight },
            responses,
            keys: None,
        }
    }
}

impl<S, Req, R> Future for ResponseFuture<S, Req, R>
where
    S: Service<Req, Error: Into<BoxError>>,
    R: ClientResponse<S::Response>,
{
    type Output = Result<R::Output, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut state = this.state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Waiting { waiting, deferred } => {
                    let admission = match ready!(Pin::new(waiting).poll(cx)) {
                        Ok(admission) => admission,
                        Err(rejected) => return Poll::Ready(Err(Box::new(rejected))),
                    };
                    let in_flight = Some(InFlightRequest::outgoing(admission));
                    match deferred.take() {
                        Some((request, mut service)) => State::Called {
                            inner: service.call(request),
                            in_flight,
                        },
                        None => return Poll::Pending,
                    }
                }
                StateProj::Called { inner, in_flight } => {
                    let response = ready!(inner.poll(cx));
                    // The future was polled after it was ready.
                    let Some(in_flight) = in_flight.take() else {
                        return Poll::Pending;
                    };
                    let response = match response {
                        Ok(response) => response,
                        Err(error) => {
                            in_flight.end(RequestEnd::ServiceFailed);
                            return Poll::Ready(Err(error.into()));
                        }
                    };
                    let keys = this.keys.take();
                    let heed = keys.and_then(|keys| this.responses.heed(keys, &response));
                    let Some(heed) = heed else {
                        return Poll::Ready(Ok(this.responses.finish(response, in_flight)));
                    };
                    let responded = Some((response, in_flight));
                    State::Heeding { heed, responded }
                }
                StateProj::Heeding { heed, responded } => {
                    ready!(heed.as_mut().poll(cx));
                    let Some((response, in_flight)) = responded.take() else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(Ok(this.responses.finish(response, in_flight)));
                }
            };
            state.set(next);
        }
    }
}

impl<S, Req, R> fmt::Debug for ResponseFuture<S, Req, R>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::Waiting { .. } => "ResponseFuture(Waiting)",
            State::Called { .. } => "ResponseFuture(Called)",
            State::Heeding { .. } => "ResponseFuture(Heeding)",
        })
    }
}
