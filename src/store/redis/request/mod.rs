//! A question on its way to Redis, and its answer on the way back.

use std::{
    mem,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use tokio::{runtime, time::Instant};

use self::{
    op::{CounterOps, OwnedCounterOp},
    response_handle::ResponseHandle,
    response_slot::ResponseSlot,
};
use super::{pending_refunds::UndeliveredGuard, rejection_cache::CacheToken};
use crate::{
    error::StoreError,
    store::{Op, OpResult},
};

pub(crate) mod op;
pub(crate) mod response_handle;
pub(crate) mod response_slot;

/// What is asked, and a place for its answer: shared by the question on its way and by whoever waits for it, so that what is
/// handed on from one to the next is small.
#[derive(Debug)]
pub(crate) struct RequestState {
    pub(crate) op: Op,
    pub(crate) counters: CounterOps,
    pub(crate) deadline: Instant,
    /// Of the keys.
    pub(crate) hash: u64,
    /// What was known when it was asked, if its refusal is to be noted.
    pub(crate) cache_token: Option<CacheToken>,
    /// Whether whoever waited has gone.
    pub(crate) cancelled: AtomicBool,
    /// Where refunds and charges are counted that are on their way.
    undelivered: Option<UndeliveredGuard>,
    slot: Mutex<ResponseSlot<Result<OpResult, StoreError>, Waker>>,
}

/// A question that waits for its trip. It is moved a few times on its way, so it is kept small.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    state: Arc<RequestState>,
    /// Whether it has been told that it has another idea of the time than the server.
    pub(crate) time_synced: bool,
    /// Whether it goes by itself: a cluster is moving its keys, and can't answer for several at once meanwhile.
    pub(crate) send_alone: bool,
    /// Whether somebody asked for its answer, and was not told anything yet.
    has_waiter: bool,
    /// Whether what he gives back is given back all the same if it can't be now.
    retries_refund: bool,
    /// Whether it has been answered, has failed, or is asked elsewhere: else it is lost when it is dropped.
    done: bool,
}

impl PendingRequest {
    /// A question that nobody waits for.
    pub(crate) fn detached(state: Arc<RequestState>) -> Self {
        Self {
            state,
            time_synced: false,
            send_alone: false,
            has_waiter: false,
            retries_refund: false,
            done: false,
        }
    }

    /// A question for a lane of a runtime, and its answer.
    pub(crate) fn with_response(
        state: Arc<RequestState>,
        worker: Option<runtime::Id>,
    ) -> (Self, ResponseHandle) {
        let has_waiter = ResponseHandle::new(state.clone(), worker);
        let mut request = Self::detached(state);
        request.has_waiter = true;
        (request, has_waiter)
    }

    /// Gives back what it gives back all the same if that can't be done now.
    pub(crate) fn retry_refunds(&mut self) {
        self.retries_refund = true;
    }

    /// Whether what it gives back is to be given back later if it can't be now: if that was asked for, or nothing waits to
    /// hear that it failed.
    pub(crate) fn retries_refunds(&self) -> bool {
        self.retries_refund || !self.has_waiter || self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether nothing waits for it, or hears what becomes of it.
    pub(crate) fn is_detached(&self) -> bool {
        !self.has_waiter
    }

    /// Whether somebody waits, or has gone without a word from here.
    pub(crate) fn has_waiter(&self) -> bool {
        self.has_waiter
    }

    /// Whether whoever asked has gone, and nothing is lost if it isn't asked. What is given back is given back for others.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.has_waiter
            && self.cancelled.load(Ordering::Relaxed)
            && matches!(self.op, Op::Acquire(_) | Op::Peek)
    }

    /// Tells whoever waits, if he wasn't told anything yet, and gives back what he doesn't hear of.
    #[inline]
    fn complete(&mut self, result: Result<OpResult, StoreError>) {
        let mut result = Some(result);
        if mem::take(&mut self.has_waiter) {
            let waker = self.state.slot().put(&mut result);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        if let Some(Ok(unheard)) = result {
            self.state.refund_unread(&unheard);
        }
    }

    pub(crate) fn expire(&mut self) {
        if self.has_waiter {
            self.complete(Err(StoreError::Timeout));
        }
    }

    pub(crate) fn fail(mut self, error: StoreError) {
        self.done = true;
        self.complete(Err(error));
    }

    #[inline]
    pub(crate) fn answer(mut self, answer: OpResult) {
        self.done = true;
        self.complete(Ok(answer));
    }

    /// Drops one that nothing waits for, and that is asked elsewhere.
    pub(crate) fn discard(mut self) {
        self.done = true;
    }
}

impl Deref for PendingRequest {
    type Target = RequestState;

    fn deref(&self) -> &RequestState {
        &self.state
    }
}

/// What waits for a question that was lost with its runtime is answered, not left hanging, and permits are refunded later.
impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.done {
            self.fail_lost();
        }
        if let Some(undelivered) = &self.undelivered {
            undelivered.end();
        }
    }
}

