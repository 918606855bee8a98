use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;
use tower_service::Service;

use super::{
    ResponseBody,
    shared::{AdmittedRequest, SharedSettings},
};
use crate::{limiter::PendingDecision, outcome::RequestEnd, respond::RejectionBody};

pin_project! {
    /// The future of a [`RateLimit`](crate::layer::RateLimit) service. Dropping it before the decision cancels the request: a charge
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
        // Boxed: requests that are decided at once would move a future of its size.
        Deciding { deciding: Box<Deciding<S, ReqBody>> },
        // Dropped in this order: the work ends before its permit is released.
        Calling { #[pin] inner: F, admitted: AdmittedRequest },
        Rejected { response: Option<Response<RejectionBody>> },
    }
}

struct Deciding<S, ReqBody> {
    pending: PendingDecision,
    deferred: Option<(RequestParts<ReqBody>, S, Arc<SharedSettings>)>,
}

/// A request while it is evaluated.
type RequestParts<ReqBody> = (Parts, ReqBody);

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// The future of a request that was passed to the inner service.
    #[inline]
    pub(super) fn calling(inner: S::Future, admitted: AdmittedRequest) -> Self {
        let state = State::Calling { inner, admitted };
        Self { state }
    }

    /// The future of a rejected request.
    pub(super) fn rejected(response: Response<RejectionBody>) -> Self {
        let response = Some(response);
        Self {
            state: State::Rejected { response },
        }
    }

    /// The future of a request whose decision is pending. `ready` is the service that was polled ready.
    pub(super) fn deciding(
        pending: PendingDecision,
        request: RequestParts<ReqBody>,
        ready: S,
        settings: Arc<SharedSettings>,
    ) -> Self {
        let deferred = Some((request, ready, settings));
        let deciding = Box::new(Deciding { pending, deferred });
        Self {
            state: State::Deciding { deciding },
        }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Deciding { deciding } => {
                    let decision = ready!(Pin::new(&mut deciding.pending).poll(cx));
                    let Some(((mut parts, body), mut service, settings)) = deciding.deferred.take()
                    else {
                        return Poll::Pending;
                    };
                    if decision.is_admitted() {
                        let admitted = settings.admit(&mut Some(decision), &mut parts);
                        let inner = service.call(Request::from_parts(parts, body));
                        State::Calling { inner, admitted }
                    } else {
                        let response = Some(settings.reject(&decision, &parts));
                        State::Rejected { response }
                    }
                }
                StateProj::Calling { inner, admitted } => {
                    let response = ready!(inner.poll(cx));
                    let mut admitted = mem::take(admitted);
                    let response =
                        response.map(|response| admitted.replace_handler_rejection(response));
                    let mut response = match response {
                        Ok(Err(response)) => response,
                        Ok(Ok(rejection)) => {
                            return Poll::Ready(Ok(finish_rejection(rejection, admitted)));
                        }
                        Err(error) => {
                            drop(admitted.decision);
                            if let Some(in_flight) = admitted.in_flight {
                                in_flight.end(RequestEnd::ServiceFailed);
                            }
                            return Poll::Ready(Err(error));
                        }
                    };
                    let Some(in_flight) = admitted.in_flight.take() else {
                        admitted.write_headers(&mut response);
                        return Poll::Ready(Ok(response.map(ResponseBody::passthrough)));
                    };
                    let is_empty = response.body().is_end_stream();
                    let (mut response, in_flight) = in_flight.on_response(response, is_empty);
                    admitted.write_headers(&mut response);
                    return Poll::Ready(Ok(
                        response.map(|body| ResponseBody::inner(body, in_flight))
                    ));
                }
                StateProj::Rejected { response } => {
                    // No inner service consumes the task's budget: without this, a client that retries at once would starve
                    // other tasks.
                    ready!(poll_proceed(cx)).made_progress();
                    return match response.take() {
                        Some(response) => Poll::Ready(Ok(response.map(ResponseBody::rejection))),
                        // The future was polled after it was ready.
                        None => Poll::Pending,
                    };
                }
            };
            state.set(next);
        }
    }
}

/// Completes a response that replaces that of a handler.
#[cold]
fn finish_rejection<B>(
    mut rejection: Response<RejectionBody>,
    mut admitted: AdmittedRequest,
) -> Response<ResponseBody<B>> {
    if let Some(in_flight) = admitted.in_flight.take() {
        let (response, in_flight) = in_flight.on_response(rejection, true);
        drop(in_flight);
        rejection = response;
    }
    admitted.write_headers(&mut rejection);
    rejection.map(ResponseBody::rejection)
}

impl<S, ReqBody> fmt::Debug for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::Deciding { .. } => "ResponseFuture(Deciding)",
            State::Calling { .. } => "ResponseFuture(Calling)",
            State::Rejected { .. } => "ResponseFuture(Rejected)",
        })
    }
}
