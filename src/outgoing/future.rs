use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::response::Parts;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{AttachAdmission, BoxError, ObeyResponses, obey::HeedFuture};
use crate::{
    limiter::{Admission, Keys, WaitFuture},
    outcome::{Head, Outcome, RequestEnd},
};

pin_project! {
    /// The future of an [`Outgoing`](super::Outgoing) service. Dropping it while the request waits leaves the queue and charges
    /// nothing; dropping it after the inner service was called ends the request as
    /// [dropped](crate::outcome::RequestEnd::Dropped). Once the service has responded, dropping it while an obeyed response is written
    /// to the store discards the response; the key may or may not be blocked.
    pub struct ResponseFuture<S, Req, H, O = ()>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, S::Future, Req, S::Response>,
        attach: H,
        obeyed: Option<(O, Keys)>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, Req, Res> {
        Waiting { waiting: WaitFuture, deferred: Option<(Req, S)> },
        // Dropped in this order: the call ends before its permit is released.
        Called { #[pin] inner: F, in_flight: Option<InFlightCall> },
        // A block is written to the store before the response is returned, so that no call that follows it is sent.
        Heeding { heed: HeedFuture, responded: Option<(Res, Admission)> },
    }
}

impl<S, Req, H, O> ResponseFuture<S, Req, H, O>
where
    S: Service<Req>,
{
    pub(super) fn new(
        waiting: WaitFuture,
        request: Req,
        ready: S,
        attach: H,
        obeyed: Option<(O, Keys)>,
    ) -> Self {
        let deferred = Some((request, ready));
        Self {
            state: State::Waiting { waiting, deferred },
            attach,
            obeyed,
        }
    }

    pub(super) fn passthrough(inner: S::Future, attach: H) -> Self {
        let in_flight = Some(InFlightCall::new(Admission::none()));
        Self {
            state: State::Called { inner, in_flight },
            attach,
            obeyed: None,
        }
    }
}

impl<S, Req, H, O> Future for ResponseFuture<S, Req, H, O>
where
    S: Service<Req, Error: Into<BoxError>>,
    H: AttachAdmission<S::Response>,
    O: ObeyResponses<S::Response>,
{
    type Output = Result<H::Output, BoxError>;

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
                    let in_flight = Some(InFlightCall::new(admission));
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
                            in_flight.on_failure();
                            return Poll::Ready(Err(error.into()));
                        }
                    };
                    let admission = in_flight.on_response(|| this.attach.head(&response));
                    let heed = this
                        .obeyed
                        .take()
                        .and_then(|(obey, keys)| obey.heed(keys, &response));
                    let Some(heed) = heed else {
                        return Poll::Ready(Ok(this.attach.attach(response, admission)));
                    };
                    let responded = Some((response, admission));
                    State::Heeding { heed, responded }
                }
                StateProj::Heeding { heed, responded } => {
                    ready!(heed.as_mut().poll(cx));
                    let Some((response, admission)) = responded.take() else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(Ok(this.attach.attach(response, admission)));
                }
            };
            state.set(next);
        }
    }
}

impl<S, Req, H, O> fmt::Debug for ResponseFuture<S, Req, H, O>
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

/// An admitted call, until its outcome is known. Dropping it settles the charge as for a request that was dropped.
#[derive(Debug)]
struct InFlightCall {
    admission: Admission,
    settled: bool,
}

impl InFlightCall {
    fn new(admission: Admission) -> Self {
        // Most policies charge whatever the outcome.
        let settled = !admission.depends_on_outcome(0);
        Self { admission, settled }
    }

    /// Settles the charge by the response.
    fn on_response(mut self, head: impl FnOnce() -> Parts) -> Admission {
        if !self.settled {
            let head = Head::of(&head());
            self.settle(&Outcome::new(Some(&head), None, RequestEnd::Completed));
        }
        self.admission.clone()
    }

    /// Settles the charge after an error of the service.
    fn on_failure(mut self) {
        self.settle(&Outcome::new(None, None, RequestEnd::ServiceFailed));
    }

    fn settle(&mut self, outcome: &Outcome<'_>) {
        if !self.settled {
            self.settled = true;
            self.admission.settle_outcome(0, outcome);
        }
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.settle(&Outcome::new(None, None, RequestEnd::Dropped));
    }
}
