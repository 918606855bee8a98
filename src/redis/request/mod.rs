//! A request on its way to Redis and back.
//!
//! [`RequestState`] is the one allocation that the IO thread's side ([`PendingRequest`]) and the caller's side
//! (`PendingResponse`) share. The IO thread puts the result into its [`ResponseSlot`]; a response that is dropped before closes the
//! slot, and the IO thread refunds what the request charged.

use std::{
    mem,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use tokio::time::Instant;

use self::{limit::io_of, op::CounterOps, response_slot::ResponseSlot};
use super::{lease::ResponseRecorder, rejection_cache::CacheToken};
use crate::{
    error::StoreError,
    store::{Completion, Op, OpResult, PendingResponse, SharedResponse},
    sync::lock,
};

pub(in crate::redis) mod limit;
pub(crate) mod op;
pub(crate) mod response_slot;

/// The operation and the slot for its result, shared by the IO thread and the waiter.
#[derive(Debug)]
pub(crate) struct RequestState {
    pub(crate) op: Op,
    pub(crate) counters: CounterOps,
    pub(crate) deadline: Instant,
    /// A hash of the keys.
    pub(crate) hash: u64,
    /// The state of the rejection cache at the request's arrival, if a rejection is to be cached.
    pub(crate) cache_token: Option<CacheToken>,
    /// Gets the response before the waiter, for a key with leases.
    recorder: Option<Box<ResponseRecorder>>,
    /// Gets the response if no task waits for it.
    completion: Mutex<Option<Completion>>,
    /// Whether the waiter has dropped its handle.
    is_cancelled: AtomicBool,
    slot: Mutex<ResponseSlot<Result<OpResult, StoreError>, Waker>>,
}

/// The IO thread's side of a request. It is moved between queue, backlog and batch, so it is kept small.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    state: Arc<RequestState>,
    /// Whether it was sent before with a time that differs from the server's.
    pub(crate) time_synced: bool,
    /// Whether it needs a batch of its own: its slot is migrating, and a call for several keys would fail.
    pub(crate) send_alone: bool,
    /// Whether a task or a completion has not got its response yet; the task may have dropped its handle.
    has_waiter: bool,
    pub(crate) retry: Retry,
    /// Counts the operation as undelivered, if it must not be lost.
    pub(crate) undelivered: Option<UndeliveredGuard>,
}

/// Whether an adjustment that has failed is sent again, if it did not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Retry {
    /// If no waiter gets the error.
    #[default]
    IfUnread,
    Always,
    Never,
}

/// Whether a call was sent that may have executed a request which failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It did not run.
    #[default]
    No,
    /// It may have run.
    Maybe,
}

impl PendingRequest {
    /// A request, and its response. Dropping that cancels the request and refunds what it charged.
    pub(crate) fn with_response(state: Arc<RequestState>) -> (Self, PendingResponse) {
        let response = PendingResponse::shared(Some(state.clone()));
        (Self::new(state, true, Retry::IfUnread), response)
    }

    pub(crate) fn new(state: Arc<RequestState>, has_waiter: bool, retry: Retry) -> Self {
        Self {
            state,
            time_synced: false,
            send_alone: false,
            has_waiter,
            retry,
            undelivered: None,
        }
    }

    /// Whether it is sent again if it failed and did not run; `has_error`: whether a waiter has that error.
    pub(crate) fn is_retried(&self, has_error: bool) -> bool {
        match self.retry {
            Retry::Never => false,
            Retry::Always => true,
            Retry::IfUnread => !has_error,
        }
    }

    /// Whether a waiter has not got its response yet, for which its deadline holds.
    pub(crate) fn has_waiter(&self) -> bool {
        self.has_waiter
    }

    /// Whether the waiter has dropped its handle and the operation need not be sent any more. Adjustments are always sent.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.op.needs_reader() && self.has_waiter && self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Completes the waiter, unless it has a result already or has left, and refunds a charge that no waiter reads. Returns whether a
    /// waiter gets the result.
    #[inline]
    fn complete(&mut self, result: Result<OpResult, StoreError>) -> bool {
        let mut result = Some(result);
        if mem::take(&mut self.has_waiter) {
            let waker = lock(&self.state.slot).put(&mut result);
            if let Some(waker) = waker {
                waker.wake();
            }
            if let Some(unread) = result.take() {
                result = self.complete_without_task(unread);
            }
        }
        if let Some(Ok(unread)) = &result {
            self.state.refund_unread(unread);
        }
        result.is_none()
    }

    /// Passes the response to the completion, if there is one; else returns it. The error of an operation that may be sent again drops the
    /// completion.
    #[cold]
    fn complete_without_task(
        &self,
        response: Result<OpResult, StoreError>,
    ) -> Option<Result<OpResult, StoreError>> {
        let completion = lock(&self.state.completion).take();
        match completion.filter(|_| response.is_ok() || self.retry == Retry::Never) {
            Some(completion) => {
                completion.complete(response);
                None
            }
            None => Some(response),
        }
    }

    /// Whether only a waiter needs it, and none is left.
    pub(crate) fn is_answered(&self) -> bool {
        self.op.needs_reader() && !self.has_waiter
    }

    /// Completes the waiter of a request that was sent with a timeout.
    pub(crate) fn expire(&mut self) {
        self.complete(Err(StoreError::timeout()));
    }

    pub(crate) fn fail(mut self, error: StoreError) {
        self.fail_in_place(error);
    }

    /// Fails it, and returns whether a waiter gets the error. Until it is dropped it counts as undelivered.
    pub(crate) fn fail_in_place(&mut self, error: StoreError) -> bool {
        self.complete(Err(error))
    }

