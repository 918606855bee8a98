//! The caller's side of a request: polls for the response, and cancels the request when dropped.
//!
//! A cancelled request is not sent any more, if it only acquires or peeks. If it was sent, its result is unread, and what that
//! charged is refunded. A [`RollbackGuard`] refunds the same for a response that has arrived and is dropped before it is read.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{PendingRequest, RequestState, Waiter, response_slot::ResponseSlot};
use crate::{
    error::StoreError,
    store::{OpResult, PendingResponse, SharedResponse},
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
        let mut request = Self::detached(state);
        request.waiter = Waiter::Task;
        (request, response)
    }
}

impl RequestState {
    /// Takes the response.
    #[inline]
    fn poll_read(&self, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        let previous = lock(&self.slot).poll_take(cx.waker());
        match previous {
            ResponseSlot::Ready(result) => Poll::Ready(result),
            ResponseSlot::Empty(_) | ResponseSlot::Closed => Poll::Pending,
        }
    }

    /// Polls for the response. A rejection is cached.
    #[inline]
    fn poll_result(&self, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        let result = ready!(self.poll_read(cx));
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
}

impl ResponseHandle {
    /// Polls for the response. A rejection is cached.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn poll_response(&mut self, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        let Some(state) = &self.state else {
            return Poll::Pending;
        };
        let result = ready!(state.poll_result(cx));
        self.state = None;
        Poll::Ready(result)
    }

    /// Takes the response, with the state of its request.
    fn poll_read(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<(Arc<RequestState>, Result<OpResult, StoreError>)> {
        // Polled again after completion.
        let Some(state) = &self.state else {
            return Poll::Pending;
        };
        let result = ready!(state.poll_read(cx));
        match self.state.take() {
            Some(state) => Poll::Ready((state, result)),
            None => Poll::Pending,
        }
    }

    /// Awaits the response. What it charged is refunded unless it is read.
    pub(crate) async fn into_rollback_guard(mut self) -> Result<RollbackGuard, StoreError> {
        let (state, result) = poll_fn(|cx| self.poll_read(cx)).await;
        let result = Some(result?);
        Ok(RollbackGuard { state, result })
    }
}

impl From<ResponseHandle> for PendingResponse {
    fn from(mut response: ResponseHandle) -> Self {
        Self::shared(response.state.take().map(|state| state as _))
    }
}

impl Drop for ResponseHandle {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            state.abandon();
        }
    }
}

/// A response whose charge is refunded when it is dropped unread.
#[derive(Debug)]
pub(crate) struct RollbackGuard {
    state: Arc<RequestState>,
    result: Option<OpResult>,
}

impl RollbackGuard {
    pub(crate) fn read(&mut self) -> Option<OpResult> {
        self.result.take()
    }

    /// The response, without reading it.
    pub(crate) fn result(&self) -> Option<&OpResult> {
        self.result.as_ref()
    }

    /// The response, mutable, without reading it.
    pub(crate) fn result_mut(&mut self) -> Option<&mut OpResult> {
        self.result.as_mut()
    }
}

impl Drop for RollbackGuard {
    fn drop(&mut self) {
        if let Some(result) = self.result.take() {
            self.state.refund_unread(&result);
        }
    }
}
