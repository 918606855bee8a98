use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;
use tower_service::Service;

use super::{
    ResponseBody,
    in_flight::Ticket,
    shared::{Gate, Pass, Told},
};
use crate::{limiter::PendingDecision, outcome::RequestEnd, respond::RefusalBody};

pin_project! {
    /// The future of a [`RateLimit`](crate::RateLimit) service. Dropping it before the decision cancels the request: a charge
    /// that was made nevertheless is refunded. Dropping it later ends the request as
    /// [dropped](crate::outcome::RequestEnd::Dropped).
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, S::Future, ReqBody>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, ReqBody> {
        // In a box, for the sake of those that are decided at once: futures are moved about as large as they may become.
        Judging { judging: Box<Judging<S, ReqBody>> },
        // Dropped in this order: the work ends before its place is given back.
        Passed { #[pin] inner: F, pass: Pass },
        Refused { response: Option<Response<RefusalBody>> },
    }
}

struct Judging<S, ReqBody> {
    pending: PendingDecision,
    held: Option<(Split<ReqBody>, S, Arc<Gate>)>,
}

/// A request that is looked at.
type Split<ReqBody> = (Parts, ReqBody);

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// Of a request that is served.
    #[inline]
    pub(super) fn passed(inner: S::Future, pass: Pass) -> Self {
        let state = State::Passed { inner, pass };
        Self { state }
    }

    pub(super) fn refused(response: Response<RefusalBody>) -> Self {
        let response = Some(response);
        Self {
            state: State::Refused { response },
        }
    }

    pub(super) fn judging(
        pending: PendingDecision,
        request: Split<ReqBody>,
        ready: S,
        gate: Arc<Gate>,
    ) -> Self {
        let held = Some((request, ready, gate));
        let judging = Box::new(Judging { pending, held });
        Self {
            state: State::Judging { judging },
        }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Judging { judging } => {
                    let decision = ready!(Pin::new(&mut judging.pending).poll(cx));
                    let Some(((mut parts, body), mut service, gate)) = judging.held.take() else {
                        return Poll::Pending;
                    };
                    if decision.is_admitted() {
                        let pass = gate.admit(decision, &mut parts);
                        let inner = service.call(Request::from_parts(parts, body));
                        State::Passed { inner, pass }
                    } else {
                        let response = Some(gate.refuse(&decision, &parts));
                        State::Refused { response }
                    }
                }
                StateProj::Passed { inner, pass } => {
                    let response = ready!(inner.poll(cx));
                    let mut pass = mem::take(pass);
                    let response = response.map(|response| pass.rejected(response));
                    let Pass { told, ticket, .. } = pass;
                    let mut response = match response {
                        Ok(Err(response)) => response,
                        Ok(Ok(answer)) => {
                            return Poll::Ready(Ok(answer_for_handler(answer, told, ticket)));
                        }
                        Err(error) => {
                            drop(told);
                            if let Some(ticket) = ticket {
                                ticket.end(RequestEnd::ServiceFailed);
                            }
                            return Poll::Ready(Err(error));
                        }
                    };
                    if let Some(told) = told {
                        told.tell(&mut response);
                    }
                    let Some(ticket) = ticket else {
                        return Poll::Ready(Ok(response.map(ResponseBody::untouched)));
                    };
                    let (response, ticket) = ticket.respond(response);
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::inner(body, ticket))));
                }
                StateProj::Refused { response } => {
                    // There is no service to yield: a client that tries again at once leaves other tasks their turns.
                    ready!(poll_proceed(cx)).made_progress();
                    return match response.take() {
                        Some(response) => Poll::Ready(Ok(response.map(ResponseBody::own))),
                        // Polled again after it was ready, which futures must not be.
                        None => Poll::Pending,
                    };
                }
            };
            state.set(next);
        }
    }
}

/// Sends a layer's answer to a request that its handler rejected.
#[cold]
fn answer_for_handler<B>(
    mut answer: Response<RefusalBody>,
    told: Option<Told>,
    ticket: Option<Box<Ticket>>,
) -> Response<ResponseBody<B>> {
    if let Some(told) = told {
        told.tell(&mut answer);
    }
    if let Some(ticket) = ticket {
        let (response, ticket) = ticket.respond(answer);
        ticket.end(RequestEnd::Completed);
        answer = response;
    }
    answer.map(ResponseBody::own)
}

impl<S, ReqBody> fmt::Debug for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::Judging { .. } => "ResponseFuture(Judging)",
            State::Passed { .. } => "ResponseFuture(Passed)",
            State::Refused { .. } => "ResponseFuture(Refused)",
        })
    }
}
