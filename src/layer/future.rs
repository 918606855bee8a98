use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::ResponseBody;
use crate::{
    admission::{Admission, Refused},
    decision::Decision,
    limiter::{Pending, Permit},
    respond::{fields, refusal},
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
        Judging { pending: Pending, held: Option<(Request<ReqBody>, S)> },
        Passed { judged: Option<Place>, #[pin] inner: F },
        Refused { response: Option<Response<Bytes>> },
    }
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn untouched(inner: S::Future) -> Self {
        let judged = None;
        Self {
            state: State::Passed { judged, inner },
        }
    }

    pub(super) fn judging(pending: Pending, request: Request<ReqBody>, ready: S) -> Self {
        let held = Some((request, ready));
        Self {
            state: State::Judging { pending, held },
        }
    }

    pub(super) fn decided(decision: Decision, request: Request<ReqBody>, ready: &mut S) -> Self {
        Self {
            state: follow(decision, request, ready),
        }
    }
}

/// Where a layer's decision stands in its request's admission, since a layer further in may have its charge given back;
/// and the permit, which a request holds until its body has been sent.
struct Place {
    admission: Admission,
    place: usize,
    permit: Option<Arc<Permit>>,
}

/// Calls the service, or doesn't.
fn follow<S, ReqBody>(
    decision: Decision,
    mut request: Request<ReqBody>,
    ready: &mut S,
) -> State<S, S::Future, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    let outer = request.extensions().get::<Admission>();
    if !decision.is_admitted() {
        if let Some(admission) = outer {
            admission.withdraw();
        }
        return State::Refused {
            response: Some(refusal::response(&Refused::new(decision))),
        };
    }
    let admission = match outer {
        Some(admission) => admission.clone(),
        None => {
            let admission = Admission::unlimited();
            request.extensions_mut().insert(admission.clone());
            admission
        }
    };
    let (place, permit) = admission.join(decision);
    State::Passed {
        judged: Some(Place {
            admission,
            place,
            permit,
        }),
        inner: ready.call(request),
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
                StateProj::Judging { pending, held } => {
                    let decision = ready!(Pin::new(pending).poll(cx));
                    match held.take() {
                        Some((request, mut service)) => follow(decision, request, &mut service),
                        None => return Poll::Pending,
                    }
                }
                StateProj::Passed { judged, inner } => {
                    let mut response = ready!(inner.poll(cx))?;
                    let permit = judged.take().and_then(|judged| {
                        let headers = response.headers_mut();
                        let write = |decision: &Decision| fields::write(decision, headers);
                        judged.admission.look_at(judged.place, write);
                        judged.permit
                    });
                    let body = |body| ResponseBody::inner(body, permit);
                    return Poll::Ready(Ok(response.map(body)));
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
