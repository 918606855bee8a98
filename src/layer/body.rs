use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::in_flight::Ticket;
use crate::{outcome::RequestEnd, respond::RefusalBody};

pin_project! {
    /// The body of a response of a [`RateLimit`](crate::RateLimit) service: the inner service's, or that of a rejection.
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
        // Dropped in this order: the work ends before its place is given back.
        Inner { #[pin] body: B, ticket: Option<Box<Ticket>> },
        Own { body: RefusalBody },
    }
}

impl<B> ResponseBody<B> {
    /// The inner service's body, whose end `ticket` waits for.
    pub(super) fn inner(body: B, mut ticket: Box<Ticket>) -> Self {
        // A response without a body is dropped without a look at its end, but what is in the body works until then.
        if ticket.is_bodiless() {
            ticket.settle(RequestEnd::Completed);
        }
        let ticket = Some(ticket);
        Self {
            kind: Kind::Inner { body, ticket },
        }
    }

    /// The inner service's body, which nothing waits for.
    pub(super) fn untouched(body: B) -> Self {
        let ticket = None;
        Self {
            kind: Kind::Inner { body, ticket },
        }
    }

    pub(super) fn own(body: RefusalBody) -> Self {
        Self {
            kind: Kind::Own { body },
        }
    }
}

/// An empty body, whatever the inner one is: tonic's refusals have none.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::own(RefusalBody::from(Bytes::new()))
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
            KindProj::Inner { mut body, ticket } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                let end = match &frame {
                    None => Some(RequestEnd::Completed),
                    Some(Err(_)) => Some(RequestEnd::BodyFailed),
                    Some(Ok(frame)) => {
                        if let (Some(trailers), Some(ticket)) = (frame.trailers_ref(), &mut *ticket)
                        {
                            ticket.trailers(trailers);
                        }
                        if let (Some(data), Some(ticket)) = (frame.data_ref(), &mut *ticket) {
                            ticket.sent(data.len());
                        }
                        // Trailers are the last frame, and a body that says that it has ended is not polled again.
                        let is_last = frame.is_trailers() || body.is_end_stream();
                        is_last.then_some(RequestEnd::Completed)
                    }
                };
                if let Some(end) = end
                    && let Some(ticket) = ticket.take()
                {
                    ticket.end(end);
                }
                Poll::Ready(frame)
            }
            KindProj::Own { body } => body.poll(cx).map(|frame| frame.map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, ticket } => {
                let at_end = body.is_end_stream();
                if at_end && let Some(ticket) = ticket {
                    ticket.note_end();
                }
                at_end
            }
            Kind::Own { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Own { body } => body.size_hint(),
        }
    }
}
