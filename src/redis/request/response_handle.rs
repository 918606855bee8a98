//! The caller's side of a request: polls for the response, and cancels the request when dropped.
//!
//! A cancelled request is not sent any more, if it only acquires or peeks. If it was sent, its result is unread, and what that
//! charged is refunded. A [`RollbackGuard`] refunds the same for a response that has arrived and is dropped before it is read.

use std::{
    future::poll_fn,
    mem,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    time::{Instant, sleep_until},
};

use super::{PendingRequest, RequestState, Waiter, limit::store_of, response_slot::ResponseSlot};
use crate::{
    background::background_runtime,
    error::StoreError,
    redis::breaker::confirmation::{MAX_STOPS_IN_ROW, is_moved, was_held_up},
    runtime::runtime_with_timers,
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
    /// A request for a worker of a runtime, and the handle to its response.
    pub(crate) fn with_response(
        state: Arc<RequestState>,
        worker: Option<runtime::Id>,
    ) -> (Self, ResponseHandle) {
        *lock(&state.timed_by) = worker;
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
    fn poll_read(self: &Arc<Self>, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        let previous = lock(&self.slot).poll_take(cx.waker());
        match previous {
            ResponseSlot::Ready(result) => Poll::Ready(result),
            // Whatever the waker is: a thread has one for all runtimes that it blocks on.
            ResponseSlot::Empty(_) => {
                self.ensure_deadline_timer();
                Poll::Pending
            }
            ResponseSlot::Closed => Poll::Pending,
        }
    }

    /// A worker enforces the deadlines of its requests unless its runtime stands still. So a response that is polled on another
    /// runtime has a timer there; one that is polled where there are no timers, on the background thread.
    #[inline]
    fn ensure_deadline_timer(self: &Arc<Self>) {
        let here = Handle::try_current().ok().map(|here| here.id());
        let timed_by = mem::replace(&mut *lock(&self.timed_by), here);
        if timed_by != here {
            self.start_deadline_timer();
        }
    }

    #[cold]
    fn start_deadline_timer(self: &Arc<Self>) {
        let state = self.clone();
        let store = store_of(&state.counters);
        let timeout = store.map_or(Duration::MAX, |store| store.shared.timeout);
        if let Some(runtime) = runtime_with_timers().or_else(background_runtime) {
            drop(runtime.spawn(async move {
                let mut until = state.deadline;
                for _ in 0..=MAX_STOPS_IN_ROW {
                    sleep_until(until).await;
                    let now = Instant::now();
                    if !was_held_up(timeout, until, now) || is_moved(now) {
                        break;
                    }
                    until = now + timeout;
                }
                state.expire();
            }));
        }
    }

    /// Polls for the response. A rejection is cached.
    #[inline]
    fn poll_result(self: &Arc<Self>, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
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
