use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{
    limiter::{Admission, Permits},
    outcome::{Head, Outcome, RequestEnd},
    respond::RejectionBody,
};

pin_project! {
    /// The body of a response of a [`RateLimit`](crate::layer::RateLimit) service, or of an
    /// [`Outgoing`](crate::outgoing::Outgoing) client: the inner service's, or that of a rejection. When it ends or is dropped, the
    /// request's permits are released, and charges by the outcome are settled.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    #[derive(Debug)]
    enum Kind<B> {
        // Dropped in this order: the work ends before its permit is released.
        Inner { #[pin] body: B, in_flight: Option<Box<InFlightRequest>> },
        Rejection { body: RejectionBody },
    }
}

impl<B> ResponseBody<B> {
    /// The inner service's body, whose end settles `in_flight`.
    pub(crate) fn inner(body: B, in_flight: Box<InFlightRequest>) -> Self {
        let in_flight = Some(in_flight);
        Self {
            kind: Kind::Inner { body, in_flight },
        }
    }

    /// The inner service's body, whose end has no effect.
    pub(crate) fn passthrough(body: B) -> Self {
        let in_flight = None;
        Self {
            kind: Kind::Inner { body, in_flight },
        }
    }

    pub(super) fn rejection(body: RejectionBody) -> Self {
        Self {
            kind: Kind::Rejection { body },
        }
    }
}

/// An empty body: tonic requires a default for the responses of its own rejections.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::rejection(RejectionBody::from(Bytes::new()))
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProj::Inner {
                mut body,
                in_flight,
            } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                let end = match &frame {
                    None => Some(RequestEnd::Completed),
                    Some(Err(_)) => Some(RequestEnd::BodyFailed),
                    Some(Ok(frame)) => {
                        if let (Some(trailers), Some(in_flight)) =
                            (frame.trailers_ref(), &mut *in_flight)
                        {
                            in_flight.on_trailers(trailers);
                        }
                        if let (Some(data), Some(in_flight)) = (frame.data_ref(), &mut *in_flight) {
                            in_flight.on_bytes_sent(data.len());
                        }
                        // Trailers are the last frame, and servers do not poll a body again that reports its end.
                        let is_last = frame.is_trailers() || body.is_end_stream();
                        is_last.then_some(RequestEnd::Completed)
                    }
                };
                if let Some(end) = end
                    && let Some(in_flight) = in_flight.take()
                {
                    in_flight.end(end);
                }
                Poll::Ready(frame)
            }
            KindProj::Rejection { body } => body.poll(cx).map(|frame| frame.map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, in_flight } => {
                let ended = body.is_end_stream();
                if ended && let Some(in_flight) = in_flight {
                    in_flight.mark_ended();
                }
                ended
            }
            Kind::Rejection { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Rejection { body } => body.size_hint(),
        }
    }
}

/// An admitted request, until its response's body has ended: its permit, and what settling its charge depends on.
///
/// Dropping it releases the permit, and settles the charge as for a request that was dropped.
#[derive(Debug)]
pub struct InFlightRequest {
    admission: Admission,
    decision_index: usize,
    _permit: Option<Arc<Permits>>,
    /// `None` if the charge doesn't depend on the outcome.
    progress: Option<ResponseProgress>,
}

/// What is known so far of a request's outcome.
#[derive(Debug, Default)]
pub(crate) struct ResponseProgress {
    head: Option<Head>,
    trailers: Option<HeaderMap>,
    /// Whether the request's method has responses without a body.
    has_no_body: bool,
    /// Whether a success opens a tunnel, such as a WebSocket over HTTP/2, in place of a body.
    is_connect: bool,
    /// Whether `is_end_stream` of the body was true, after which it may not be polled again.
    ended: AtomicBool,
    /// Bytes of the body that were not sent yet, if its length is known.
    bytes_left: Option<u64>,
}

impl ResponseProgress {
    pub(crate) fn new(method: &Method) -> Self {
        Self {
            has_no_body: *method == Method::HEAD,
            is_connect: *method == Method::CONNECT,
            ..Self::default()
        }
    }
}

