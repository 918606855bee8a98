use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::response::Parts;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{AttachAdmission, BoxError};
use crate::{
    limiter::{Admission, WaitFuture},
    outcome::{Head, Outcome, RequestEnd},
};

pin_project! {
    /// The future of an [`Outgoing`](super::Outgoing) service. Dropping it while the request waits leaves the queue and charges
    /// nothing; dropping it after the inner service was called ends the request as
    /// [dropped](crate::outcome::RequestEnd::Dropped).
    pub struct ResponseFuture<S, Req, H>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, S::Future, Req>,
        attach: H,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, Req> {
        Waiting { waiting: WaitFuture, deferred: Option<(Req, S)> },
        // Dropped in this order: the call ends before its permit is released.
        Called { #[pin] inner: F, in_flight: Option<InFlightCall> },
    }
}

impl<S, Req, H> ResponseFuture<S, Req, H>
where
    S: Service<Req>,
{
    pub(super) fn new(waiting: WaitFuture, request: Req, ready: S, attach: H) -> Self {
        let deferred = Some((request, ready));
        Self {
            state: State::Waiting { waiting, deferred },
            attach,
        }
    }

    pub(super) fn passthrough(inner: S::Future, attach: H) -> Self {
        let in_flight = Some(InFlightCall::new(Admission::none()));
        Self {
            state: State::Called { inner, in_flight },
            attach,
        }
    }
}

impl<S, Req, H> Future for ResponseFuture<S, Req, H>
where
    S: Service<Req, Error: Into<BoxError>>,
    H: AttachAdmission<S::Response>,
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
                    return Poll::Ready(match response {
                        Ok(response) => {
                            let admission = in_flight.on_response(|| this.attach.head(&response));
                            Ok(this.attach.attach(response, admission))
                        }
                        Err(error) => {
                            in_flight.on_failure();
                            Err(error.into())
                        }
                    });
                }
            };
            state.set(next);
        }
    }
}

impl<S, Req, H> fmt::Debug for ResponseFuture<S, Req, H>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::Waiting { .. } => "ResponseFuture(Waiting)",
            State::Called { .. } => "ResponseFuture(Called)",
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
