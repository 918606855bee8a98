use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{ResponseBody, ticket::Ticket};
use crate::{
    admission::Admission,
    decision::Decision,
    limiter::Pending,
    outcome::End,
    respond::{Answers, Delay, Headers, RefusalBody, tell},
};

pin_project! {
    /// The future of a [`RateLimit`](crate::RateLimit) service.
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
        Passed { #[pin] inner: F, ticket: Option<Ticket>, fields: Headers },
        Refused { response: Option<Response<RefusalBody>> },
    }
}

struct Judging<S, ReqBody> {
    pending: Pending,
    held: Option<(Request<ReqBody>, S, Arc<Answers>)>,
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn untouched(inner: S::Future) -> Self {
        Self {
            state: State::Passed {
                inner,
                ticket: None,
                fields: Headers::none(),
            },
        }
    }

    pub(super) fn judging(
        pending: Pending,
        request: Request<ReqBody>,
        ready: S,
        answers: Arc<Answers>,
    ) -> Self {
        let held = Some((request, ready, answers));
        let judging = Box::new(Judging { pending, held });
        Self {
            state: State::Judging { judging },
        }
    }

    #[inline]
    pub(super) fn decided(
        decision: Decision,
        request: Request<ReqBody>,
        ready: &mut S,
        answers: &Answers,
    ) -> Self {
        Self {
            state: follow(decision, request, ready, answers),
        }
    }
}

/// Calls the service, or doesn't.
#[inline]
fn follow<S, ReqBody>(
    decision: Decision,
    mut request: Request<ReqBody>,
    ready: &mut S,
    answers: &Answers,
) -> State<S, S::Future, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    let outer = request.extensions().get::<Admission>();
    if !decision.is_admitted() {
        if let Some(admission) = outer {
            admission.withdraw();
        }
        let (parts, _) = request.into_parts();
        return State::Refused {
            response: Some(answers.refuse(decision, &parts)),
        };
    }
    let (ticket, first) = Ticket::new(outer, decision, request.method());
    if let Some(admission) = first {
        request.extensions_mut().insert(admission);
    }
    State::Passed {
        ticket: Some(ticket),
        inner: ready.call(request),
        fields: answers.headers,
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
                    match judging.held.take() {
                        Some((request, mut service, answers)) => {
                            follow(decision, request, &mut service, &answers)
                        }
                        None => return Poll::Pending,
                    }
                }
                StateProj::Passed {
                    inner,
                    ticket,
                    fields,
                } => {
                    let response = ready!(inner.poll(cx));
                    let Some(ticket) = ticket.take() else {
                        return Poll::Ready(Ok(response?.map(ResponseBody::untouched)));
                    };
                    let mut response = match response {
                        Ok(response) => response,
                        Err(error) => {
                            ticket.end(End::ServiceFailed);
                            return Poll::Ready(Err(error));
                        }
                    };
                    if !fields.are_none() {
                        ticket.look(|decision| tell(decision, *fields, Delay::NONE, &mut response));
                    }
                    let (response, ticket) = ticket.respond(response);
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::inner(body, ticket))));
                }
                StateProj::Refused { response } => {
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
