//! From a request to its decision, reported: which policies apply, what the store answers, and a decision that waits for it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use super::{
    decide::{apply, decide, decide_now, log_rejection},
    decision::Decision,
    report::{observe, report, report_cancelled},
    request::{LimitRequest, Purpose},
    resolve::resolve,
};
use crate::{
    error::{NotNow, StoreError},
    store::{OpResult, PendingResponse},
};

/// Decides a request. Returns the store's response if it is pending.
#[inline]
pub(crate) fn evaluate(
    decision: &mut Decision,
    request: &LimitRequest<'_>,
) -> Option<PendingResponse> {
    observe(decision, request.purpose, |decision| {
        if find_entries(decision, request) {
            decide(decision, request.purpose)
        } else {
            None
        }
    })
}

/// Decides a request, if that is possible without waiting.
pub(crate) fn evaluate_now(
    decision: &mut Decision,
    request: &LimitRequest<'_>,
) -> Result<(), NotNow> {
    let failed = observe(decision, request.purpose, |decision| {
        if find_entries(decision, request) {
            decide_now(decision, request.purpose).err()
        } else {
            None
        }
    });
    failed.map_or(Ok(()), Err)
}

/// Finds the entries of a request; returns false if it is decided without them.
#[inline(always)]
pub(crate) fn find_entries(decision: &mut Decision, request: &LimitRequest<'_>) -> bool {
    let early = resolve(
        &decision.set,
        request,
        &mut decision.entries,
        &mut |_, _| {},
    );
    let Some((kind, is_allowed)) = early.map(|early| early.into_kind()) else {
        return true;
    };
    decision.set_early(kind, is_allowed);
    if !decision.is_admitted() {
        log_rejection(decision, request.purpose);
    }
    false
}

/// A decision that waits for the store. Dropping it cancels the request: the store refunds what it charges for it.
pub(crate) struct PendingDecision {
    response: PendingResponse,
    purpose: Purpose,
    /// Taken when it is made.
    decision: Option<Decision>,
    /// When it began, if it is reported.
    since: Option<Instant>,
}

impl PendingDecision {
    pub(crate) fn new(decision: Decision, purpose: Purpose, response: PendingResponse) -> Self {
        let is_reported = decision.set.observers.is_some() && purpose.charges();
        Self {
            response,
            purpose,
            since: is_reported.then(Instant::now),
            decision: Some(decision),
        }
    }
}

impl Future for PendingDecision {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        // Polled again after it was ready, which is a mistake: pending for ever.
        if this.decision.is_none() {
            return Poll::Pending;
        }
        let result = ready!(Pin::new(&mut this.response).poll(cx));
        match this.decision.take() {
            Some(decision) => Poll::Ready(this.finish(decision, result)),
            None => Poll::Pending,
        }
    }
}

impl PendingDecision {
    fn finish(&self, mut decision: Decision, result: Result<OpResult, StoreError>) -> Decision {
        apply(&mut decision, self.purpose, result);
        if let Some(since) = self.since {
            report(&decision, self.purpose, Some(since.elapsed()));
        }
        decision
    }
}

impl Drop for PendingDecision {
    fn drop(&mut self) {
        if let (Some(since), Some(decision)) = (self.since, &self.decision) {
            let requests = self.purpose.requests();
            report_cancelled(&decision.set, requests, false, Some(since.elapsed()));
        }
    }
}