    #[inline]
    pub(crate) fn succeed(mut self, result: OpResult) {
        if let Some(recorder) = &self.recorder {
            recorder.record(&result);
        }
        self.complete(Ok(result));
    }
}

impl Deref for PendingRequest {
    type Target = RequestState;

    fn deref(&self) -> &RequestState {
        &self.state
    }
}

/// A request that is dropped is lost with the store's IO.
impl Drop for PendingRequest {
    fn drop(&mut self) {
        if self.has_waiter {
            self.complete(Err(ended()));
        }
    }
}

impl RequestState {
    /// A new request, with a hash of its keys.
    pub(crate) fn new(op: Op, counters: CounterOps, deadline: Instant, hash: u64) -> Arc<Self> {
        Self::with_followers(op, counters, deadline, hash, Followers::default())
    }

    /// A new request, with what follows its response.
    #[inline]
    pub(crate) fn with_followers(
        op: Op,
        counters: CounterOps,
        deadline: Instant,
        hash: u64,
        followers: Followers,
    ) -> Arc<Self> {
        Arc::new(Self {
            op,
            counters,
            deadline,
            hash,
            cache_token: followers.cache_token,
            slot: Mutex::new(match followers.completion {
                Some(_) => ResponseSlot::Closed,
                None => ResponseSlot::Empty(None),
            }),
            recorder: followers.recorder,
            completion: Mutex::new(followers.completion),
            is_cancelled: AtomicBool::new(false),
        })
    }

    /// Refunds the charge of a result that no waiter read.
    #[cold]
    pub(crate) fn refund_unread(&self, result: &OpResult) {
        if !matches!(self.op, Op::Acquire(_)) || result.admitted == 0 {
            return;
        }
        let Some(io) = io_of(&self.counters) else {
            return;
        };
        let mut counters = self.counters.clone();
        for (counter, charged) in counters.iter_mut().zip(&result.counters) {
            counter.set_refund(charged.units, &charged.snapshot, result.at);
        }
        io.execute_detached(Op::Adjust, counters, None);
    }

    /// Caches its rejection.
    #[cold]
    pub(crate) fn cache_rejection(&self, result: &OpResult) {
        if let Some(cache_token) = self.cache_token
            && let Some(io) = io_of(&self.counters)
        {
            io.cache_rejection(&self.counters, self.deadline, result, cache_token);
        }
    }
}

/// The caller's side.
impl SharedResponse for RequestState {
    /// A rejection is cached.
    #[inline]
    fn poll_response(self: Arc<Self>, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
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
        self.is_cancelled.store(true, Ordering::Relaxed);
        let previous = lock(&self.slot).close();
        if let ResponseSlot::Ready(Ok(result)) = &previous {
            self.refund_unread(result);
        }
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

/// What follows the response to a request.
#[derive(Default)]
pub(crate) struct Followers {
    /// With it, a rejection is cached.
    pub(crate) cache_token: Option<CacheToken>,
    pub(in crate::redis) recorder: Option<Box<ResponseRecorder>>,
    /// Gets the response in place of a task.
    pub(crate) completion: Option<Completion>,
}

/// Counts a refund or a charge as undelivered until it is dropped.
#[derive(Debug)]
pub(crate) struct UndeliveredGuard(Arc<AtomicUsize>);

impl UndeliveredGuard {
    /// Increments `undelivered`.
    pub(crate) fn new(undelivered: &Arc<AtomicUsize>) -> Self {
        undelivered.fetch_add(1, Ordering::AcqRel);
        Self(undelivered.clone())
    }
}

impl Drop for UndeliveredGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(crate) fn ended() -> StoreError {
    StoreError::connection("the IO of the store has ended")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::{op::OwnedCounterOp, *};
    use crate::{
        clock::Timestamp,
        key::Key,
        store::{CounterOp, LimitHandle},
        strategy::Gcra,
    };

    fn with_response(op: Op) -> (PendingRequest, PendingResponse) {
        let limit = LimitHandle::unregistered(Gcra, "9/min");
        let counters = [OwnedCounterOp::of(&CounterOp::new(&limit, Key::global()))].into();
        PendingRequest::with_response(RequestState::new(op, counters, Instant::now(), 0))
    }

    fn admitted() -> OpResult {
        OpResult::new(Timestamp::default(), 1, [])
    }

    fn read(response: PendingResponse) -> Option<Result<u64, StoreError>> {
        let result = response.now_or_never()?;
        Some(result.map(|result| result.admitted))
    }

    #[test]
    fn the_waiter_of_a_lost_request_gets_an_error() {
        let (request, response) = with_response(Op::Acquire(1));
        drop(request);
        let response = read(response);
        assert!(matches!(response, Some(Err(StoreError::Connection { .. }))));
    }

    #[test]
    fn a_timed_out_request_gets_no_second_response() {
        let (mut request, response) = with_response(Op::Acquire(1));
        request.expire();
        assert!(!request.has_waiter());
        request.succeed(admitted());
        assert!(matches!(
            read(response),
            Some(Err(StoreError::Timeout { .. }))
        ));
    }

    #[test]
    fn only_acquire_and_peek_are_cancelled_with_their_waiter() {
        for (op, abandoned) in [
            (Op::Acquire(1), true),
            (Op::Peek, true),
            (Op::Adjust, false),
        ] {
            let (request, response) = with_response(op);
            assert!(!request.is_cancelled());
            drop(response);
            assert_eq!(request.is_cancelled(), abandoned, "{op:?}");
        }
    }
}
