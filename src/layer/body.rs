use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::in_flight::InFlightRequest;
use crate::{outcome::RequestEnd, respond::RejectionBody};

pin_project! {
    /// The body of a response of a [`RateLimit`](crate::layer::RateLimit) service: the inner service's, or that of a rejection.
    /// Dropping it releases the request's permits and charges by the outcome.
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
    pub(super) fn inner(body: B, mut in_flight: Box<InFlightRequest>) -> Self {
        // Servers drop a body that they don't send without polling it; the work that it holds continues until then.
        if in_flight.has_no_body() {
            in_flight.settle(RequestEnd::Completed);
        }
        let in_flight = Some(in_flight);
        Self {
            kind: Kind::Inner { body, in_flight },
        }
    }

    /// The inner service's body, whose end has no effect.
    pub(super) fn passthrough(body: B) -> Self {
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