impl PendingRequest {
    #[cold]
    fn fail_lost(&mut self) {
        let refunds = self.op == Op::Refund && self.retries_refunds();
        if refunds && let Some(workers) = self.counters.first().and_then(OwnedCounterOp::workers) {
            workers.keep_lost_refunds(self.state.clone());
        }
        if self.has_waiter {
            self.complete(Err(ended()));
        }
    }
}

impl RequestState {
    /// What is asked, with a hash of the keys.
    pub(crate) fn new(op: Op, counters: CounterOps, deadline: Instant, hash: u64) -> Arc<Self> {
        Self::with_cache_token(op, counters, deadline, hash, None, None)
    }

    /// The same, with what is known before: it is put where it stays at once.
    #[inline]
    pub(crate) fn with_cache_token(
        op: Op,
        counters: CounterOps,
        deadline: Instant,
        hash: u64,
        cache_token: Option<CacheToken>,
        undelivered: Option<UndeliveredGuard>,
    ) -> Arc<Self> {
        Arc::new(Self {
            op,
            counters,
            deadline,
            hash,
            cache_token,
            cancelled: AtomicBool::new(false),
            undelivered,
            slot: Mutex::new(ResponseSlot::Empty(None)),
        })
    }

    /// Gives back what an answer says that was charged.
    #[cold]
    pub(crate) fn refund_unread(&self, answer: &OpResult) {
        if !matches!(self.op, Op::Acquire(_)) || answer.admitted == 0 {
            return;
        }
        let Some(workers) = self.counters.first().and_then(OwnedCounterOp::workers) else {
            return;
        };
        let mut counters = self.counters.clone();
        for (line, charged) in counters.iter_mut().zip(&answer.counters) {
            line.charged(charged.units, &charged.snapshot, answer.at);
        }
        workers.execute_detached(Op::Refund, counters);
    }

    /// Remembers that it was refused.
    #[cold]
    pub(crate) fn cache_rejection(&self, answer: &OpResult) {
        let workers = self.counters.first().and_then(OwnedCounterOp::workers);
        if let Some((cache_token, workers)) = self.cache_token.as_ref().zip(workers) {
            workers.cache_rejection(self, answer, cache_token);
        }
    }

    /// Answers what waits that the time is up, if it was not answered.
    pub(crate) fn expire(&self) {
        let waker = self.slot().put(&mut Some(Err(StoreError::Timeout)));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn slot(&self) -> MutexGuard<'_, ResponseSlot<Result<OpResult, StoreError>, Waker>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn ended() -> StoreError {
    StoreError::Connection("the lane has ended".into())
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use smallvec::SmallVec;

    use super::*;
    use crate::{
        clock::Timestamp,
        key::Key,
        quota::Quota,
        store::{CounterOp, DecisionSource, LimitHandle},
        strategy::{Gcra, Strategy},
    };

    fn with_response(op: Op) -> (PendingRequest, ResponseHandle) {
        let rule = Gcra.bind(&Quota::requests(9).per_minute()).expect("a rule");
        let limit = LimitHandle::new("p", rule, ());
        let counters = [OwnedCounterOp::of(&CounterOp::plain(&limit, Key::global()))].into();
        PendingRequest::with_response(RequestState::new(op, counters, Instant::now(), 0), None)
    }

    fn admitted() -> OpResult {
        OpResult {
            admitted: 1,
            at: Timestamp::default(),
            age: std::time::Duration::ZERO,
            admitted_after: 0,
            source: DecisionSource::Store,
            counters: SmallVec::new(),
        }
    }

    fn heard(has_waiter: &mut ResponseHandle) -> Option<Result<u64, StoreError>> {
        match has_waiter.poll_response(&Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result.map(|answer| answer.admitted)),
            Poll::Pending => None,
        }
    }

    #[test]
    fn an_answer_is_heard_once() {
        let (request, mut has_waiter) = with_response(Op::Acquire(1));
        assert!(heard(&mut has_waiter).is_none());
        request.answer(admitted());
        assert!(matches!(heard(&mut has_waiter), Some(Ok(1))));
        assert!(heard(&mut has_waiter).is_none());
    }

    #[test]
    fn whoever_waits_for_a_question_that_is_lost_is_told() {
        let (request, mut has_waiter) = with_response(Op::Acquire(1));
        drop(request);
        let heard = heard(&mut has_waiter);
        assert!(matches!(heard, Some(Err(StoreError::Connection(_)))));
    }

    #[test]
    fn whoever_was_told_that_his_time_is_up_hears_nothing_more() {
        let (mut request, mut has_waiter) = with_response(Op::Acquire(1));
        request.expire();
        assert!(!request.has_waiter());
        request.answer(admitted());
        assert!(matches!(
            heard(&mut has_waiter),
            Some(Err(StoreError::Timeout))
        ));
    }

    #[test]
    fn only_what_charges_for_its_asker_is_abandoned_with_him() {
        for (op, abandoned) in [
            (Op::Acquire(1), true),
            (Op::Peek, true),
            (Op::ForceAcquire, false),
            (Op::Refund, false),
        ] {
            let (request, has_waiter) = with_response(op);
            assert!(!request.is_cancelled());
            drop(has_waiter);
            assert_eq!(request.is_cancelled(), abandoned, "{op:?}");
        }
    }
}