impl InFlightRequest {
    pub(crate) fn new(
        admission: Admission,
        decision_index: usize,
        permit: Option<Arc<Permits>>,
        progress: Option<ResponseProgress>,
    ) -> Self {
        Self {
            admission,
            decision_index,
            _permit: permit,
            progress,
        }
    }

    /// An outgoing call, whose permits are in its admission until [`share_admission`](Self::share_admission).
    pub(crate) fn outgoing(admission: Admission) -> Box<Self> {
        // Most policies charge whatever the outcome.
        let progress = admission
            .depends_on_outcome(0)
            .then(ResponseProgress::default);
        Box::new(Self::new(admission, 0, None, progress))
    }

    /// The admission of an outgoing call for its caller. It holds no permit: they are released when this is dropped.
    pub(crate) fn share_admission(&mut self) -> Admission {
        self._permit = self.admission.take_permits();
        self.admission.clone()
    }

    /// Settles the charge of an outgoing call whose response is not HTTP: it counts as a status 200 without fields. Returns the
    /// admission, which holds the permits.
    pub(crate) fn end_with_admission(self: Box<Self>) -> Admission {
        let (_, ended) = self.on_response(Response::new(()), true);
        ended.admission.clone()
    }

    /// Records the head of the response. If nothing follows it, the charge is settled, so that the fields that are written next are of
    /// the outcome. `is_empty` is whether its body reports its end.
    pub(crate) fn on_response<B>(
        mut self: Box<Self>,
        response: Response<B>,
        is_empty: bool,
    ) -> (Response<B>, Box<Self>) {
        let Some(progress) = &mut self.progress else {
            return (response, self);
        };
        let (parts, body) = response.into_parts();
        let status = parts.status;
        let has_no_body = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
        let length = parts.headers.get(http::header::CONTENT_LENGTH);
        progress.bytes_left = length.and_then(|length| length.to_str().ok()?.parse().ok());
        progress.head = Some(Head::of(&parts));
        let has_no_body = has_no_body || progress.is_connect && status.is_success();
        // Servers drop a body that they don't send without polling it; the work that it holds continues until then.
        if is_empty || progress.has_no_body || has_no_body || progress.bytes_left == Some(0) {
            self.settle(RequestEnd::Completed);
        }
        (Response::from_parts(parts, body), self)
    }

    /// Records that the body reported its end.
    pub(crate) fn mark_ended(&self) {
        if let Some(progress) = &self.progress {
            progress.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Records that bytes of the body were sent.
    pub(crate) fn on_bytes_sent(&mut self, bytes: usize) {
        if let Some(bytes_left) = self
            .progress
            .as_mut()
            .and_then(|progress| progress.bytes_left.as_mut())
        {
            *bytes_left = bytes_left.saturating_sub(bytes as u64);
        }
    }

    pub(crate) fn on_trailers(&mut self, trailers: &HeaderMap) {
        if let Some(progress) = &mut self.progress {
            progress.trailers = Some(trailers.clone());
        }
    }

    /// Settles the charge and releases the permit.
    pub(crate) fn end(mut self, end: RequestEnd) {
        self.settle(end);
    }

    /// Settles the charge, and keeps the permit until the body is dropped.
    pub(crate) fn settle(&mut self, end: RequestEnd) {
        if let Some(progress) = self.progress.take() {
            let outcome = Outcome::new(progress.head.as_ref(), progress.trailers.as_ref(), end);
            self.admission.settle_outcome(self.decision_index, &outcome);
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let end = self.progress.as_ref().map(|progress| match progress.head {
            None => RequestEnd::Dropped,
            Some(_) if progress.ended.load(Ordering::Relaxed) || progress.bytes_left == Some(0) => {
                RequestEnd::Completed
            }
            Some(_) => RequestEnd::BodyDropped,
        });
        if let Some(end) = end {
            self.settle(end);
        }
    }
}
