//! The type of a rejection's body. Its content is written by `problem.rs`, or is that of the response of `on_rejection`.

use std::{
    error::Error,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;

use crate::{log::LogThrottle, sync::lock};

/// The error of a body that `on_rejection` returned.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a rejection: bytes, or the body that `on_rejection` returned.
#[derive(Debug)]
pub(crate) struct RejectionBody(Kind);

#[derive(Debug)]
enum Kind {
    Bytes(Option<Bytes>),
    /// The mutex makes a body `Sync` that is not; it is never contended.
    Custom(Mutex<UnsyncBoxBody<Bytes, BoxError>>),
}

impl RejectionBody {
    /// Polls the next frame. A body that fails ends there: the inner service's error type can't hold its error.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        match &mut self.0 {
            Kind::Bytes(bytes) => Poll::Ready(bytes.take().map(Frame::data)),
            Kind::Custom(body) => {
                let body = body.get_mut().unwrap_or_else(PoisonError::into_inner);
                match ready!(Pin::new(body).poll_frame(cx)) {
                    Some(Ok(frame)) => Poll::Ready(Some(frame)),
                    Some(Err(error)) => {
                        static FAILED: LogThrottle = LogThrottle::new();
                        FAILED.log_with(|suppressed| {
                            tracing::error!(
                                error,
                                suppressed,
                                "the body of on_rejection's response failed and was cut short"
                            );
                        });
                        self.0 = Kind::Bytes(None);
                        Poll::Ready(None)
                    }
                    None => Poll::Ready(None),
                }
            }
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Bytes(bytes) => bytes.is_none(),
            Kind::Custom(body) => lock(body).is_end_stream(),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Bytes(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Custom(body) => lock(body).size_hint(),
        }
    }
}

impl From<Bytes> for RejectionBody {
    fn from(bytes: Bytes) -> Self {
        Self(Kind::Bytes((!bytes.is_empty()).then_some(bytes)))
    }
}

impl From<UnsyncBoxBody<Bytes, BoxError>> for RejectionBody {
    fn from(body: UnsyncBoxBody<Bytes, BoxError>) -> Self {
        Self(Kind::Custom(Mutex::new(body)))
    }
}
