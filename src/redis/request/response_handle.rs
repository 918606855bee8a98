//! The caller's side of a request: polls for the response, and cancels the request when dropped.
//!
//! A cancelled request is not sent any more, if it only acquires or peeks. If it was sent, its result is unread, and what that
//! charged is refunded.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use super::{PendingRequest, RequestState, Retry, response_slot::ResponseSlot};
use crate::{
    error::StoreError,
    store::{Completion, OpResult, PendingResponse, SharedResponse, StoreResponse},
    sync::lock,
};

/// A response that is waited for. Dropping it cancels the request and refunds what it charged.
#[derive(Debug)]
pub(crate) struct ResponseHandle {
    /// `None` once the response was read.
    state: Option<Arc<RequestState>>,
}

impl PendingRequest {
    /// A request, and the handle to its response.
    pub(crate) fn with_response(state: Arc<RequestState>) -> (Self, ResponseHandle) {
        let response = ResponseHandle {
            state: Some(state.clone()),
        };
        let mut request = Self::detached(state, Retry::IfUnread);
        request.has_waiter = true;
        (request, response)
    }
}

impl RequestState {
    /// Polls for the response. A rejection is cached.
    #[inline]
    fn poll_result(&self, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        let previous = lock(&self.slot).poll_take(cx.waker());
        let ResponseSlot::Ready(result) = previous else {
            return Poll::Pending;
        };
        if let Ok(result) = &result
            && result.admitted == 0
        {
            self.cache_rejection(result);
        }
        Poll::Ready(result)
    }

    /// Closes the slot, since the waiter has left, and refunds what the request has charged.
    fn abandon(&self) {
        self.cancel();
        let previous = lock(&self.slot).close();
        if let ResponseSlot::Ready(Ok(result)) = &previous {
            self.refund_unread(result);
        }
    }
}

impl SharedResponse for RequestState {
    fn poll_response(self: Arc<Self>, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        self.poll_result(cx)
    }

    fn abandon(&self) {
        Self::abandon(self);
    }

    fn detach(&self, completion: Completion) {
        *lock(&self.completion) = Some(completion);
        // From now on the IO thread passes the response to the completion.
        let previous = lock(&self.slot).close();
        if let ResponseSlot::Ready(response) = previous {
            let completion = lock(&self.completion).take();
            if let Some(completion) = completion {
                completion.complete(response);
            }
        }
    }
}

impl ResponseHandle {
    /// Polls for the response. A rejection is cached.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn poll_response(&mut self, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        let Some(state) = &self.state else {
            return Poll::Pending;
        };
        let response = state.poll_result(cx);
        if response.is_ready() {
            self.state = None;
        }
        response
    }
}

impl From<ResponseHandle> for PendingResponse {
    fn from(mut response: ResponseHandle) -> Self {
        Self::shared(response.state.take().map(|state| state as _))
    }
}

impl From<Result<ResponseHandle, StoreError>> for StoreResponse {
    fn from(response: Result<ResponseHandle, StoreError>) -> Self {
        match response {
            Ok(response) => Self::Pending(response.into()),
            Err(error) => Self::Ready(Err(error)),
        }
    }
}

impl Drop for ResponseHandle {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            state.abandon();
        }
    }
}
