//! A decision under construction, and while it is pending.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;

use super::quota_lookup::QuotaLookups;
use crate::{
    decision::{Decision, DecisionKind, PermitHandle, PolicyEntry},
    limiter::{core::LimiterRef, keys::Keys, overrides::CheckOverrides},
    store::{DecisionSource, Op, PendingResponse, StoreResponse},
};

/// One entry for each policy that applies.
pub(crate) type Entries = SmallVec<[PolicyEntry; 1]>;

/// A decision under construction: the operation, and what is known of its result. It is changed in place and moved once, when
/// it is finished, since it is large.
pub(crate) struct DecisionBuilder {
    pub(crate) op: Op,
    /// Whether a rejection is followed by another attempt, so that bans and shadows don't count it yet.
    pub(crate) will_retry: bool,
    /// Whether it may wait for a store that failed.
    pub(crate) may_wait: bool,
    /// Whether it is a request's check or part of one, so that a store failure is handled as configured.
    pub(crate) in_check: bool,
    /// Their status and receipts are set by the store's response.
    pub(crate) entries: Entries,
    pub(crate) kind: DecisionKind,
    pub(crate) source: DecisionSource,
    pub(crate) admitted: u64,
    pub(crate) permit: Option<Arc<dyn PermitHandle>>,
}

impl DecisionBuilder {
    /// A request's check.
    #[inline]
    pub(crate) fn new() -> Self {
        Self::of_call(Op::Acquire(1), None)
    }

    /// A call with settings of its own.
    #[inline]
    pub(crate) fn of_call(op: Op, overrides: Option<&CheckOverrides>) -> Self {
        let mut builder = Self {
            op,
            will_retry: false,
            may_wait: false,
            in_check: matches!(op, Op::Acquire(_)),
            entries: Entries::new(),
            kind: DecisionKind::Admitted,
            source: DecisionSource::NotChecked,
            admitted: 0,
            permit: None,
        };
        if let Some(overrides) = overrides {
            builder.will_retry = overrides.will_retry;
            builder.may_wait = overrides.may_wait;
            builder.in_check |= overrides.in_check;
        }
        builder
    }

    pub(crate) fn is_admitted(&self) -> bool {
        matches!(self.kind, DecisionKind::Admitted)
    }

    /// Sets the result of a request that the store does not decide.
    #[cold]
    pub(crate) fn decide_without_store(&mut self, kind: DecisionKind, source: DecisionSource) {
        self.entries.clear();
        self.kind = kind;
        self.source = source;
    }

    /// The decision.
    #[inline(always)]
    pub(crate) fn finish(self, limiter: Arc<LimiterRef>) -> Decision {
        Decision {
            backend: limiter,
            kind: self.kind,
            source: self.source,
            admitted: self.admitted,
            entries: self.entries,
            permit: self.permit.into(),
        }
    }
}

/// A decision, ready or not.
pub(crate) enum MaybePending {
    Ready(Decision),
    Pending(PendingDecision),
}

/// A decision that waits for the store, or for quotas to be looked up. Dropping it cancels the request: the store refunds what it
/// charges for it (on Redis, `ResponseHandle`).
pub(crate) struct PendingDecision {
    /// Taken when the decision is made.
    state: Option<(Arc<LimiterRef>, DecisionBuilder)>,
    stage: PendingStage,
}

/// What a pending decision waits for.
pub(crate) enum PendingStage {
    QuotaLookups(QuotaLookups),
    Store(PendingResponse),
}

impl LimiterRef {
    /// Decides a call with its own keys.
    pub(crate) fn decide_keys(
        self: Arc<Self>,
        op: Op,
        keys: &Keys,
        overrides: &CheckOverrides,
    ) -> MaybePending {
        let mut builder = DecisionBuilder::of_call(op, Some(overrides));
        match self.evaluate_keys(&mut builder, keys, Some(overrides)) {
            None => MaybePending::Ready(builder.finish(self)),
            Some(stage) => MaybePending::Pending(PendingDecision::new(self, builder, stage)),
        }
    }
}

impl PendingDecision {
    pub(crate) fn new(
        limiter: Arc<LimiterRef>,
        builder: DecisionBuilder,
        stage: PendingStage,
    ) -> Self {
        let state = Some((limiter, builder));
        Self { state, stage }
    }
}

impl Future for PendingDecision {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        loop {
            // Polled again after it was ready, which is a mistake: pending for ever.
            let Some((limiter, builder)) = &mut this.state else {
                return Poll::Pending;
            };
            match &mut this.stage {
                PendingStage::QuotaLookups(lookups) => {
                    for (index, quota) in ready!(lookups.as_mut().poll(cx)) {
                        let entry = &mut builder.entries[index];
                        let bound = limiter.bound(entry.policy);
                        entry.quota_override = limiter.quota_override(bound, quota);
                    }
                    this.stage = PendingStage::Store(match limiter.execute(builder) {
                        StoreResponse::Ready(response) => PendingResponse::ready(response),
                        StoreResponse::Pending(response) => response,
                    });
                }
                PendingStage::Store(response) => {
                    let response = ready!(Pin::new(response).poll(cx));
                    limiter.apply_response(builder, response);
                    return match this.state.take() {
                        Some((limiter, builder)) => Poll::Ready(builder.finish(limiter)),
                        None => Poll::Pending,
                    };
                }
            }
        }
    }
}
