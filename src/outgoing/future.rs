use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::{AttachAdmission, BoxError, in_flight::Ticket};
use crate::{admission::Admission, limiter::WaitFuture};

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
        Waiting { waiting: WaitFuture, held: Option<(Req, S)> },
        // Dropped in this order: the call ends before its place is given back.
        Called { #[pin] inner: F, ticket: Option<Ticket> },
    }
}

impl<S, Req, H> ResponseFuture<S, Req, H>
where
    S: Service<Req>,
{
    pub(super) fn new(waiting: WaitFuture, request: Req, ready: S, attach: H) -> Self {
        let held = Some((request, ready));
        Self {
            state: State::Waiting { waiting, held },
            attach,
        }
    }

    pub(super) fn untouched(inner: S::Future, attach: H) -> Self {
        let ticket = Some(Ticket::new(Admission::none()));
        Self {
            state: State::Called { inner, ticket },
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
                StateProj::Waiting { waiting, held } => {
                    let admission = match ready!(Pin::new(waiting).poll(cx)) {
                        Ok(admission) => admission,
                        Err(refused) => return Poll::Ready(Err(Box::new(refused))),
                    };
                    let ticket = Some(Ticket::new(admission));
                    match held.take() {
                        Some((request, mut service)) => State::Called {
                            inner: service.call(request),
                            ticket,
                        },
                        None => return Poll::Pending,
                    }
                }
                StateProj::Called { inner, ticket } => {
                    let response = ready!(inner.poll(cx));
                    // Polled again after it was ready, which futures must not be.
                    let Some(ticket) = ticket.take() else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(match response {
                        Ok(response) => {
                            let admission = ticket.respond(|| this.attach.head(&response));
                            Ok(this.attach.attach(response, admission))
                        }
                        Err(error) => {
                            ticket.fail();
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
